"""Classes by name or path, with their arguments: the package's and a user's own."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from marius_py.config import (
    Component,
    ModelConfig,
    TrainConfig,
    load_config,
    make_components,
)
from marius_py.config.fields import keys_of, type_of
from marius_py.config.regularization import regularization_of
from marius_py.config.words import words_of
from marius_py.errors import ConfigError
from tests.config.composing import saved_words


def test_a_class_of_ones_own_needs_its_name() -> None:
    for group, key in (("optimizer", "name"), ("loss", "_target_")):
        with pytest.raises(ConfigError, match=rf"{group}=custom needs {group}\.{key}=mypkg\.MyClass"):
            load_config(["graph=g", f"{group}=custom"])
        with pytest.raises(ConfigError) as refused:
            load_config(["graph=g", f"{group}=foo"])
        assert "custom" not in str(refused.value)
    own = load_config(["graph=g", "optimizer=custom", "optimizer.name=mypkg.Mine"])
    assert own.optimizer.name == "mypkg.Mine"


def test_own_classes_by_path_with_arguments(parts: str) -> None:
    config = load_config(
        [
            "graph=g",
            f"model.decoder={{_target_: {parts}.MyDecoder, gamma: 3}}",
            f"loss={parts}.MyLoss",
            "loss.alpha=0.5",
            f"optimizer={parts}.MyOptimizer",
            "optimizer.momentum=0.9",
            "optimizer.lr=0.25",
        ]
    )
    made = make_components(config)
    assert type(made.decoder).__name__ == "MyDecoder"
    assert made.decoder.gamma == 3  # type: ignore[attr-defined]
    assert made.loss.alpha == 0.5  # type: ignore[attr-defined]
    assert (made.optimizer.lr, made.optimizer.momentum) == (0.25, 0.9)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "words",
    [
        ["model=transe", "model.decoder.norm=l1"],
        ["model.decoder=transe", "model.decoder.norm=l1"],
        ["model.decoder={_target_: transe, norm: l1}"],
        ["model=rotate", "model.decoder={name: transe, norm: l1}"],
        ["model.decoder.norm=l1", "model.decoder._target_=transe"],
    ],
)
def test_arguments_of_a_decoder_in_every_form(words: list[str]) -> None:
    assert load_config(["graph=g", *words]).model.decoder == Component("transe", {"norm": "l1"})


@pytest.mark.parametrize(
    ("words", "decoder"),
    [
        (["model.decoder.norm=moduli", "model.decoder=rotate"], Component("rotate", {"norm": "moduli"})),
        (["model.decoder.norm=l1", 'model.decoder="transe"'], Component("transe", {"norm": "l1"})),
        (["model.decoder='transe'", "model.decoder.norm=l1"], Component("transe", {"norm": "l1"})),
        (["model.decoder.norm=l1", "model=transe"], Component("transe", {"norm": "l1"})),
        (
            ["model.decoder.block=2", "model.decoder={_target_:rescal}", "experiment=wn18rr/rotate"],
            Component("rescal", {"block": 2}),
        ),
        (
            ["model.decoder.norm=l1", "model.decoder=transe", "model=mine"],
            Component("transe", {"norm": "l1"}),
        ),
        (
            ["model.decoder.gamma=3", "model.decoder=userparts:MyDecoder"],
            Component("userparts:MyDecoder", {"gamma": 3}),
        ),
        (
            words_of({"model.decoder.norm": "l1", "model.decoder": "transe"}),
            Component("transe", {"norm": "l1"}),
        ),
    ],
)
def test_arguments_may_stand_before_their_class(words: list[str], decoder: Component, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("defaults: [rotate, _self_]\ndecoder: {phase_scale: 2}\n")
    assert load_config(["graph=g", *words], config_dir=tmp_path).model.decoder == decoder


def test_arguments_may_stand_before_their_class_where_a_run_goes_on(tmp_path: Path) -> None:
    output = saved_words(tmp_path, "model.decoder=rotate", "model.decoder.norm=moduli", "model.dim=6")
    words = ["model.decoder.norm=l1", "model.decoder=transe", output, "resume=true"]
    assert load_config(words).model == ModelConfig(decoder=Component("transe", {"norm": "l1"}), dim=6)
    words = ["model.init.scale=2", "negatives.sampler=uniform", "model.init=uniform", output, "resume=true"]
    assert load_config(words).model.init == Component("uniform", {"scale": 2})


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("model.decoder=marius_py.nn.ComplEx", "model.decoder=complex"),
        ("model.decoder=marius_py.nn.decoders:RotatE", "model.decoder=rotate"),
        (
            "model.decoder={_target_: marius_py.nn.RESCAL, block: 4}",
            "model.decoder={_target_: rescal, block: 4}",
        ),
        ("model.init=marius_py.nn.initializers.Uniform", "model.init=uniform"),
        ("negatives.sampler=marius_py.nn.UniformNegatives", "negatives.sampler=uniform"),
        ("loss=marius_py.nn.LogisticLoss", "loss=logistic"),
        ("optimizer=marius_py.nn.Adam", "optimizer=adam"),
        ("optimizer=marius_py.nn:Adam", "optimizer=adam"),
        ("loss= marius_py.nn:MarginLoss", "loss=margin"),
        ("optimizer.name=marius_py.nn.optimizers.SGD", "optimizer.name=sgd"),
    ],
)
def test_a_built_in_part_has_one_name(path: str, name: str) -> None:
    assert load_config(["graph=g", path]) == load_config(["graph=g", name])


def test_every_class_has_a_registry_of_its_built_in_ones() -> None:
    from marius_py.nn import registry

    keys = [
        (key, item) for key, owner, item in keys_of(TrainConfig) if type_of(owner, item.name) is Component
    ]
    assert len(keys) == 4
    for key, item in keys:
        assert item.default_factory().target in getattr(registry, item.metadata["registry"]), key  # type: ignore[misc,operator]


@pytest.mark.parametrize("path", ["userparts.MyComplEx", "marius_py.nn.Decoder", "marius_py.nn.NoSuch"])
def test_other_classes_keep_their_path(path: str, parts: str) -> None:
    config = TrainConfig(model=ModelConfig(decoder=Component(path)))
    assert config.model.decoder.target == path
    assert regularization_of(config).n3 == (0, 0)
    assert "userparts" not in sys.modules


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer.eps=null"], "optimizer.eps=null has the wrong type: it takes a number"),
        (["loss.negative_weight=foo"], "loss.negative_weight='foo' has the wrong type: it takes a number"),
        (["loss.negative_weight=true"], "loss.negative_weight=True has the wrong type: it takes a number"),
        (["loss=margin", "loss.margin=true"], "loss.margin=True has the wrong type: it takes a number"),
        (["optimizer.eps=true"], "optimizer.eps=True has the wrong type: it takes a number"),
        (["optimizer.initial=true"], "optimizer.initial=True has the wrong type: it takes a number"),
        (
            ["model.decoder=rotate", "model.decoder.phase_scale=true"],
            "model.decoder.phase_scale=True has the wrong type: it takes a number",
        ),
        (["loss=userparts.MyLoss", "loss.alpha=13"], "loss=userparts.MyLoss loss.alpha=13 cannot be made: "),
        (["model.decoder=compl"], "did you mean complex"),
        (["model.decoder=nosuchpkg.Decoder"], "no module named nosuchpkg"),
        (["model.decoder=userparts.MyDecode"], "did you mean MyDecoder"),
        (["loss=userparts.MyDecoder"], "no class derived from marius_py.nn.losses.Loss"),
        (["loss=userparts.HalfLoss"], "__call__"),
        (["loss=userparts.MyLoss"], "alpha"),
        (["loss=userparts.MyLoss", "loss.alpha=13"], "RuntimeError: unlucky"),
        (["loss=userparts.MyLoss", "loss.alpha=14"], "SystemExit: 0"),
        (["loss=userparts.MyLoss", "loss.alfa=1"], "did you mean loss.alpha? (allowed: loss.alpha)"),
        (["loss.margin=2"], "no argument of softmax, but of logistic and margin (allowed: loss.smoothing, "),
        (["model.decoder.dim=3"], "model.decoder.dim is passed to complex by the package: set model.dim"),
        (["optimizer.lrr=3"], "did you mean optimizer.lr? (allowed: optimizer.eps, optimizer.initial, optim"),
        (["optimizer.warmup=3"], "did you mean optimizer.schedule.warmup?"),
        (["optimizer.sched.name=cosine"], "did you mean optimizer.schedule?"),
        (["loss=brokenparts.Loss"], "OSError: no licence"),
        (["loss=margin", "loss.margin=-1"], "loss.margin"),
        (["optimizer=adam", "optimizer.beta3=1"], "optimizer.beta3"),
        (["optimizer.name=adagard"], "did you mean adagrad"),
        (["model.decoder={_target_: distmult, dim: 3}"], "model.decoder.dim"),
        (
            ["model.decoder=userparts.Forgetful"],
            "model.decoder=userparts.Forgetful has no attribute dim once it is made: its __init__ must call "
            "super().__init__(dim)",
        ),
        (
            ["model.decoder=userparts.WithoutWidth"],
            "model.decoder=userparts.WithoutWidth: relation_dim fails: AttributeError: 'WithoutWidth' object",
        ),
        (
            ["optimizer=userparts.ForgetfulOptimizer"],
            "optimizer.name=userparts.ForgetfulOptimizer has no attribute lr once it is made: its __init__ "
            "must call super().__init__(lr)",
        ),
    ],
)
def test_classes_that_do_not_fit_are_refused(words: list[str], message: str, parts: str) -> None:
    config = load_config(["graph=g", *words])
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_components(config)
