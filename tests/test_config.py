"""Settings: composition, checks, messages, classes named in YAML."""

from __future__ import annotations

import inspect
import logging
import os
import re
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from omegaconf import OmegaConf

from marius_py.config import (
    Component,
    DatasetConfig,
    EvaluateConfig,
    InputConfig,
    ModelConfig,
    OptimizerConfig,
    PrepareConfig,
    TrainConfig,
    build,
    check_buffer,
    compose,
    conf_dir,
    load_config,
    make_components,
    plain,
    read_yaml,
    schema,
    write_yaml,
)
from marius_py.config.fields import is_note, keys_of, type_of
from marius_py.config.groups import group_options, groups_of
from marius_py.config.help import help_text
from marius_py.config.overrides import job_words, prepare_overrides, warn_of_idle_words
from marius_py.config.regularization import regularization_of, with_penalties
from marius_py.config.schema import ORDERS, ScheduleConfig
from marius_py.config.words import words_of
from marius_py.errors import ConfigError, FormatError
from marius_py.evaluation.ranking.trained import make_decoder
from marius_py.nn import AllNegatives, Decoder, SoftmaxLoss, UniformNegatives
from marius_py.nn.registry import OPTIMIZERS

COMMANDS: list[tuple[type[Any], list[str]]] = [
    (TrainConfig, ["graph=g"]),
    (EvaluateConfig, ["run=r"]),
    (PrepareConfig, ["input.train=f", "output=o"]),
]

