"""Settings are saved and read back; a run that goes on has its own, but for what is given."""

from __future__ import annotations

from pathlib import Path

import pytest

from marius_py.config import (
    Component,
    TrainConfig,
    build,
    load_config,
    plain,
    read_yaml,
    write_yaml,
)
from marius_py.errors import FormatError
from tests.config.composing import error_of, saved_words


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


def test_resume_takes_the_settings_of_the_run(tmp_path: Path) -> None:
    output = saved_words(tmp_path, "model.dim=64", "model=distmult", "optimizer=adam", "training.epochs=7")
    again = load_config([output, "resume=true"])
    assert again.graph == "g"
    assert (again.model.dim, again.model.decoder.target, again.optimizer.name) == (64, "distmult", "adam")
    assert again.training.epochs == 7
    assert again.resume


def test_resume_takes_what_is_given_even_if_it_is_the_default(tmp_path: Path) -> None:
    output = saved_words(tmp_path, "model.dim=64", "training.epochs=7")
    again = load_config([output, "resume=true", "model.dim=128", "training.epochs=9"])
    assert (again.model.dim, again.training.epochs) == (128, 9)
    assert load_config([output, "resume=true", "model=complex"]).model.dim == 128


def test_resume_keeps_arguments_of_classes(tmp_path: Path) -> None:
    output = saved_words(
        tmp_path, "model=transe", "model.decoder.norm=l1", "optimizer=adam", "optimizer.beta1=0.8"
    )
    again = load_config([output, "resume=true"])
    assert again.model.decoder == Component("transe", {"norm": "l1"})
    assert dict(again.optimizer.arguments) == {"beta1": 0.8}
    assert load_config([output, "resume=true", "loss=margin"]).loss == Component("margin")


def test_resume_changes_an_argument_of_the_class_that_the_run_has(tmp_path: Path) -> None:
    output = saved_words(
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
    output = saved_words(tmp_path, *given, "loss=margin", "loss.margin=2", "optimizer=adam")
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
    assert "output" in error_of("resume=true")
    (tmp_path / "config.yaml").write_text("nonsense: 1\n")
    assert "nonsense" in error_of("resume=true", f"output={tmp_path}")
