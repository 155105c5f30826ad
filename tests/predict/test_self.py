"""A query's own node among its answers, in graphs without relations."""

import numpy as np
import pytest

import marius_py
from marius_py.errors import ConfigError
from marius_py.predict import fit_temperature
from tests.every_second import every_second

SMALL = {"model.decoder": "dot", "model.dim": 4, "training.epochs": 2, "training.valid_every": 0}


@pytest.mark.parametrize("loop", [False, True])
def test_own_node_is_offered_where_self_loops_are(tmp_path, loop):
    edges = np.array([[i, (i + 1) % 12] for i in range(12)] + [[3, 3]] * loop)
    graph = marius_py.graph_from(edges, tmp_path / "g", split=(1, 0, 0))
    with marius_py.train(graph.path, tmp_path / "r", SMALL) as run:
        for asked, given in (("tail", "head"), ("head", "tail")):
            for known in (False, True):
                found = {
                    allow: [
                        getattr(one, asked)
                        for one in run.predict(**{given: "5"}, k=12, filter_known=known, allow_self=allow)
                    ]
                    for allow in (None, False, True)
                }
                assert "5" not in found[False]
                assert "5" in found[True]
                assert [name for name in found[True] if name != "5"] == found[False]
                assert found[None] == found[loop]
                assert len(found[True]) == 12 - known


def test_a_graph_without_relations_is_never_asked_for_one(tmp_path):
    edges = np.array([[i, (i + 1) % 12] for i in range(12)])
    graph = marius_py.graph_from(edges, tmp_path / "g", split=(1, 0, 0))
    settings = {**SMALL, "model.decoder": "complex", "model.reciprocal": True}
    with marius_py.train(graph.path, tmp_path / "r", settings) as run:
        (one,) = run.predict("5", None, "7")
        assert run.predict(["5"], [None], ["7"]) == [one]
        assert run.score([("5", "7")])[0] == run.score([("5", None, "7")])[0] == one.score
        assert run.predict(["5"], [None], [None], k=2) == run.predict("5", k=2)
        with pytest.raises(ConfigError, match="triple 2 leaves out tail"):
            run.score([("5", "7"), ("5", None)])


def test_names_and_numbers_that_mean_nothing_are_refused(tmp_path):
    edges = np.array([[i, (i + 1) % 12] for i in range(12)])
    graph = marius_py.graph_from(edges, tmp_path / "g", split=(1, 0, 0))
    with marius_py.train(graph.path, tmp_path / "r", SMALL) as run:
        for relation in ("likes", ["likes"]):
            with pytest.raises(ConfigError, match="has no relations, but 'likes' is given: leave it out"):
                run.predict(["5"], relation, ["7"])
        for temperature in (0.0, -1.0, float("inf"), float("nan")):
            with pytest.raises(ConfigError, match="temperature is"):
                run.predict("5", temperature=temperature)
            with pytest.raises(ConfigError, match=f"temperature is {temperature}; allowed: a number above 0"):
                run.predict("5", probabilities=True, temperature=temperature)
        with pytest.raises(ConfigError, match="k is True"):
            run.predict("5", k=True)


@pytest.mark.parametrize(("loop", "known"), every_second([False, True], [False, True]))
def test_a_temperature_is_fitted_to_the_probabilities_that_are_given(tmp_path, loop, known):
    """Their log loss on the validation edges is the one stated, own nodes among the answers or not."""
    rng = np.random.default_rng(0)
    edges = np.unique(rng.integers(0, 12, (60, 2)), axis=0)
    edges = np.concatenate([edges[edges[:, 0] != edges[:, 1]], np.full((int(loop), 2), 3)])
    graph = marius_py.graph_from(edges, tmp_path / "g", split=(0.6, 0.4, 0))
    settings = {**SMALL, "training.epochs": 30, "optimizer.lr": 0.3}
    with marius_py.train(graph.path, tmp_path / "r", settings) as run, graph.edges() as store:
        fitted = fit_temperature(run, filter_known=known)
        losses, names = [], run.node_names()
        for head, _, tail in store.read("valid"):
            for side, given, answer in (("tail", "head", tail), ("head", "tail", head)):
                node = names[head if given == "head" else tail]
                found = run.predict(**{given: node}, k=12, probabilities=True, temperature=fitted.temperature)
                by_name = {getattr(one, side): one.probability for one in found}
                if known:
                    asked = run.predict(
                        **{given: node}, k=12, probabilities=True, temperature=fitted.temperature,
                        filter_known=True,
                    )  # fmt: skip
                    others = [by_name[getattr(one, side)] for one in asked]
                    own = by_name[names[answer]]
                    losses.append(-np.log(own / (own + sum(others))))
                else:
                    losses.append(-np.log(by_name[names[answer]]))
        assert fitted.log_loss == pytest.approx(np.mean(losses), rel=1e-3)
