"""Values put upon files that were composed before are those that hydra composes; all else is left to it."""

from __future__ import annotations

import pytest
from hydra.errors import HydraException

from marius_py.config import hydra_values
from marius_py.config.hydra_values import files_of, values_of

VALUES = [
    "model.decoder=distmult",  # a class with arguments gives way to a name
    "model.init=null",
    "optimizer.schedule=linear",
    "model.dim=+64",
    "model.reciprocal=off",
    "model.node_dropout=1e-1",
    "model.relation_dropout=nan",
    "negatives.count=1_000",
    "negatives.chunks=007",
    "negatives.degree_fraction=-inf",
    "negatives.count_head='5'",
    "negatives.count_tail=int(6.0)",
    "optimizer.lr=.5",
    "training.epochs=",
    "training.seed=0x10",
    "training.patience=a b",
    'graph="a, \\"b\\" = \\\\c\\\\"',
    "output=/tmp/x:@%+-?",
    "device= cpu ",
    "trackers=[csv, 1, 'x, y', null, 2.5, true]",
    "evaluation.ks=[]",
    "resume=true",
    "resume=false",  # the last one counts
]

CHOICES = ["model=transe", "storage=cuda", "experiment=[demo]"]

NOT_PLAIN = [
    "model.dim=1,2",
    "model.dim=choice(1,2)",
    "+model.dim=1",
    "++model.dim=1",
    "+model.more=1",
    "~model.dim",
    "+experiment=demo",
    "model.init={_target_: uniform}",
    "trackers=[{_target_: csv}]",
    "trackers=[[csv]]",
    "output=${graph}",
    "model=${oc.env:HOME}",
    "output=???",
    "more=1",
    "model.more=1",
    "model.dim.more=1",
    "hydra.verbose=true",
    "hydra/launcher=basic",
]


@pytest.mark.parametrize("choices", [[], CHOICES], ids=["defaults", "choices"])
def test_values_upon_files_are_as_hydra_composes_them(choices: list[str]) -> None:
    words = VALUES[:9] + choices + VALUES[9:]
    found = hydra_values._upon_files("train", words)
    expected = hydra_values._composed("train", words, None)
    assert repr(found) == repr(expected)  # of the same types; nan equals nothing
    assert repr(values_of("train", words, None)) == repr(expected)
    assert (expected["negatives"]["chunks"], expected["resume"]) == ("007", False)


@pytest.mark.parametrize("word", NOT_PLAIN)
def test_what_is_no_plain_value_of_a_key_that_is_there_is_left_to_hydra(word: str) -> None:
    assert hydra_values._upon_files("train", ["graph=g", word, "output=o"]) is None


@pytest.mark.parametrize("word", ["graph=[", "graph=a)", "model.dim='4"])
def test_what_cannot_be_read_is_told_as_by_hydra(word: str) -> None:
    with pytest.raises(HydraException) as expected:
        hydra_values._composed("train", [word], None)
    with pytest.raises(HydraException) as found:
        values_of("train", [word], None)
    assert (found.type, str(found.value)) == (expected.type, str(expected.value))


def test_what_was_composed_before_stays_as_it_was() -> None:
    first = values_of("train", ["model.dim=6"], None)
    first["model"]["dim"] = 5
    first["evaluation"]["ks"].append(7)
    second = values_of("train", [], None)
    assert second["model"]["dim"] != 5
    assert second["evaluation"]["ks"] == [1, 3, 10]


def test_a_choice_is_composed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    values_of("train", ["model=distmult"], None)
    monkeypatch.setattr(hydra_values, "_composed", None)
    assert values_of("train", ["model=distmult", "model.dim=32"], None)["model"]["dim"] == 32


def test_what_is_interpolated_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    for model in ("transe", "distmult"):
        monkeypatch.setenv("MODEL", model)
        words = ["model=${oc.env:MODEL}", "model.dim=8"]
        assert f"model/{model}" in {one.config_path for one in files_of("train", words, None).defaults}
        assert values_of("train", words, None)["model"]["decoder"] == {"_target_": model}


def test_files_do_not_depend_on_values() -> None:
    words = ["model=transe", "experiment=demo", "model.dim=4", "hydra/launcher=basic"]
    found = files_of("train", words, None)
    assert {"model/transe", "experiment/demo"} <= {one.config_path for one in found.defaults}
    assert {"model", "experiment", "hydra/launcher"} <= set(found.overrides.override_choices)
