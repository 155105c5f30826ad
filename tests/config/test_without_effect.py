"""Settings that others leave without effect are named, once they are accepted."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from marius_py.config import (
    EvaluateConfig,
    OptimizerConfig,
    TrainConfig,
    compose,
    conf_dir,
    load_config,
    plain,
    read_yaml,
    write_yaml,
)
from marius_py.config.groups import group_options
from marius_py.config.learning_schema import ScheduleConfig
from marius_py.config.overrides import prepare_overrides, warn_of_idle_words
from marius_py.config.words import words_of
from marius_py.errors import ConfigError


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
        (["input.header=true"], False, "input.header=true is without effect: it is of edges=FILE, and edges"),
        (["edges=null", "input.comment=%"], False, "input.comment=% is without effect"),
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


@pytest.mark.parametrize(
    ("words", "sweep"),
    [
        (["edges=f.tsv"], False),
        (["split=valid", "edges=null"], False),
        (["split=valid", "edges=null,f.tsv"], True),
        (["candidates=5", "mode=sampled"], False),
        (["edges=f.tsv", "input.header=true"], False),
        (["edges=null,f.tsv", "input.header=true"], True),
        (["input.header=null"], False),
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