MODULE = """
from marius_py.nn.decoders import ComplEx, DistMult
from marius_py.nn.losses import Loss
from marius_py.nn.optimizers import SGD

class MyDecoder(DistMult):
    def __init__(self, dim, gamma=1.0):
        super().__init__(dim)
        self.gamma = gamma

class MyComplEx(ComplEx):
    pass

class MyLoss(Loss):
    def __init__(self, *, alpha):
        if alpha == 13:
            raise RuntimeError("unlucky")
        if alpha == 14:
            raise SystemExit(0)
        self.alpha = alpha
    def __call__(self, positive, negative, keep):
        return (negative.mean() - positive.mean()) * self.alpha

class HalfLoss(Loss):
    pass

class Forgetful(DistMult):
    def __init__(self, dim):
        self.width = dim

class WithoutWidth(DistMult):
    @property
    def relation_dim(self):
        return self.width

class ForgetfulOptimizer(SGD):
    def __init__(self, lr):
        self.rate = lr

class MyOptimizer(SGD):
    def __init__(self, lr, momentum=0.0):
        super().__init__(lr)
        self.momentum = momentum
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "userparts.py").write_text(MODULE)
    (tmp_path / "brokenparts.py").write_text("import marius_py\nraise OSError('no licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("userparts", "brokenparts"):
        sys.modules.pop(name, None)
    return "userparts"


def _error(*overrides: str, kind: type[Any] = TrainConfig) -> str:
    with pytest.raises(ConfigError) as caught:
        compose(kind, list(overrides))
    message = str(caught.value)
    assert "\n" not in message
    return message


# ------------------------------------------------------------------ composition


def test_files_and_dataclasses_hold_the_same_defaults() -> None:
    assert load_config(["graph=g"]) == TrainConfig(graph="g")
    assert compose(EvaluateConfig, ["run=r"]) == EvaluateConfig(run="r")
    expected = PrepareConfig(input=InputConfig(train="f"), output="o")
    assert compose(PrepareConfig, ["input.train=f", "output=o"]) == expected
    assert expected.dataset == DatasetConfig()


@pytest.mark.parametrize(
    ("group", "option"),
    [
        (group, option)
        for group in sorted(groups_of(TrainConfig))
        for option in group_options(conf_dir(), group)
    ],
)
def test_every_group_file_composes_and_its_parts_are_made(group: str, option: str, parts: str) -> None:
    words = ["graph=g", f"{group}={option}"]
    if option == "custom":
        words += {
            "loss": [f"loss._target_={parts}.MyLoss", "loss.alpha=2"],
            "optimizer": [f"optimizer.name={parts}.MyOptimizer", "optimizer.momentum=0.9"],
        }[group]
    if (group, option) == ("storage", "cuda"):
        words.append("device=auto")
    config = load_config(words)
    made = make_components(config)
    assert made.decoder.dim == config.model.dim


@pytest.mark.parametrize("option", [name for name in group_options(conf_dir(), "dataset") if name != "none"])
def test_every_data_set_composes(option: str) -> None:
    dataset = compose(PrepareConfig, [f"dataset={option}", "output=o"]).dataset
    assert dataset.url is not None
    assert dataset.url.startswith("https://")
    assert dataset.sha256 is not None
    assert [len(one) for one in dataset.sha256] == [64, 64, 64]


def test_every_file_below_conf_is_reached() -> None:
    known = {f"{kind}.yaml" for kind in ("train", "evaluate", "prepare")}
    for kind, _ in COMMANDS:
        for group in groups_of(kind):
            known |= {f"{group}/{option}.yaml" for option in group_options(conf_dir(), group)}
    known |= {"model/base.yaml", "optimizer/base.yaml"}
    assert {
        file.relative_to(conf_dir()).as_posix() for file in conf_dir().rglob("*") if file.is_file()
    } == known


def test_without_a_graph_the_demo_settings_come_first_and_can_be_overridden() -> None:
    demo = load_config([])
    assert demo.graph is None
    assert demo.storage.capacity == 4
    assert load_config(["training.epochs=3"]).training.epochs == 3
    assert load_config(["training.epochs=3"]).model == demo.model


def test_orders_are_those_the_scheduler_knows() -> None:
    from marius_py.ordering import arguments
    from marius_py.ordering.orders import ORDERS as KNOWN

    assert set(ORDERS) == set(KNOWN)
    assert schema.MAX_ROUNDS == arguments.MAX_ROUNDS


def test_optimal_orders_are_known_up_to_the_size_that_is_told() -> None:
    from marius_py.ordering.orders.stored import OPTIMAL, stored_orders

    assert max(p for p, _ in stored_orders(OPTIMAL)) == schema.MOST_OPTIMAL
    words = ["graph=g", "ordering.name=optimal", "storage.partitions=17"]
    assert load_config([*words, "storage.capacity=17"]).ordering.name == "optimal"
    assert "ordering.name=optimal is known for storage.partitions of up to 16" in _error(
        *words, "storage.capacity=8"
    )


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_has_its_own_rate_whichever_way_it_is_chosen(name: str, tmp_path: Path) -> None:
    own = inspect.signature(OPTIMIZERS[name]).parameters["lr"].default
    for word in (f"optimizer.name={name}", f"optimizer={name}"):
        assert load_config(["graph=g", word]).optimizer.lr == own
        assert load_config(["graph=g", word, "optimizer.lr=0.3"]).optimizer.lr == 0.3
    assert TrainConfig(optimizer=OptimizerConfig(name=name)).optimizer.lr == own
    follows = own * 128 / 1024 if name == "sgd" else own
    assert load_config(["graph=g", word, "training.batch_size=128"]).optimizer.lr == follows
    assert load_config(["graph=g", word, "training.batch_size=128", "optimizer.lr=0.3"]).optimizer.lr == 0.3
    experiment = ["graph=g", "experiment=fb15k_237/complex", f"optimizer.name={name}"]
    assert load_config(experiment).optimizer.lr == 0.4
    output = _saved(tmp_path, "optimizer.lr=0.3", f"optimizer.name={name}")
    for word in ("training.epochs=30", f"optimizer.name={name}"):
        assert load_config([output, "resume=true", word]).optimizer.lr == 0.3


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rotate_takes_twice_the_rate_of_optimizers_that_divide_by_gradients(
    name: str, tmp_path: Path
) -> None:
    own = inspect.signature(OPTIMIZERS[name]).parameters["lr"].default
    twice = own if name == "sgd" else 2 * own
    words = ["graph=g", f"optimizer.name={name}"]
    for word in ("model=rotate", "model.decoder=rotate", "model.decoder=marius_py.nn.decoders.RotatE"):
        assert load_config([*words, word]).optimizer.lr == twice
        assert load_config([*words, word, f"optimizer.lr={own}"]).optimizer.lr == own
    assert load_config([*words, "model=transe"]).optimizer.lr == own
    output = _saved(tmp_path, "model=rotate", *words[1:], f"optimizer.lr={own}")
    assert load_config([output, "resume=true", "training.epochs=30"]).optimizer.lr == own


def test_a_class_of_ones_own_needs_its_name() -> None:
    for group, key in (("optimizer", "name"), ("loss", "_target_")):
        with pytest.raises(ConfigError, match=rf"{group}=custom needs {group}\.{key}=mypkg\.MyClass"):
            load_config(["graph=g", f"{group}=custom"])
        with pytest.raises(ConfigError) as refused:
            load_config(["graph=g", f"{group}=foo"])
        assert "custom" not in str(refused.value)
    own = load_config(["graph=g", "optimizer=custom", "optimizer.name=mypkg.Mine"])
    assert own.optimizer.name == "mypkg.Mine"


def test_edges_of_a_split_are_one_file() -> None:
    words = ["input.train=a.tsv", "input.train=b.tsv", "output=g"]
    with pytest.raises(ConfigError, match=r"input\.train is given twice: a\.tsv and b\.tsv"):
        compose(PrepareConfig, words)


def test_experiment_can_be_overridden() -> None:
    config = load_config(["graph=g", "experiment=fb15k_237/complex", "storage.capacity=8", "model.dim=64"])
    assert (config.optimizer.lr, config.storage.capacity, config.model.dim) == (0.4, 8, 64)
    disk = load_config(["graph=g", "experiment=fb15k_237/complex_dropout"])
    assert (disk.storage.capacity, disk.storage.partitions) == (4, 8)
    assert disk.model.node_dropout == 0.3


@pytest.mark.parametrize("group", sorted(groups_of(TrainConfig)))
@pytest.mark.parametrize("value", ["[]", "", "???"])
def test_of_a_group_one_file_is_chosen(group: str, value: str) -> None:
    assert f"{group}={value} is unknown: it takes one of " in _error("graph=g", f"{group}={value}")


def test_of_experiments_there_may_be_several() -> None:
    words = ["experiment=[demo, 'wn18rr/rotate']", "graph=g"]
    assert load_config(words).model.decoder.target == "rotate"
    assert load_config([words[0].replace(" ", ""), "graph=g"]) == load_config(words)


def test_a_folder_of_groups_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("defaults: [base, _self_]\ndim: 32\n")
    assert load_config(["graph=g", "model=mine"], config_dir=tmp_path).model.dim == 32
    assert "mine" not in _error("graph=g", "model=nosuch")
    with pytest.raises(ConfigError, match="mine"):
        load_config(["graph=g", "model=nosuch"], config_dir=tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        load_config(["graph=g"], config_dir=tmp_path / "absent")


def test_groups_of_ones_own_come_first(tmp_path: Path) -> None:
    mine = tmp_path / 'm"y, ${groups}'
    (mine / "model").mkdir(parents=True)
    (mine / "model" / "complex.yaml").write_text("defaults: [base, _self_]\ndim: 32\n")
    assert load_config(["graph=g", "model=complex"], config_dir=mine).model.dim == 32
    assert load_config(["graph=g"], config_dir=mine).model.dim == 32
    assert load_config(["graph=g", "model=distmult"], config_dir=mine).model.dim == 128
    (mine / "train.yaml").write_text("dim: 3\n")
    with pytest.raises(ConfigError, match=r"holds train\.yaml, .* move the file elsewhere"):
        load_config(["graph=g"], config_dir=mine)
    assert compose(EvaluateConfig, ["run=r"], config_dir=mine).run == "r"


@pytest.mark.parametrize(
    "name",
    [
        "plain",
        "with space",
        "a=b",
        "a,b",
        "{x}",
        "[y]",
        "quote'd",
        'double"d',
        "back\\slash\\",
        "ünï",
        "#1",
        "~h",
        "'r",
        '"r',
        "'r' s",
        "'r\\'",
    ],
)
def test_any_file_name_is_a_path(name: str) -> None:
    config = load_config([f"graph=/data/{name}", f"output={name}"])
    assert (config.graph, config.output) == (f"/data/{name}", name)


@settings(max_examples=20)
@given(st.text(st.characters(blacklist_categories=("Cs", "Cc")), min_size=1, max_size=20))
def test_any_text_is_a_path(name: str) -> None:
    name = "p" + name
    if "${" not in name:
        assert compose(EvaluateConfig, [f"run={name}"]).run == name


@pytest.mark.parametrize("name", ["null", "${oc.env:HOME}/x", "a${b", "\\${b}", "'r", "'r s'", '"', "x\\"])
def test_a_path_from_python_stands_for_itself(name: str) -> None:
    assert load_config(words_of({"graph": Path(name), "output": name})).output == name
    given = {"run": name, "compare": [name, Path(name)]}
    config = compose(EvaluateConfig, words_of(given, EvaluateConfig))
    assert (config.run, config.compare) == (name, (name, name))
    assert load_config(words_of({"graph": None})).graph is None


def test_a_folders_entry_is_a_path(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    with os.scandir(tmp_path) as entries:
        (entry,) = entries
    given = {"run": entry, "compare": [entry]}
    config = compose(EvaluateConfig, words_of(given, EvaluateConfig))
    assert (config.run, config.compare) == (entry.path, (entry.path,))


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
    assert "model.decoder is Gone of the program that runs" in caplog.text
    with pytest.raises(ConfigError, match=r"=__main__\.Gone: .* into a module .*decoder=MODULE\.Gone$"):
        make_components(load_config(["model.decoder=__main__.Gone"]))
    with pytest.raises(ConfigError, match="it was defined in the program that trained the run"):
        make_decoder("__main__.Gone", 8)


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


def test_quoted_and_interpolated_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARIUS_TEST_HOME", "/home/x")
    assert load_config(["graph='a b'"]).graph == "a b"
    assert load_config(["graph=${oc.env:MARIUS_TEST_HOME}/g"]).graph == "/home/x/g"
    assert load_config(["graph=2024"]).graph == "2024"


def test_yaml_round_trip(tmp_path: Path) -> None:
    words = [
        "graph=g",
        "model=transe",
        "model.decoder.norm=l1",
        "optimizer=adam",
        "optimizer.beta1=0.8",
        "loss=margin",
    ]
    config = load_config(words)
    write_yaml(plain(config), tmp_path / "config.yaml")
    assert build(TrainConfig, read_yaml(tmp_path / "config.yaml")) == config
    for content in ("{", "- 1\n", "\xff\xfe", ""):
        (tmp_path / "bad.yaml").write_bytes(content.encode("latin-1"))
        if content:
            with pytest.raises(FormatError, match=r"bad\.yaml"):
                read_yaml(tmp_path / "bad.yaml")


# ------------------------------------------------------------------ resume


def _saved(tmp_path: Path, *words: str) -> str:
    saved = load_config(["graph=g", f"output={tmp_path}", *words])
    write_yaml(plain(saved), tmp_path / "config.yaml")
    return f"output={tmp_path}"


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


def test_nested_and_flat_keys_mix() -> None:
    words = words_of({"model": {"decoder": {"norm": "l1"}}, "model.dim": 8, "training": {"patience": None}})
    assert words == ["model.decoder.norm=l1", "model.dim=8", "training.patience=null"]
    assert load_config(words_of({"model": "transe", **{"model.decoder": {"norm": "l1"}}})).model.decoder == (
        Component("transe", {"norm": "l1"})
    )
    with pytest.raises(ConfigError, match=r"settings is str 'model.dim=8'; allowed: a mapping"):
        words_of("model.dim=8")  # type: ignore[arg-type]


def test_resume_takes_the_settings_of_the_run(tmp_path: Path) -> None:
    output = _saved(tmp_path, "model.dim=64", "model=distmult", "optimizer=adam", "training.epochs=7")
    again = load_config([output, "resume=true"])
    assert again.graph == "g"
    assert (again.model.dim, again.model.decoder.target, again.optimizer.name) == (64, "distmult", "adam")
    assert again.training.epochs == 7
    assert again.resume


def test_resume_takes_what_is_given_even_if_it_is_the_default(tmp_path: Path) -> None:
    output = _saved(tmp_path, "model.dim=64", "training.epochs=7")
    again = load_config([output, "resume=true", "model.dim=128", "training.epochs=9"])
    assert (again.model.dim, again.training.epochs) == (128, 9)
    assert load_config([output, "resume=true", "model=complex"]).model.dim == 128


def test_resume_keeps_arguments_of_classes(tmp_path: Path) -> None:
    output = _saved(
        tmp_path, "model=transe", "model.decoder.norm=l1", "optimizer=adam", "optimizer.beta1=0.8"
    )
    again = load_config([output, "resume=true"])
    assert again.model.decoder == Component("transe", {"norm": "l1"})
    assert dict(again.optimizer.arguments) == {"beta1": 0.8}
    assert load_config([output, "resume=true", "loss=margin"]).loss == Component("margin")


def test_resume_changes_an_argument_of_the_class_that_the_run_has(tmp_path: Path) -> None:
    output = _saved(
        tmp_path,
        "model=rescal",
        "model.decoder.block=2",
        "model.init._target_=uniform",
        "model.init.scale=0.5",
        "loss=logistic",
        "loss.margin=1",
    )
    words = ["model.decoder.block=4", "model.init.scale=0.25", "loss.adversarial_temperature=2"]
    again = load_config([output, "resume=true", *words])
    assert again.model.decoder == Component("rescal", {"block": 4})
    assert again.model.init == Component("uniform", {"scale": 0.25})
    assert again.loss == Component("logistic", {"margin": 1, "adversarial_temperature": 2})
    assert load_config([output, "resume=true", "model=transe"]).model.decoder == Component("transe")


def _experiment(folder: Path, name: str, text: str) -> None:
    (folder / "experiment").mkdir(parents=True, exist_ok=True)
    (folder / "experiment" / f"{name}.yaml").write_text(f"# @package _global_\n{text}")


def test_resume_takes_what_an_experiment_sets_even_if_it_is_the_default(tmp_path: Path) -> None:
    default = load_config(["graph=g"])
    given = ["negatives.count=100", "negatives.chunks=2", "training.seed=3", "optimizer.lr=0.3"]
    output = _saved(tmp_path, *given, "loss=margin", "loss.margin=2", "optimizer=adam")
    mine = tmp_path / "mine"
    _experiment(mine, "plain", f"negatives: {{count: {default.negatives.count}}}\n")
    _experiment(mine, "above", "defaults: [plain]\ntraining: {epochs: 9}\n")
    _experiment(mine, "classes", "loss: {_target_: softmax}\ndefaults: [override /optimizer: adagrad]\n")
    for name in ("plain", "above"):
        again = load_config([output, "resume=true", f"experiment={name}"], config_dir=mine)
        assert (again.negatives.count, again.negatives.chunks, again.training.seed) == (500, 2, 3)
        assert (again.loss, again.optimizer.name) == (Component("margin", {"margin": 2}), "adam")
    again = load_config([output, "resume=true", "experiment=classes"], config_dir=mine)
    assert (again.loss, again.optimizer) == (default.loss, default.optimizer)
    assert again.negatives.count == 100
    again = load_config([output, "resume=true", "experiment=plain", "negatives.count=200"], config_dir=mine)
    assert again.negatives.count == 200


def test_resume_without_a_run(tmp_path: Path) -> None:
    assert load_config([f"output={tmp_path}", "resume=true", "graph=g"]).resume
    assert "output" in _error("resume=true")
    (tmp_path / "config.yaml").write_text("nonsense: 1\n")
    assert "nonsense" in _error("resume=true", f"output={tmp_path}")


# ------------------------------------------------------------------ what is refused

BAD: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("model.dimm=3",), ("model.dimm", "did you mean model.dim?")),
    (("batch_size=3",), ("batch_size", "did you mean training.batch_size?")),
    (("modl.dim=3",), ("modl.dim", "did you mean model.dim?")),
    (("zzz=3",), ("zzz", "graph")),
    (("+model.extra=3",), ("model.extra",)),
    (("model.dim=abc",), ("model.dim='abc'", "integer")),
    (("model.dim=1.5",), ("model.dim=1.5", "integer")),
    (("model.dim=true",), ("model.dim=True", "integer")),
    (("model.dim=null",), ("model.dim=null", "integer")),
    (("model.dim=[1]",), ("model.dim",)),
    (("model.dim=0",), ("model.dim=0", "at least 1")),
    (("model.dim=63",), ("model.dim=63", "even")),
    (("model=rotate", "model.dim=7"), ("model.dim=7", "even")),
    (("model.reciprocal=yes",), ("model.reciprocal='yes'", "true or false")),
    (("model.reciprocal=1",), ("model.reciprocal=1", "true or false")),
    (("model.node_dropout=1",), ("model.node_dropout=1", "below 1")),
    (("model.node_dropout=-0.1",), ("model.node_dropout=-0.1", "at least 0")),
    (("model.decoder=[1]",), ("model.decoder",)),
    (("model.decoder={a: 1}",), ("model.decoder", "_target_")),
    (("training.batch_size=0",), ("training.batch_size=0", "at least 1")),
    (("training.batch_size=-1",), ("training.batch_size=-1", "at least 1")),
    (("training.epochs=0",), ("training.epochs=0",)),
    (("training.seed=-1",), ("training.seed=-1", "from 0")),
    (("training=3",), ("training",)),
    (("storage.partitions=8", "storage.capacity=9"), ("storage.capacity=9", "8")),
    (("storage.partitions=8", "storage.capacity=1"), ("storage.capacity=1", "from 2")),
    (("storage.capacity=0",), ("storage.capacity=0", "at least 1")),
    (("storage.device=tpu",), ("storage.device=tpu", "cpu, cuda")),
    (("storage.device=cuda", "device=cpu"), ("storage.device=cuda", "device=cuda")),
    (("negatives.chunks=3",), ("negatives.chunks=3", "1024")),
    (("negatives.chunks=2048",), ("negatives.chunks=2048", "1024")),
    (("negatives.count=0",), ("negatives.count=0",)),
    (("negatives.degree_fraction=1.1",), ("negatives.degree_fraction=1.1", "to 1")),
    (("optimizer.lr=0",), ("optimizer.lr=0", "above 0")),
    (("optimizer.lr=nan",), ("optimizer.lr=nan",)),
    (("optimizer.lr=inf",), ("optimizer.lr=inf",)),
    (("training.clip_norm=1e39",), ("training.clip_norm=1e+39", "above 0 that float32 holds")),
    (("training.clip_norm=1e-46",), ("training.clip_norm=1e-46", "above 0 that float32 holds")),
    (("training.regularizer.n3=1e39",), ("training.regularizer.n3=1e+39", "at least 0 that float32 holds")),
    (("training.regularizer.n3_relation=1e39",), ("training.regularizer.n3_relation=1e+39",)),
    (("training.regularizer.l2=1e39",), ("training.regularizer.l2=1e+39",)),
    (("training.regularizer.l2_relation=1e39",), ("training.regularizer.l2_relation=1e+39",)),
    (("ordering.name=bta",), ("ordering.name=bta", "did you mean beta?")),
    (("pipeline.mode=thread",), ("pipeline.mode=thread", "did you mean threaded?")),
    (("pipeline.max_in_flight=0",), ("pipeline.max_in_flight=0",)),
    (("pipeline.compute_threads=1025",), ("pipeline.compute_threads=1025", "from 1 to 1024")),
    (("pipeline.compute_workers=1025",), ("pipeline.compute_workers=1025", "from 1 to 1024")),
    (("checkpoint.every_seconds=0",), ("checkpoint.every_seconds=0",)),
    (("evaluation.ks=[1,0]",), ("evaluation.ks=[1, 0]", "at least 1")),
    (("evaluation.ks=[]",), ("evaluation.ks",)),
    (("device=tpu",), ("device=tpu", "auto, cpu, cuda")),
    (("loss=margn",), ("loss=margn", "did you mean margin?")),
    (("model=complx",), ("model=complx", "did you mean complex?")),
    (("experiment=nope",), ("experiment=nope", "demo")),
    (("loss={_target_:a.B}",), ("loss", "loss.argument")),
    (("loss=null",), ("loss=null", "logistic, margin, softmax")),
    (("training=null",), ("training=null", "default")),
    (("loss=[1]",), ("loss=[1]", "one of logistic, margin, softmax; a class")),
    (("loss=[softmax]",), ("loss=[softmax]", "one of logistic, margin, softmax; did")),
    (("loss=",), ("loss= ", "one of logistic, margin, softmax; a class")),
    (("loss=''",), ("loss= ", "one of logistic, margin, softmax; a class")),
    (("loss=???",), ("loss=???", "one of logistic, margin, softmax; a class")),
    (("optimizer=[]",), ("optimizer=[]", "one of adagrad, adagrad_row, adam, sgd; a class")),
    (("storage={partitions: 4}",), ("storage={partitions: 4}", "one of cuda, default")),
    (("training=marius_py.nn:Adam",), ("training=marius_py.nn:Adam", "one of default")),
    (("experiment=[]",), ("experiment=[]", "demo")),
    (("experiment=[demo,nope]",), ("experiment=nope", "demo")),
    (("model.dim",), ("model.dim", "key=value")),
    (("=3",), ("=3", "key=value")),
    (("model.dim={",), ("model.dim",)),
    (("graph=${nosuch}",), ("nosuch",)),
    (("graph=",), ("graph",)),
]


@pytest.mark.parametrize(("words", "parts_of_message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_settings_are_refused_by_name(words: tuple[str, ...], parts_of_message: tuple[str, ...]) -> None:
    given_graph = () if any(word.startswith("graph=") for word in words) else ("graph=g",)
    message = _error(*given_graph, *words)
    for part in parts_of_message:
        assert part in message


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "input.train"),
        (("input.train=f",), "output"),
        (("dataset=fb15k_237", "input.train=f", "output=o"), "dataset"),
        (("dataset=fb15k_237", "input.valid=f", "output=o"), "input.valid=f"),
        (("dataset=fb15k_237", "input.test=f", "output=o"), "input.test=f"),
        (("dataset=fb15k_237", "input.format=csv", "output=o"), "input.format=csv"),
        (("dataset=fb15k_237", "input.split=[0.8,0.1,0.1]", "output=o"), "input.split=[0.8, 0.1, 0.1]"),
        (("dataset=fb15k_237", "input.undirected=true", "output=o"), "input.undirected=True"),
        (("dataset=fb15k",), "did you mean fb15k_237?"),
        (("input.train=f", "output=o", "partitions=0"), "partitions=0"),
        (("input.train=f", "output=o", "input.columns=[a,b,c,d]"), "input.columns"),
        (("input.train=f", "output=o", "input.columns=[a,a]"), "twice"),
        (("input.train=f", "output=o", "input.delimiter=ab"), "one character"),
        (("input.train=f", "output=o", "input.split=[0.5,0.4]"), "input.split"),
        (("input.train=f", "output=o", "input.split=[0.5,0.4,0.2]"), "add up to 1"),
        (("input.train=f", "input.test=g", "output=o", "input.split=[0.8,0.1,0.1]"), "input.test"),
        (("input.train=f", "output=o", "input.format=xls"), "input.format=xls"),
        (("input.train=f", "output=o", "input.trian=g"), "did you mean input.train?"),
        (("dataset.name=fb15k_237", "output=o"), "dataset.name=fb15k_237 lacks dataset.url, dataset.archive"),
        (("dataset.name=fb15k_237", "output=o"), "chosen by its file, dataset=fb15k_237"),
        (("dataset=wn18rr", "dataset.sha256=null", "output=o"), "lacks dataset.sha256: "),
        (
            ("dataset=wn18rr", "dataset.sha256=[a]", "output=o"),
            "dataset.sha256 has 1 entries: it takes three",
        ),
    ],
)
def test_bad_inputs_are_refused(words: tuple[str, ...], part: str) -> None:
    assert part in _error(*words, kind=PrepareConfig)


def test_how_files_of_a_data_set_are_read_can_be_said() -> None:
    words = ["dataset=fb15k_237", "input.header=false", "input.format=tsv", "output=o"]
    assert compose(PrepareConfig, words).input.header is False


def test_an_evaluation_has_as_many_threads_as_training() -> None:
    assert "compute_threads=1025 is out of range: it takes an integer from 1 to 1024" in _error(
        "run=r", "compute_threads=1025", kind=EvaluateConfig
    )


def test_run_is_needed() -> None:
    assert "run" in _error(kind=EvaluateConfig)


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


@given(st.integers(-3, 40), st.integers(-3, 40))
def test_buffers_that_hold_a_bucket_are_allowed(p: int, c: int) -> None:
    possible = 1 <= c <= p and (c >= 2 or p == 1)
    if possible:
        check_buffer(p, c)
    elif p >= 1 and c >= 1:
        with pytest.raises(ConfigError, match=r"storage\.capacity"):
            check_buffer(p, c)


@given(
    st.integers(-(2**70), 2**70)
    | st.floats()
    | st.booleans()
    | st.none()
    | st.text()
    | st.lists(st.integers())
)
def test_a_value_is_taken_or_refused_with_one_line(value: Any) -> None:
    for key, owner, item in keys_of(TrainConfig):
        section, _, name = key.rpartition(".")
        try:
            built = build(owner, {name: value}, section)
        except ConfigError as error:
            refused = str(error)
        else:
            refused = key if getattr(built, item.name) is not None or value is None else ""
        assert key in refused


# ------------------------------------------------------------------ classes


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
    output = _saved(tmp_path, "model.decoder=rotate", "model.decoder.norm=moduli", "model.dim=6")
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


def test_regularizers_with_a_weight_are_made() -> None:
    assert make_components(load_config(["graph=g", "model=transe"])).regularizers == ()
    words = ["graph=g", "training.regularizer.n3=0.1", "training.regularizer.l2_relation=0.2"]
    n3, l2 = make_components(load_config(words)).regularizers
    assert (n3.weight, n3.relation_weight, l2.weight, l2.relation_weight) == (0.1, 0.1, 0.0, 0.2)
    words = ["graph=g", "training.regularizer.l2=0.1", "training.regularizer.l2_relation=0"]
    assert regularization_of(load_config(words)).l2 == (0.1, 0)


@pytest.mark.parametrize(
    ("words", "dropout", "n3"),
    [
        ([], (0, 0), (0.1, 0.1)),
        (["model=distmult"], (0, 0), (0.1, 0.1)),
        (["model=rescal"], (0, 0), (0.1, 0.1)),
        (["model=rotate"], (0, 0), (0, 0)),
        (["negatives=k_vs_all"], (0, 0), (0.05, 0.05)),
        (["model=rescal", "loss=logistic"], (0, 0), (0, 0)),
        (["loss=logistic"], (0.3, 0.2), (0, 0)),
        (["model=distmult", "loss=logistic"], (0.3, 0.2), (0, 0)),
        (["loss=logistic", "training.regularizer.n3=0.01"], (0.3, 0.2), (0.01, 0.01)),
        (["model.relation_dropout=0.1"], (0, 0.1), (0, 0)),
        (["model.node_dropout=0", "training.regularizer.n3_relation=0"], (0, 0), (0.1, 0)),
        (["training.regularizer.n3=0"], (0, 0), (0, 0)),
        (["training.regularizer.l2=0.01"], (0, 0), (0, 0)),
        (["training.regularizer.l2=0.01", "training.regularizer.l2_relation=0"], (0, 0), (0, 0)),
        (["training.regularizer.l2_relation=0.01"], (0, 0), (0, 0)),
        (["experiment=fb15k_237/complex_dropout"], (0.3, 0.2), (0, 0)),
    ],
)
def test_regularization_suits_decoder_and_loss(
    words: list[str], dropout: tuple[float, float], n3: tuple[float, float]
) -> None:
    found = regularization_of(load_config(["graph=g", *words]))
    assert ((found.node_dropout, found.relation_dropout), found.n3) == (dropout, n3)


def test_k_vs_all_has_a_name() -> None:
    negatives = load_config(["graph=g", "negatives=k_vs_all"]).negatives
    assert negatives.sampler.target == "all"
    assert negatives.per_question
    assert not negatives.mask_known
    with pytest.raises(ConfigError, match=r"negatives\.per_question=true .* storage\.device=cuda"):
        load_config(["graph=g", "negatives=k_vs_all", "storage.device=cuda"])


@pytest.mark.parametrize(
    ("words", "edges", "begun", "n3"),
    [
        ([], 18_000, None, 0.1),
        ([], 50_000, None, 0.1),
        ([], 12_000, None, 0.15),
        ([], 13_000, None, 0.138),
        ([], 3_000, None, 0.2),
        (["training.batch_size=150"], 3_000, None, 0.15),  # 400 batches
        (["training.epochs=13"], 3_000, None, 0.169),
        (["training.batch_size=300"], 3_000, None, 0.1),
        (["training.epochs=1"], 50_000, None, 0.0224),
        (["training.epochs=5"], 50_000, None, 0.05),
        (["training.epochs=40"], 50_000, None, 0.1),
        (["training.epochs=1"], 3_000, None, 0.0447),
        (["training.epochs=5"], 3_000, None, 0.1),
        (["training.epochs=5", "negatives=k_vs_all"], 50_000, None, 0.025),
        (["training.epochs=5", "training.regularizer.n3=0.1"], 50_000, None, 0.1),
        ([], 0, None, 0.1),
        (["training.regularizer.n3=0.03"], 3_000, None, 0.03),
        (["loss=logistic"], 3_000, None, 0),
        (["negatives=k_vs_all"], 3_000, None, 0.1),
        (["training.regularizer.n3=0.03"], 3_000, 0.15, 0.03),
        ([], 3_000, 0.15, 0.15),
        ([], 3_000, "null", 0.1),
        ([], 3_000, "nothing", 0.1),
        (["model.node_dropout=0.3"], 3_000, 0.15, 0),
        (["training.regularizer.l2=0.1"], 3_000, 0.15, 0),
    ],
)
def test_nodes_with_few_edges_are_regularized_more_and_short_runs_less(
    words: list[str], edges: int, begun: float | str | None, n3: float
) -> None:
    saved = {"nothing": {}, "null": {"training": {"regularizer": {"n3": None}}}}.get(
        begun, {"training": {"regularizer": {"n3": begun}}} if begun else None
    )
    config = with_penalties(load_config(["graph=g", "training.batch_size=75", *words]), 1000, edges, saved)
    assert config.training.regularizer.n3 == n3


BEGUN = ["training.epochs=80", "training.batch_size=75"]
GOES_ON: list[tuple[list[str], list[str], float, float]] = [
    ([], [], 0.2, 0.2),
    ([], ["loss=logistic"], 0.2, 0),
    ([], ["training.regularizer.l2=0.01"], 0.2, 0),
    ([], ["model.node_dropout=0.1"], 0.2, 0),
    ([], ["training.regularizer.n3=0.03"], 0.2, 0.03),
    (["training.epochs=1"], [], 0.0447, 0.0447),
    (["training.epochs=1"], ["training.epochs=80"], 0.0447, 0.2),
    (["training.epochs=1", "training.regularizer.n3=0.03"], ["training.epochs=80"], 0.03, 0.03),
    (["training.regularizer.n3=0.2"], ["training.regularizer.l2=0.01"], 0.2, 0.2),
    (["training.regularizer.l2=0.01"], [], 0, 0),
    (["training.regularizer.l2=0.01"], ["training.regularizer.l2=0"], 0, 0.2),
    (["training.regularizer.n3=0"], ["training.regularizer.l2=0"], 0, 0),
]


@pytest.mark.parametrize(("words", "then", "before", "after"), GOES_ON)
def test_penalties_of_a_run_that_goes_on_suit_its_settings(
    words: list[str], then: list[str], before: float, after: float, tmp_path: Path
) -> None:
    begun = with_penalties(load_config(["graph=g", *BEGUN, *words]), 1000, 3000, None)
    assert begun.training.regularizer.n3 == before
    for _ in range(2):  # what is saved of the run that has gone on says the same
        write_yaml(plain(begun), tmp_path / "config.yaml")
        saved = read_yaml(tmp_path / "config.yaml")
        again = load_config([f"output={tmp_path}", "resume=true", *then])
        begun = with_penalties(again, 1000, 3000, saved)
        assert begun.training.regularizer.n3 == after


@pytest.mark.parametrize(
    ("words", "nodes", "n3", "of_relations"),
    [
        ([], 15_000, 0.1, None),
        ([], 60_000, 0.1, 0.0125),
        (["training.epochs=5"], 60_000, 0.05, 0.00625),
        (["negatives=k_vs_all"], 60_000, 0.05, 0.00625),
        (["training.regularizer.n3_relation=0.12345"], 60_000, 0.1, 0.12345),
        (["training.regularizer.n3=0.1"], 60_000, 0.1, None),
        (["loss=logistic"], 60_000, 0, None),
        (["training.regularizer.l2=0.1"], 60_000, 0, None),
    ],
)
def test_relations_of_many_nodes_are_regularized_less(
    words: list[str], nodes: int, n3: float, of_relations: float | None
) -> None:
    found = with_penalties(load_config(["graph=g", *words]), nodes, 18 * nodes, None).training.regularizer
    assert (found.n3, found.n3_relation) == (n3, of_relations)


RELATIONS_GO_ON: list[tuple[list[str], list[str], tuple[float, float | None], tuple[float, float | None]]] = [
    ([], [], (0.1, 0.0125), (0.1, 0.0125)),
    (["training.epochs=5"], ["training.epochs=20"], (0.05, 0.00625), (0.1, 0.0125)),
    ([], ["training.regularizer.n3=0.03"], (0.1, 0.0125), (0.03, None)),
    ([], ["training.regularizer.n3_relation=0.05"], (0.1, 0.0125), (0.1, 0.05)),
    ([], ["loss=logistic"], (0.1, 0.0125), (0, None)),
    (["training.regularizer.n3_relation=0.05"], ["training.epochs=5"], (0.1, 0.05), (0.05, 0.05)),
    (["training.regularizer.n3_relation=0.05"], [], (0.1, 0.05), (0.1, 0.05)),
]


@pytest.mark.parametrize(("words", "then", "before", "after"), RELATIONS_GO_ON)
def test_penalties_of_relations_go_on_as_those_of_nodes(
    words: list[str],
    then: list[str],
    before: tuple[float, float | None],
    after: tuple[float, float | None],
    tmp_path: Path,
) -> None:
    begun = with_penalties(load_config(["graph=g", *words]), 60_000, 60_000 * 18, None)
    assert (begun.training.regularizer.n3, begun.training.regularizer.n3_relation) == before
    for _ in range(2):  # what is saved of the run that has gone on says the same
        write_yaml(plain(begun), tmp_path / "config.yaml")
        saved = read_yaml(tmp_path / "config.yaml")
        begun = with_penalties(
            load_config([f"output={tmp_path}", "resume=true", *then]), 60_000, 60_000 * 18, saved
        )
        assert (begun.training.regularizer.n3, begun.training.regularizer.n3_relation) == after


def test_a_run_begun_when_relations_counted_as_nodes_do_goes_on_so(tmp_path: Path) -> None:
    begun = with_penalties(load_config(["graph=g"]), 1000, 18_000, None)
    write_yaml(plain(begun), tmp_path / "config.yaml")
    again = load_config([f"output={tmp_path}", "resume=true"])
    found = with_penalties(again, 60_000, 60_000 * 18, read_yaml(tmp_path / "config.yaml"))
    assert (found.training.regularizer.n3, found.training.regularizer.n3_relation) == (0.1, None)


def test_runs_that_do_not_say_whether_n3_was_automatic_keep_their_number(tmp_path: Path) -> None:
    output = _saved(tmp_path, "training.regularizer.n3=0.1")
    assert "n3_automatic" not in (tmp_path / "config.yaml").read_text()
    assert load_config([output, "resume=true", "loss=logistic"]).training.regularizer.n3 == 0.1


def test_the_mapping_of_a_run_gives_its_number_of_n3() -> None:
    config = with_penalties(load_config(["graph=g", *BEGUN]), 1000, 3000, None)
    assert plain(config)["training"]["regularizer"]["n3_automatic"]
    assert build(TrainConfig, plain(config)) == config
    again = load_config(words_of(plain(config))).training.regularizer
    assert (again.n3, again.n3_automatic) == (0.2, False)
    assert "unknown key" in _error("graph=g", "training.regularizer.n3_automatic=true")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["negatives=all", "negatives.count=3"], "negatives.count=3 means nothing to negatives.sampler=all"),
        (["negatives=all", "negatives.chunks=4"], "negatives.chunks=4 means nothing to negatives.sampler="),
        (
            ["model=dot", "model.relation_dropout=0.1"],
            "model.relation_dropout=0.1 means nothing to model.decoder=dot",
        ),
        (
            ["model.decoder=dot", "training.regularizer.n3_relation=0.1"],
            "training.regularizer.n3_relation=0.1 means nothing to model.decoder=dot",
        ),
        (
            ["model.decoder=dot", "training.regularizer.l2_relation=0.1"],
            "training.regularizer.l2_relation=0.1 means nothing to model.decoder=dot",
        ),
    ],
)
def test_settings_that_would_do_nothing_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_components(load_config(["graph=g", *words]))
    make_components(load_config(["graph=g", words[0], "model.relation_dropout=0"]))


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
        (["loss=userparts.MyLoss", "loss.alfa=1"], "did you mean alpha"),
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


# ------------------------------------------------------------------ what is derived


@pytest.mark.parametrize("kind", [kind for kind, _ in COMMANDS])
def test_help_shows_every_key_with_unit_and_range(kind: type[Any]) -> None:
    text = help_text(kind, "marius-x", "Does x.", ("marius-x a=b",))
    for key, _, _ in keys_of(kind):
        assert f"  {key}=" in text
    assert max(len(line) for line in text.splitlines()) <= 100


def test_the_keys_that_an_error_lists_can_be_given() -> None:
    listed = _error("graph=g", "optimizer.schedule.foo=1").partition("(allowed here: ")[2].rstrip(")")
    keys = [key for key, _, _ in keys_of(TrainConfig) if key.startswith("optimizer.")]
    assert listed.split(", ") == keys
    assert "optimizer.arguments" not in keys


def test_every_field_is_declared_with_a_text() -> None:
    def walk(kind: type[Any]) -> None:
        for item in fields(kind):
            hint = type_of(kind, item.name)
            if is_dataclass(hint) and hint is not Component:
                walk(hint)  # type: ignore[arg-type]
            elif not is_note(item):
                assert item.metadata["text"]

    for kind, _ in COMMANDS:
        walk(kind)


def test_sweeps_leave_lists_of_values_alone() -> None:
    words = ["graph=g", "model.dim=64,128", "loss=softmax,margin", "output=a,b"]
    assert prepare_overrides(TrainConfig, words, sweep=True) == words


@pytest.mark.parametrize(
    ("value", "mappings"),
    [
        ("rotate,transe", "{_target_:rotate},{_target_:transe}"),
        ("rotate, 'transe'", "{_target_:rotate},{_target_:transe}"),
        ("choice(rotate,transe)", "choice({_target_:rotate},{_target_:transe})"),
        ("rotate,{_target_:transe,norm:l1}", "{_target_:rotate},{_target_:transe,norm:l1}"),
        ('"rotate"', "{_target_:rotate}"),
    ],
)
def test_sweeps_of_a_class_take_its_arguments(value: str, mappings: str) -> None:
    words = ["graph=g", "model.decoder.norm=l2", f"model.decoder={value}"]
    assert prepare_overrides(TrainConfig, words, sweep=True) == [
        "~model.decoder",
        f"+model.decoder={mappings}",
        "graph=g",
        "++model.decoder.norm=l2",
    ]


@pytest.mark.parametrize("value", ["softmax,margn", "softmax,null", "choice(softmax,mypkg.MyLoss)"])
def test_sweeps_of_what_no_file_is_are_refused_before_a_job(value: str) -> None:
    with pytest.raises(ConfigError, match=r"loss=.* takes one of .*loss=custom loss\._target_=mypkg"):
        prepare_overrides(TrainConfig, ["graph=g", f"loss={value}"], sweep=True)


def test_no_experiment_is_none() -> None:
    assert load_config(["graph=g", "experiment=null"]) == load_config(["graph=g"])


def test_a_file_of_ones_own_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "broken.yaml").write_text("a: [1\nb: {")
    with pytest.raises(ConfigError, match=r"broken\.yaml.*line 2"):
        load_config(["graph=g", "experiment=broken"], config_dir=tmp_path)


@pytest.mark.parametrize("content", ["model: {dim: 16}\n", "", "# mine\n# @package _global_\ndevice: cpu\n"])
@pytest.mark.parametrize("name", ["mine", "sub/mine"])
def test_an_experiment_without_its_first_line_is_named_with_that_line(
    content: str, name: str, tmp_path: Path
) -> None:
    file = _written(tmp_path, content, name)
    with pytest.raises(ConfigError) as caught:
        load_config(["graph=g", f"experiment={name}"], config_dir=tmp_path)
    assert str(caught.value) == (
        f"{file} lacks the line `# @package _global_`, without which its settings are none of the run's: "
        "write it as the first line of the file"
    )


def test_an_experiment_may_be_of_one_section(tmp_path: Path) -> None:
    _written(tmp_path, "# @package model\ndim: 16\n")
    assert load_config(["graph=g", "experiment=mine"], config_dir=tmp_path).model.dim == 16


def test_a_file_of_ones_own_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    """Also where another file chooses it, and beside others that nobody chose."""
    _written(tmp_path, "# @package _global_\ndefaults: [/model: small]\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "other.yaml").write_bytes(b"# \xff\n")
    (tmp_path / "model" / "small.yaml").write_bytes("dim: 16\n# réglages\n".encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        load_config(["graph=g", "experiment=mine"], config_dir=tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/model/small.yaml is not UTF-8: line 2 holds the byte 0xe9; save the file as UTF-8"
    )


@pytest.mark.parametrize(
    ("default", "message"),
    [
        (
            "override /loss: nope",
            "loss=nope is unknown: it takes one of logistic, margin, softmax; a class of yours is named by "
            "loss: custom there, and its dotted path as loss._target_",
        ),
        (
            "override /storage@storage: [cudda]",
            "storage=cudda is unknown: it takes one of cuda, default; did",
        ),
        ("base_mine", "experiment=base_mine is unknown: it takes one of a_first, demo, "),
        ("/nosuch: one", "its defaults name nosuch/one, but there is no file nosuch/one.yaml"),
    ],
)
def test_a_default_that_is_no_file_is_named_with_the_file_that_has_it(
    default: str, message: str, tmp_path: Path
) -> None:
    text = f"# @package _global_\ndefaults:\n  - {default}\n"
    _written(tmp_path, text, "a_first")  # not chosen
    file = _written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(["graph=g", "experiment=mine"], config_dir=tmp_path)
    assert str(caught.value).startswith(f"{file}: {message}")
    assert "Config search path" not in str(caught.value)


def _written(folder: Path, content: str, name: str = "mine") -> Path:
    file = folder / "experiment" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


def test_a_folder_that_is_none_is_told_before_a_choice_that_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--config-dir {tmp_path}/absent is not a folder"):
        load_config(["graph=g", "experiment=mine"], config_dir=tmp_path / "absent")


@pytest.mark.parametrize(
    ("words", "sweep", "message"),
    [
        (["split=valid", "edges=f.tsv"], False, "split=valid is without effect beside edges=f.tsv, which is"),
        (["edges=f.tsv", "split=test"], False, "split=test is without effect"),
        (["split=valid,test", "edges=f.tsv"], True, "split=valid,test is without effect"),
        (
            ["candidates=5"],
            False,
            "candidates=5 is without effect: it is of mode=sampled, and ranks are full",
        ),
        (["mode=full", "candidates=1000"], False, "candidates=1000 is without effect"),
        (["mode=full", "candidates=5,6"], True, "candidates=5,6 is without effect"),
    ],
)
def test_settings_of_an_evaluation_without_effect_are_named(
    words: list[str],
    sweep: bool,
    message: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    warn_of_idle_words(["run=r", *words], sweep=sweep)
    assert {one.getMessage()[: len(message)] for one in caplog.records} == {message}


def test_an_evaluation_that_is_refused_is_told_of_nothing_else(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    with pytest.raises(ConfigError, match=r"candidates=-1 is out of range"):
        compose(EvaluateConfig, ["run=r", "candidates=-1"])
    assert not caplog.records
    compose(EvaluateConfig, ["run=r", "candidates=5"])
    assert [one.getMessage()[:32] for one in caplog.records] == ["candidates=5 is without effect: "]


@pytest.mark.parametrize("word", ["training.epochs={}", "evaluation.ks=[1,{}]", "loss.margin={}"])
def test_a_number_that_python_does_not_read_is_refused_by_its_key(word: str) -> None:
    key = word.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"{key} has a number of 4301 digits: allowed are up to 4300"):
        load_config(["graph=g", "loss=logistic", word.format("9" * 4301)])


@pytest.mark.parametrize(
    ("words", "sweep"),
    [
        (["edges=f.tsv"], False),
        (["split=valid", "edges=null"], False),
        (["split=valid", "edges=null,f.tsv"], True),
        (["candidates=5", "mode=sampled"], False),
        (["candidates=5", "mode=full,sampled"], True),
    ],
)
def test_settings_of_an_evaluation_with_effect_are_taken(
    words: list[str], sweep: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    assert len(prepare_overrides(EvaluateConfig, ["run=r", *words], sweep=sweep)) == len(words) + 1
    warn_of_idle_words(["run=r", *words], sweep=sweep)
    if not sweep:
        assert compose(EvaluateConfig, ["run=r", *words]).run == "r"
    assert not caplog.records


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer.schedule.floor=0.5"], "optimizer.schedule.floor=0.5 is without effect: optimizer.sch"),
        (
            ["optimizer.schedule.reduction=0.1"],
            "optimizer.schedule.reduction=0.1 is without effect: it is of",
        ),
        (
            ["optimizer.schedule.name=cosine", "optimizer.schedule.patience=3"],
            "optimizer.schedule.patience=3 is without effect: it is of optimizer.schedule.name=plateau, and "
            "the run's is cosine",
        ),
        (["evaluation.candidates=7"], "evaluation.candidates=7 is without effect: it is of evaluation.mode="),
        (
            ["negatives=degree", "negatives.count=1", "negatives.degree_fraction=0.5"],
            "negatives.degree_fraction=0.5 is without effect: of 1 to a chunk and side, none is drawn by",
        ),
    ],
)
def test_settings_of_a_run_without_effect_are_named(
    words: list[str], message: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    load_config(["graph=g", *words])
    assert {one.getMessage()[: len(message)] for one in caplog.records} == {message}


@pytest.mark.parametrize(
    "words",
    [
        ["optimizer.schedule.floor=0", "optimizer.schedule.patience=1", "evaluation.candidates=1000"],
        ["optimizer.schedule.floor=0.5", "optimizer.schedule.name=linear"],
        ["optimizer.schedule.reduction=0.1", "optimizer.schedule.name=plateau"],
        ["evaluation.candidates=7", "evaluation=sampled"],
        ["evaluation.candidates=7", "evaluation.valid.mode=candidates"],
        ["negatives.degree_fraction=0.5", "negatives.count=1", "negatives.count_tail=2"],
        *([f"experiment={name}"] for name in group_options(conf_dir(), "experiment")),
    ],
)
def test_settings_of_a_run_with_effect_are_taken(
    words: list[str],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    write_yaml(plain(load_config(["graph=g", *words])), tmp_path / "config.yaml")
    load_config(words_of(read_yaml(tmp_path / "config.yaml")))
    assert not caplog.records


def test_settings_without_effect_are_told_beside_those_of_the_run_that_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    idle = TrainConfig(optimizer=OptimizerConfig(schedule=ScheduleConfig(floor=0.5)), graph="g")
    write_yaml(plain(idle), tmp_path / "config.yaml")
    monkeypatch.setattr(logging.getLogger("marius_py"), "propagate", True)
    resumed = [f"output={tmp_path}", "resume=true"]
    assert load_config(resumed).optimizer.schedule.floor == 0.5
    load_config([*resumed, "optimizer.schedule.name=cosine"])
    assert not caplog.records
    load_config([*resumed, "optimizer.schedule.floor=0.2"])
    assert "optimizer.schedule.floor=0.2 is without effect" in caplog.text


def test_words_of_a_job_are_those_of_its_user() -> None:
    given = [
        "graph=g h,g i",
        "model.decoder=rotate,transe",
        "model.decoder.norm=l2",
        "loss=mypkg.MyLoss",
        "hydra/launcher=basic",
    ]
    prepared = prepare_overrides(TrainConfig, given, sweep=True)
    job = ["graph=g\\ i", "~model.decoder=null", "+model.decoder={_target_:transe}", "optimizer.lr=0.5"]
    assert job_words(TrainConfig, given, prepared, {"graph", "model.decoder"}, job) == [
        "graph=g i",
        "model.decoder=transe",
        "model.decoder.norm=l2",
        "loss=mypkg.MyLoss",
        "optimizer.lr=0.5",
    ]


@pytest.mark.parametrize("word", ["training.patience=3", "optimizer.schedule.name=plateau"])
def test_what_goes_by_validation_needs_it(word: str) -> None:
    assert load_config(["graph=g", word]).training.valid_every > 0
    with pytest.raises(ConfigError, match="valid_every"):
        load_config(["graph=g", word, "training.valid_every=0"])


def test_the_schedule_is_a_section_of_the_optimizer() -> None:
    words = ["optimizer=adam", "optimizer.schedule.name=cosine", "optimizer.schedule.warmup=1.5"]
    config = load_config(["graph=g", *words, "training.epochs=7"])
    rate = make_components(config).rate
    assert (type(rate).__name__, rate.epochs, rate.warmup) == ("CosineRate", 7, 1.5)
    assert config.optimizer.arguments == {}
    with pytest.raises(ConfigError, match=r"optimizer\.schedule\.warmup"):
        load_config(["graph=g", "optimizer.schedule.warm_up=1"])


def test_what_sides_and_candidates_are_drawn() -> None:
    config = load_config(["graph=g", "negatives.count=50", "negatives.count_head=20"])
    sampler = make_components(config).sampler
    assert isinstance(sampler, UniformNegatives)
    assert sampler.counts == {"head": 20, "tail": 50}
    assert isinstance(make_components(load_config(["graph=g", "negatives=all"])).sampler, AllNegatives)
    smooth = make_components(load_config(["graph=g", "loss.smoothing=0.1"])).loss
    assert isinstance(smooth, SoftmaxLoss)
    assert smooth.smoothing == 0.1
    with pytest.raises(ConfigError, match=r"negatives\.count_tail"):
        load_config(["graph=g", "negatives.count_tail=0"])


def test_ranges_and_arrays_are_lists():
    for ks in (range(1, 4), np.array([1, 2, 3]), torch.tensor([1, 2, 3]), [1, np.int64(2), 3]):
        words = words_of({"evaluation": {"ks": ks}, "model.dim": np.int32(8), "model.reciprocal": np.True_})
        config = load_config(words)
        assert (config.evaluation.ks, config.model.dim, config.model.reciprocal) == ((1, 2, 3), 8, True)
        assert type(config.evaluation.ks[1]) is int


def test_of_a_key_that_is_given_twice_the_latter_counts():
    base = {"model": {"dim": 16}}
    assert load_config(words_of({**base, "model.dim": 32})).model.dim == 32
    assert load_config(words_of({"model.dim": 32, **base})).model.dim == 16


@pytest.mark.parametrize("word", ["~model.dim", "~optimizer", "~graph=g", "~model.decoder.norm"])
def test_settings_cannot_be_removed(word: str) -> None:
    with pytest.raises(ConfigError, match="settings cannot be removed; leave the word out for the default"):
        load_config(["graph=g", word])


@pytest.mark.parametrize("key", ["optimizer.lr", "negatives.degree_fraction", "training.regularizer.l2"])
def test_integers_that_no_float_holds_are_out_of_range(key: str) -> None:
    """They ended in an OverflowError, which names neither key nor value."""
    assert re.match(f"{key}=9+ is out of range: it takes a number", _error(f"{key}={'9' * 400}"))


@pytest.mark.parametrize("key", ["negatives.count", "evaluation.memory_bytes"])
def test_integers_that_no_array_holds_are_out_of_range(key: str) -> None:
    """Of the first the counts failed at once, of the second the validation after the first epochs."""
    said = f"{key}={2**63} is out of range: it takes an integer at least "
    assert _error(f"{key}={2**63}").startswith(said)
    assert _error(f"{key}={2**63}").endswith(", below 2^63")
    load_config([f"{key}={2**63 - 1}"])


@pytest.mark.parametrize(
    ("word", "takes"),
    [
        ("model.decoder=[]", "a name, a dotted path or a mapping with _target_"),
        ("negatives.sampler=[uniform]", "a name, a dotted path or a mapping with _target_"),
        ("trackers={a: 1}", "a list of strings"),
        ("evaluation.ks={a: 1}", "a list of integers at least 1 (ranks)"),
    ],
)
def test_a_list_for_a_mapping_is_refused_in_words_of_the_key(word: str, takes: str) -> None:
    """Hydra says that it cannot merge DictConfig with ListConfig."""
    assert _error(word) == f"{word} has the wrong type: it takes {takes}"
