"""Mappings and classes from Python become the words that a command is given."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from marius_py.config import (
    Component,
    EvaluateConfig,
    ModelConfig,
    TrainConfig,
    build,
    compose,
    load_config,
    make_components,
    plain,
)
from marius_py.config.words import words_of
from marius_py.errors import ConfigError
from marius_py.evaluation.ranking.trained import make_decoder
from marius_py.nn import Decoder, Loss, SoftmaxLoss


def test_a_class_is_named_by_its_path() -> None:
    given = {"loss": Component, "model.decoder": {"_target_": Component}, "trackers": [Component]}
    path = "marius_py.config.fields.Component"
    assert words_of(given) == [f"loss={path}", f"model.decoder={{_target_:{path}}}", f"trackers=[{path}]"]


class Outer:
    class Inner:
        pass


def _local() -> type[Any]:
    class Local:
        pass

    return Local


@pytest.mark.parametrize("kind", [Outer.Inner, _local()])
@pytest.mark.parametrize(
    ("key", "form"),
    [
        ("model.decoder", lambda kind: {"model.decoder": kind}),
        ("model.decoder", lambda kind: {"model": {"decoder": kind}}),
        ("model.decoder._target_", lambda kind: {"model.decoder": {"_target_": kind, "gamma": 3}}),
        ("loss", lambda kind: {"loss": {"_target_": kind}}),
        ("optimizer", lambda kind: {"optimizer": {"name": kind}}),
        ("optimizer.name", lambda kind: {"optimizer.name": kind}),
        ("trackers", lambda kind: {"trackers": ["csv", kind]}),
    ],
)
def test_a_class_stands_at_the_top_level_of_a_module(
    key: str, form: Callable[[Any], dict[str, Any]], kind: type[Any]
) -> None:
    told = f"{key} is the class {__name__}.{kind.__qualname__}, which cannot be imported by that path"
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}.*: define it at the top level of a module"):
        words_of(form(kind))
    told = f"{key} is Inner <{__name__}.Outer.Inner object at "
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}.*>; allowed: a class itself, its name or its"):
        words_of(form(Outer.Inner()))


def test_a_class_of_the_program_that_runs_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    """It trains there, as in a notebook, and no command can use what it has learnt."""
    mine = type("Gone", (Decoder,), {"__module__": "__main__"})
    assert words_of({"model.decoder": mine}) == ["model.decoder=__main__.Gone"]
    assert "model.decoder is Gone of the program that runs, where alone the run can be used" in caplog.text
    words_of({"loss": type("Mine", (Loss,), {"__module__": "__main__"})})  # which no command needs
    assert "loss is Mine of the program that runs, where alone the run can be resumed" in caplog.text
    with pytest.raises(ConfigError, match=r"=__main__\.Gone: .* into a module .*decoder=MODULE\.Gone$"):
        make_components(load_config(["model.decoder=__main__.Gone"]))
    with pytest.raises(ConfigError, match="it was defined in the program that trained the run"):
        make_decoder("__main__.Gone", 8)


def test_a_class_of_the_program_has_the_same_path_in_a_spawned_process(
    caplog: pytest.LogCaptureFixture,
) -> None:
    mine = type("Gone", (Decoder,), {"__module__": "__mp_main__"})
    assert words_of({"model.decoder": mine}) == ["model.decoder=__main__.Gone"]
    assert "model.decoder is Gone of the program that runs" in caplog.text


def test_a_path_is_replaced_in_a_config_by_a_path() -> None:
    config: Any = load_config(["graph=g", "output=runs/a"])
    assert replace(config, output=Path("runs/b")) == replace(config, output="runs/b")
    with pytest.raises(ConfigError, match=r"^ordering\.name=b has the wrong type"):
        replace(config.ordering, name=Path("b"))


def test_paths_are_taken_in_a_list_of_them() -> None:
    for compared in ([Path("runs/b"), "runs/c, d"], [Path("runs/b"), Path("runs/c, d")]):
        config = EvaluateConfig(run=cast(Any, Path("runs/a")), compare=cast(Any, compared))
        assert (config.run, config.compare) == ("runs/a", ("runs/b", "runs/c, d"))
        assert compose(EvaluateConfig, words_of({"run": "runs/a", "compare": compared})) == config
    assert EvaluateConfig(run="a", compare=cast(Any, Path("runs/b"))).compare == ("runs/b",)
    with pytest.raises(ConfigError, match=r"^compare=.* holds a NUL character"):
        EvaluateConfig(run="a", compare=("runs/\x00b",))


def test_a_class_made_already_is_told_where_its_arguments_go() -> None:
    for made in (SoftmaxLoss(), partial(SoftmaxLoss, 0.1), lambda: SoftmaxLoss()):
        with pytest.raises(ConfigError, match=r'path \(its arguments are settings too: "loss\.ARGUMENT"\)$'):
            words_of({"loss": made})
    words = words_of({"loss": SoftmaxLoss, "loss.smoothing": 0.1})
    assert load_config(words).loss == Component("softmax", {"smoothing": 0.1})


def test_what_is_no_class_is_left_to_its_key() -> None:
    given = {"trackers": OmegaConf.create(["csv"]), "model.init": None, "device": torch.device("cpu")}
    assert words_of(given) == ["trackers=['csv']", "model.init=null", "device=cpu"]
    path = f"{__name__}.Outer.Inner"
    assert words_of({"model.decoder": {"_target_": "transe", "of": Outer.Inner}}) == [
        f'model.decoder={{_target_:"transe",of:{path}}}'
    ]


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["model=transe", "model.decoder.norm=l1", "loss=margin", "optimizer=sgd", "trackers=[csv,json]"],
        ["model.init._target_=uniform", "model.init.scale=0.5", "loss=logistic", "loss.margin=1"],
        ["optimizer=adam", "optimizer.beta1=0.8", "optimizer.schedule.name=cosine", "evaluation.ks=[1,5]"],
        [
            "loss=userparts.MyLoss",
            "loss.alpha=2",
            "optimizer=userparts.MyOptimizer",
            "optimizer.momentum=0.5",
        ],
        ["model.decoder={_target_:userparts.MyDecoder,gamma:3}", "graph=\"a 'b' [c], d=e\""],
    ],
)
def test_the_mapping_of_config_yaml_gives_the_same_settings(words: list[str], parts: str) -> None:
    config = load_config(["graph=g", *words])
    assert load_config(words_of(plain(config))) == config


TEXTS = st.text(st.one_of(st.sampled_from("${}\\'\""), st.characters(exclude_categories=("Cs", "Cc"))))


@settings(max_examples=15)
@given(TEXTS)
def test_any_text_is_an_argument(text: str) -> None:
    words = words_of({"model": {"decoder": {"_target_": "userparts.MyDecoder", "text": text}}})
    assert load_config(words).model.decoder.arguments["text"] == text


@pytest.mark.parametrize("value", [b"adam", len, (one for one in [1]), object(), 3 + 1j, ...])
def test_what_no_setting_can_be_is_refused_by_its_key(value: Any) -> None:
    said = f" is {type(value).__name__} .*; allowed: a text, a number, True, False, None, a list or a mapping"
    for key in ("evaluation.ks", "training.epochs"):
        for asked in ({key: value}, {key: [1, value]}):
            with pytest.raises(ConfigError, match=f"^{re.escape(key)}{said}"):
                words_of(asked)
    with pytest.raises(ConfigError, match=f"^model.decoder.weight{said}"):
        words_of({"model": {"decoder": {"_target_": "transe", "weight": value}}})


@pytest.mark.parametrize("text", ["a,b", "it's", "x=y", "(a)", "Übung.npy", "a#b", "choice(a,b)", "a b"])
def test_a_text_is_an_argument_by_its_own_key(parts: str, text: str) -> None:
    mine: dict[str, Any] = {"model.decoder": "userparts.MyDecoder", "model.decoder.gamma": text}
    mine |= {"loss": {"_target_": "userparts.MyLoss", "alpha": text}}
    mine |= {"optimizer": "userparts.MyOptimizer", "optimizer.momentum": text, "optimizer.lr": "0.5"}
    config = load_config(words_of(mine))
    assert config.model.decoder.arguments == {"gamma": text}
    assert config.loss.arguments == {"alpha": text}
    assert (config.optimizer.arguments, config.optimizer.lr) == ({"momentum": text}, 0.5)
    assert load_config(words_of({**mine, "loss.alpha": "1e3"})).loss.arguments == {"alpha": 1000}


def test_nested_and_flat_keys_mix() -> None:
    words = words_of({"model": {"decoder": {"norm": "l1"}}, "model.dim": 8, "training": {"patience": None}})
    assert words == ["model.decoder.norm=l1", "model.dim=8", "training.patience=null"]
    assert load_config(words_of({"model": "transe", **{"model.decoder": {"norm": "l1"}}})).model.decoder == (
        Component("transe", {"norm": "l1"})
    )
    with pytest.raises(ConfigError, match=r"settings is str 'model.dim=8'; allowed: a mapping"):
        words_of("model.dim=8")  # type: ignore[arg-type]


def test_python_values_are_checked_too() -> None:
    assert ModelConfig(dim=6).dim == 6
    with pytest.raises(ConfigError, match=r"model\.dim=0"):
        ModelConfig(dim=0)
    with pytest.raises(ConfigError, match=r"model\.dim"):
        ModelConfig(dim="6")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"evaluation\.ks"):
        TrainConfig(evaluation=build(type(TrainConfig().evaluation), {"ks": [0]}, "evaluation"))
    with pytest.raises(FrozenInstanceError):
        ModelConfig().dim = 3  # type: ignore[misc]


def test_a_mapping_is_taken_for_a_section() -> None:
    given: Any = {"dim": 6, "decoder": "transe"}
    config = replace(TrainConfig(model=given), optimizer=cast(Any, {"schedule": {"name": "linear"}}))
    assert (config.model.dim, config.model.decoder.target) == (6, "transe")
    assert (config.optimizer.schedule.name, config.optimizer.lr) == ("linear", 0.1)
    assert TrainConfig(**plain(config)) == config
    for wrong, told in (
        ({"dim": 0}, "model.dim=0 is out of range"),
        ({"dims": 6}, "unknown key model.dims; did you mean model.dim?"),
        (None, "model=None has the wrong type: it is a section with the keys model.decoder, model.dim, "),
    ):
        with pytest.raises(ConfigError, match=f"^{re.escape(told)}"):
            TrainConfig(model=cast(Any, wrong))


def test_words_are_a_list_of_texts() -> None:
    wrong: Any
    for wrong in ({"model.dim": 8}, "model.dim=8", b"model.dim=8", None, 3, ["model.dim=8", 3]):
        with pytest.raises(
            ConfigError, match=f"^overrides is {re.escape(repr(wrong))}; allowed: a list of words"
        ):
            load_config(wrong)
    assert load_config(iter(["model.dim=8"])).model.dim == 8  # type: ignore[arg-type]


def test_ranges_and_arrays_are_lists():
    for ks in (range(1, 4), np.array([1, 2, 3]), torch.tensor([1, 2, 3]), [1, np.int64(2), 3]):
        words = words_of({"evaluation": {"ks": ks}, "model.dim": np.int32(8), "model.reciprocal": np.True_})
        config = load_config(words)
        assert (config.evaluation.ks, config.model.dim, config.model.reciprocal) == ((1, 2, 3), 8, True)
        assert type(config.evaluation.ks[1]) is int


def test_numbers_of_numpy_are_taken_in_a_config() -> None:
    given: dict[str, Any] = {"dim": np.int64(6), "reciprocal": np.False_, "node_dropout": np.float32(0.5)}
    model = ModelConfig(**given)
    assert plain(model) == {**plain(ModelConfig(dim=6)), "reciprocal": False, "node_dropout": 0.5}
    assert [type(getattr(model, name)) for name in given] == [int, bool, float]
    for ks in (np.array([1, 3]), [np.int32(1), 3], range(1, 4, 2), torch.tensor([1, 3])):
        assert EvaluateConfig(run="a", ks=cast(Any, ks)).ks == (1, 3)
    for wrong in (np.int64(0), np.float64(6), np.array([6]), np.array(6.5)):
        with pytest.raises(ConfigError, match=r"^model\.dim="):
            ModelConfig(dim=cast(Any, wrong))


def test_of_a_key_that_is_given_twice_the_latter_counts():
    base = {"model": {"dim": 16}}
    assert load_config(words_of({**base, "model.dim": 32})).model.dim == 32
    assert load_config(words_of({"model.dim": 32, **base})).model.dim == 16
