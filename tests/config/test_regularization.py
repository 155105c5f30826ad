"""Penalties and dropout that are not given suit decoder, loss and graph, and stay a run's own."""

from __future__ import annotations

from pathlib import Path

import pytest

from marius_py.config import (
    TrainConfig,
    build,
    load_config,
    make_components,
    plain,
    read_yaml,
    write_yaml,
)
from marius_py.config.regularization import regularization_of, with_penalties
from marius_py.config.words import words_of
from tests.config.composing import error_of, saved_words


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
        (["model=dot"], (0, 0), (1, 1)),
        (["model=dot", "loss=logistic"], (0, 0), (0, 0)),
        (["model=dot", "negatives=k_vs_all"], (0, 0), (0.5, 0.5)),
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
        (["model=dot"], 3_000, None, 1),
        (["model=dot", "training.epochs=5"], 3_000, None, 0.5),
        (["model=dot", "training.epochs=1"], 50_000, None, 0.224),
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
        (["model=dot"], 60_000, 1, None),
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
    output = saved_words(tmp_path, "training.regularizer.n3=0.1")
    assert "n3_automatic" not in (tmp_path / "config.yaml").read_text()
    assert load_config([output, "resume=true", "loss=logistic"]).training.regularizer.n3 == 0.1


def test_the_mapping_of_a_run_gives_its_number_of_n3() -> None:
    config = with_penalties(load_config(["graph=g", *BEGUN]), 1000, 3000, None)
    assert plain(config)["training"]["regularizer"]["n3_automatic"]
    assert build(TrainConfig, plain(config)) == config
    again = load_config(words_of(plain(config))).training.regularizer
    assert (again.n3, again.n3_automatic) == (0.2, False)
    assert "unknown key" in error_of("graph=g", "training.regularizer.n3_automatic=true")
