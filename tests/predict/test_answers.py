"""Predictions by name equal a brute force in float64; bad names and half-given queries are told apart."""

import csv
import io
import itertools
import json
import logging
import tempfile
import tracemalloc

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from marius_py import cli, load
from marius_py.errors import ConfigError, FormatError, StorageError
from marius_py.nn.decoders import DistMult
from marius_py.predict import (
    Neighbor,
    Prediction,
    calibration,
    complete_nodes,
    complete_relations,
    completion,
    fit_temperature,
    open_index,
    predict,
)
from marius_py.predict.answer_files import AnswerWriter
from marius_py.predict.answers import predict_in_blocks
from marius_py.predict.query_files import read_queries
from marius_py.readable import width_of
from tests.small_runs import write_run

NODES = [f"node {i}" for i in range(40)]


@pytest.fixture(scope="module", params=[False, True], ids=["plain", "reciprocal"])
def written(request, tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("run"), names=NODES, reciprocal=request.param)


@pytest.fixture
def run(written):
    with load(written[0]) as opened:
        yield opened


def all_scores(written, side):
    """score(h, r, t) (N, R, N) in float64, heads asked by the inverse rows of a reciprocal run."""
    _, graph, rows, relations = written
    rows, relations = rows.astype(np.float64), relations.astype(np.float64)
    first = graph.num_relations if side == "head" and len(relations) > graph.num_relations else 0
    weights = relations[first : first + graph.num_relations]
    return np.einsum("hd,rd,td->hrt", rows, weights, rows)


def known_edges(graph):
    with graph.edges() as edges:
        return np.concatenate([edges.read(split) for split in ("train", "valid", "test")])


@pytest.mark.parametrize("filter_known", [False, True])
@pytest.mark.parametrize("side", ["head", "tail"])
def test_nodes_equal_brute_force(written, run, side, filter_known):
    graph = written[1]
    scores = all_scores(written, side)
    if filter_known:
        h, r, t = known_edges(graph).T
        scores[h, r, t] = -np.inf
    anchors, relations = np.meshgrid(np.arange(graph.num_nodes), np.arange(graph.num_relations))
    anchors, relations = anchors.reshape(-1), relations.reshape(-1)
    table = scores[anchors, relations] if side == "tail" else scores.transpose(2, 1, 0)[anchors, relations]
    is_head = np.full(anchors.shape, side == "head")
    found = complete_nodes(run, anchors, relations, is_head, 50, filter_known=filter_known, beta=1.0)
    order = np.argsort(-table, axis=1, kind="stable")
    best = np.take_along_axis(table, order, axis=1)
    np.testing.assert_array_equal(found.ids, np.where(best > -np.inf, order, -1))
    taken = found.ids >= 0
    # Queries are rounded to float32 before they are compared.
    np.testing.assert_allclose(found.scores[taken], best[taken], rtol=1e-5, atol=1e-5)
    # A query may have no answer that is not known.
    np.testing.assert_allclose(found.probabilities.sum(1), taken.any(1), rtol=1e-12)


def test_answers_are_the_same_in_several_passes(run, monkeypatch):
    """Where known answers do not fit into the memory at once, each part of the queries has its own pass."""
    rng = np.random.default_rng(0)
    queries = rng.integers(0, 40, 30), rng.integers(0, 2, 30), rng.random(30) < 0.5
    done = []

    def cut(num_known, *_):
        return [(start, min(start + 4, num_known.size)) for start in range(0, num_known.size, 4)]

    for known in (False, True):
        options = {"filter_known": known, "allow_self": not known, "beta": 2.0}
        whole = complete_nodes(run, *queries, 5, **options)
        done.clear()
        with monkeypatch.context() as patch:
            patch.setattr("marius_py.predict.completion.cut", cut)
            parts = complete_nodes(run, *queries, 5, **options, progress=lambda *now: done.append(now))
        for name in ("ids", "scores", "probabilities"):
            np.testing.assert_array_equal(getattr(parts, name), getattr(whole, name))
        assert done == sorted(done)
        assert len(done) > 1
        assert done[-1][0] == done[-1][1]


def test_mixed_queries_by_name(written, run):
    graph = written[1]
    names, relations = graph.node_names(), graph.relation_names()
    answers = predict(
        run,
        head=[names[3], None, names[1], names[5]],
        relation=[relations[0], relations[1], None, relations[1]],
        tail=[None, names[4], names[2], names[6]],
        k=3,
    )
    assert [(a.query, a.rank) for a in answers] == [
        *((0, i) for i in (1, 2, 3)), *((1, i) for i in (1, 2, 3)), (2, 1), (2, 2), (3, 1)
    ]  # fmt: skip
    tails, heads = all_scores(written, "tail"), all_scores(written, "head")
    assert [names.index(a.tail) for a in answers[:3]] == np.argsort(-tails[3, 0])[:3].tolist()
    assert [names.index(a.head) for a in answers[3:6]] == np.argsort(-heads[:, 1, 4])[:3].tolist()
    assert [relations.index(a.relation) for a in answers[6:8]] == np.argsort(-tails[1, :, 2]).tolist()
    np.testing.assert_allclose(answers[8].score, tails[5, 1, 6], rtol=1e-5)
    assert run.score([(names[5], relations[1], names[6])])[0] == answers[8].score
    assert run.score(np.array([[5, 1, 6]]))[0] == answers[8].score


def test_known_relations_are_left_out(written, run):
    names, relations = written[1].node_names(), written[1].relation_names()
    edges = known_edges(written[1])
    pairs, counts = np.unique(edges[:, [0, 2]], axis=0, return_counts=True)
    head, tail = pairs[np.flatnonzero(counts == 1)[0]].tolist()
    relation = int(edges[(edges[:, 0] == head) & (edges[:, 2] == tail)][0, 1])
    answers = run.predict(head=names[head], tail=names[tail], filter_known=True, probabilities=True)
    assert relations[relation] not in [a.relation for a in answers]
    assert len(answers) == 1
    assert abs(sum(a.probability for a in answers) - 1) < 1e-9


def test_relations_are_searched_within_the_memory(tmp_path):
    names = [f"relation {i}" for i in range(60)]
    folder, graph, rows, relations = write_run(tmp_path, names=NODES, relations=names)
    heads, tails = np.random.default_rng(1).integers(graph.num_nodes, size=(2, 20_000))
    scores = np.einsum(
        "qd,rd,qd->qr", *(part.astype(np.float64) for part in (rows[heads], relations, rows[tails]))
    )
    edges = known_edges(graph)
    known = np.zeros((graph.num_nodes, graph.num_relations, graph.num_nodes), dtype=np.bool_)
    known[tuple(edges.T)] = True
    with load(folder) as run:
        for filter_known in (False, True):
            if filter_known:
                scores[known[heads, :, tails]] = -np.inf
            tracemalloc.start()
            found = complete_relations(
                run, heads, tails, 4, filter_known=filter_known, beta=1.0, memory_bytes=16 << 20
            )
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
            assert peak < 16 << 20
            best = np.sort(scores, axis=1)[:, :-5:-1]
            np.testing.assert_allclose(found.scores, best, rtol=1e-5, atol=1e-5)
            chosen = np.take_along_axis(scores, found.ids, axis=1)
            np.testing.assert_allclose(found.scores, chosen, rtol=1e-5, atol=1e-5)
            shares = np.exp(best) / np.exp(scores).sum(1, keepdims=True)
            np.testing.assert_allclose(found.probabilities, shares, rtol=1e-4)


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_neighbors(written, run, metric):
    rows = written[2].astype(np.float64)
    names = written[1].node_names()
    found = run.neighbors([names[7], names[0]], k=5, metric=metric)
    for number, node in enumerate((7, 0)):
        if metric == "l2":
            value = np.linalg.norm(rows - rows[node], axis=1)
            order = np.argsort(value, kind="stable")
        else:
            value = rows @ rows[node]
            if metric == "cosine":
                value /= np.linalg.norm(rows, axis=1) * np.linalg.norm(rows[node])
            order = np.argsort(-value, kind="stable")
        order = order[order != node][:5]
        part = found[number * 5 : number * 5 + 5]
        assert [one.neighbor for one in part] == [names[i] for i in order]
        np.testing.assert_allclose([one.score for one in part], value[order], rtol=1e-6)


def test_a_temperature_is_fitted_to_a_sample_that_the_seed_draws(run, monkeypatch):
    monkeypatch.setattr(calibration, "_MAX_EDGES", 10)
    options = {"split": "train", "allow_self": True}
    first, again, other = (fit_temperature(run, **options, seed=seed) for seed in (1, 1, 2))
    assert first == again != other
    assert first.num_edges == 10
    monkeypatch.setattr(calibration, "_MAX_PAIRS", 2 * 40 * 7)
    monkeypatch.setattr(calibration, "_MIN_EDGES", 3)
    assert fit_temperature(run, **options).num_edges == 7


def test_a_temperature_is_not_left_to_a_handful_of_edges(run, monkeypatch):
    monkeypatch.setattr(calibration, "_MAX_PAIRS", 1)
    monkeypatch.setattr(calibration, "_MIN_EDGES", 3)
    assert fit_temperature(run, split="test", allow_self=True).num_edges == 3


def test_a_temperature_does_not_depend_on_what_all_scores_share(tmp_path, monkeypatch):
    """Scores of 1e6 leave float32 no digits for their differences, whose quotient by T counts."""
    found, passes = [], []
    for constant in (0.0, 1000.0):
        folder = tmp_path / str(constant)
        folder.mkdir()
        run, _, rows, relations = write_run(folder, names=NODES, constant=constant)
        likely = np.argsort((rows[:, :-1] * relations[0, :-1]) @ rows[:, :-1].T, axis=1)[:, -4]
        edges = np.stack((np.arange(40), np.zeros(40, int), likely), axis=1)
        monkeypatch.setattr(calibration, "_sample", lambda *given, edges=edges: edges)
        with load(run) as opened:
            found.append(fit_temperature(opened, allow_self=True, progress=lambda *now: passes.append(now)))
        assert len(passes) < 8 * len(found)
    assert 0.1 < found[0].temperature < 10
    assert found[0].temperature == pytest.approx(found[1].temperature, rel=3e-3)  # to which it is fitted
    assert found[0].log_loss == pytest.approx(found[1].log_loss, rel=1e-5)


def test_temperature_is_the_most_likely_one(written, run):
    """Against a scan of the log loss; the test split stands in for the missing validation split."""
    asked = known_edges(written[1])[-5:]
    for filtered, own in itertools.product((False, True), repeat=2):
        edges = asked if own else asked[asked[:, 0] != asked[:, 2]]
        fitted = fit_temperature(run, split="test", filter_known=filtered, allow_self=own)
        assert fitted.num_edges == len(edges)

        def loss(temperature, filtered=filtered, own=own, edges=edges):
            total = 0.0
            for side in ("head", "tail"):
                table = all_scores(written, side) / temperature
                for h, r, t in edges.tolist():
                    row = (table[h, r] if side == "tail" else table[:, r, t]).copy()
                    true = row[t if side == "tail" else h]
                    if filtered:
                        known = known_edges(written[1])
                        column, fixed = (2, 0) if side == "tail" else (0, 2)
                        same = (known[:, 1] == r) & (known[:, fixed] == (h if side == "tail" else t))
                        row[known[same, column]] = -np.inf
                        row[t if side == "tail" else h] = true
                    if not own:
                        row[h if side == "tail" else t] = -np.inf
                    total += np.logaddexp.reduce(row) - true
            return total / (2 * len(edges))

        assert abs(loss(fitted.temperature) - fitted.log_loss) < 1e-3
        assert abs(loss(1.0) - fitted.log_loss_before) < 1e-4
        near = fitted.temperature * np.array([0.8, 1.0, 1.25])
        losses = [loss(one) for one in near]
        assert min(losses) > losses[1] - 1e-4


def test_any_temperature_suits_answers_that_are_all_alike(run):
    run.model.relations.zero_()
    fitted = fit_temperature(run, split="train", allow_self=True)
    assert fitted.log_loss == fitted.log_loss_before == pytest.approx(np.log(40))
    assert fitted.temperature == 1


@pytest.mark.parametrize(
    ("worst", "said"),
    [(True, "no temperature up to 10000 is large enough"), (False, "no temperature is small enough")],
)
def test_a_fit_without_an_optimum_says_so(tmp_path, monkeypatch, caplog, worst, said):
    """Answers that score worst of all want equal probabilities; those that score best want 0 and 1."""
    written = write_run(tmp_path, names=NODES)
    scores = all_scores(written, "tail")[:, 0]
    head, tail = np.unravel_index((scores if worst else -scores).argmin(), scores.shape)
    monkeypatch.setattr(calibration, "_sample", lambda *_: np.array([[head, 0, tail]]))
    with load(written[0]) as run, caplog.at_level(logging.WARNING, "marius_py"):
        fitted = fit_temperature(run, allow_self=True)
    assert said in caplog.text
    assert fitted.temperature == pytest.approx(1e4, rel=2e-2) if worst else fitted.log_loss < 1e-9


@pytest.mark.parametrize("filtered", [False, True])
def test_the_slope_and_curvature_of_the_log_loss_are_its_own(written, run, filtered):
    task = calibration._make_task(run, known_edges(written[1]), filtered, True, 16 << 20, None)
    low, here, high = (task.at(np.exp(0.2 + step)) for step in (-1e-4, 0, 1e-4))
    for order in (1, 2):
        assert here[order] == pytest.approx((high[order - 1] - low[order - 1]) / 2e-4, rel=1e-5)


@pytest.mark.slow
def test_a_temperature_is_the_same_in_any_tiles(run, monkeypatch):
    options = {"split": "train", "filter_known": True, "allow_self": False}
    whole = fit_temperature(run, **options)
    for module in (calibration, completion):
        monkeypatch.setattr(module, "TILE_CANDIDATES", 1)
    monkeypatch.setattr(calibration, "TILE_QUERIES", 5)
    blocks = [(start, run.read_rows(start, min(start + 16, 40))) for start in (0, 16, 32)]
    monkeypatch.setattr(calibration, "node_blocks", lambda *_: blocks)
    parts = fit_temperature(run, **options)
    for name in ("temperature", "log_loss", "log_loss_before"):
        assert getattr(parts, name) == pytest.approx(getattr(whole, name), rel=1e-9)


def test_no_temperature_is_fitted_to_what_is_not_there(run, diverged):
    with pytest.raises(ConfigError, match="there are no valid edges to fit"):
        fit_temperature(run)
    with pytest.raises(ConfigError, match="memory is 1 bytes"):
        fit_temperature(run, memory_bytes=1)
    with pytest.raises(ConfigError, match="memory is '1G'; allowed: a whole number of bytes"):
        fit_temperature(run, memory_bytes="1G")
    with pytest.raises(ConfigError, match=r"memory is 2\^63 bytes or more; allowed: 16777216"):
        fit_temperature(run, memory_bytes=10**5000)
    for seed in (-1, 1.5, None):
        with pytest.raises(ConfigError, match=f"seed is {seed}; allowed: a whole number from 0"):
            fit_temperature(run, seed=seed)
    with pytest.raises(ConfigError, match="the scores of the train edges are not finite"):
        fit_temperature(diverged, split="train")


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("temperature", [1e-309, 5e-324, np.float64(1e-309), np.float32(1e-40), 1e-300])
def test_probabilities_at_a_temperature_whose_inverse_overflows(run, temperature):
    """Of nodes, of heads and of relations; also where answers are left out."""
    first = run.node_names()[0]
    for query in ({"head": first, "relation": "likes"}, {"relation": "likes", "tail": first}):
        for filter_known in (False, True):
            options = {"k": 40, "filter_known": filter_known, "probabilities": True}
            shares = [one.probability for one in run.predict(**query, **options, temperature=temperature)]
            assert shares == [1.0] + [0.0] * (len(shares) - 1)
    shares = [
        one.probability
        for one in run.predict(head=first, tail=first, probabilities=True, temperature=temperature)
    ]
    assert shares == [1.0, 0.0]


def test_bad_queries(run):
    names = run.node_names()
    with pytest.raises(ConfigError, match="Did you mean 'likes'"):
        run.predict(head=names[0], relation="like")
    with pytest.raises(ConfigError, match="leaves out relation and tail"):
        run.predict(head=names[0])
    with pytest.raises(ConfigError, match="different lengths"):
        run.predict(head=names[:2], relation=["likes"])
    with pytest.raises(ConfigError, match="k is 0"):
        run.predict(head=names[0], relation="likes", k=0)
    with pytest.raises(ConfigError, match="temperature is 0"):
        run.predict(head=names[0], relation="likes", probabilities=True, temperature=0.0)
    for wrong in ("x", True, np.nan, 10**400, np.inf):
        with pytest.raises(ConfigError, match=f"temperature is {wrong!r}; allowed: a number above 0"):
            run.predict(head=names[0], relation="likes", probabilities=True, temperature=wrong)
    with pytest.raises(ConfigError, match="temperature is 2, but is of probabilities only"):
        run.predict(head=names[0], relation="likes", temperature=2)
    with pytest.raises(ConfigError, match="metric is 'l3'"):
        run.neighbors(names[0], metric="l3")
    with pytest.raises(ConfigError, match="probabilities compare answers"):
        run.predict(head=names[0], relation="likes", tail=names[1], probabilities=True)


def test_a_score_is_of_whole_triples(run):
    first, second = run.node_names()[:2]
    whole = (first, "likes", second)
    for odd, missing in (
        ((first, None, second), "relation"),
        ((None, "likes", second), "head"),
        ((None, None, second), "head and relation"),
    ):
        with pytest.raises(ConfigError, match=f"triple 2 leaves out {missing}; give all of head"):
            run.score([whole, odd])


def test_ids_of_triples_outside_the_graph_are_refused(run):
    for edge in ([-1, 0, 0], [0, -1, 0], [0, 0, -1], [40, 0, 0], [0, 2, 0], [0, 0, 40]):
        with pytest.raises(ConfigError, match=r"ids of triples must lie below \(40, 2, 40\)"):
            run.score(np.array([[1, 1, 1], edge]))
    for shape in ((3,), (1, 2), (1, 1, 3)):
        with pytest.raises(ConfigError, match="triples have shape"):
            run.score(np.zeros(shape, np.int64))


def test_triples_come_in_any_iterable(run):
    names = run.node_names()
    triples = [(names[i], "likes", names[i + 1]) for i in range(6)]
    expected = run.score(triples)
    series = pd.Series(triples)
    indexed = pd.Series(triples, index=[f"row {i}" for i in range(6)])
    counted = dict.fromkeys(triples, 1)
    for given in (
        series,
        indexed,
        counted.keys(),
        dict(enumerate(triples)).values(),
        pd.MultiIndex.from_tuples(triples),
        pl.Series([list(triple) for triple in triples]),
        np.array(triples, dtype="U40,U40,U40"),
        np.array(triples, dtype=object),
        iter(triples),
    ):
        np.testing.assert_array_equal(run.score(given), expected)
    np.testing.assert_array_equal(run.score(series[series.str[0] != names[0]]), expected[1:])  # no label 0
    unordered = set(triples)
    np.testing.assert_array_equal(run.score(unordered), run.score(list(unordered)))
    assert run.score(set()).shape == run.score(series[:0]).shape == (0,)


def test_what_holds_no_triples_is_refused(run):
    names = run.node_names()
    answers = run.predict(head=names[0], relation="likes", k=2)
    whole = (names[0], "likes", names[1])
    allowed = r"allowed: a list of triples \(head, relation, tail\) of names, an array"
    for given, shown in (
        (None, "None"),
        (5, "5"),
        (answers[0], r"Prediction\(.*\)"),
        (np.array(2.5), r"array\(2\.5\)"),
        (" ".join(whole), ".*"),
        ({whole: 1}, r"\{.*\}"),
    ):
        with pytest.raises(ConfigError, match=rf"triples is {shown} \({type(given).__name__}\); {allowed}"):
            run.score(given)
    for row in (answers[0], None, 7, " ".join(whole), set(whole), dict(enumerate(whole))):
        with pytest.raises(
            ConfigError, match=r"triple 2 is .*; expected \(head, relation, tail\): triples may"
        ):
            run.score([whole, row])
    for single in (pd.Series(whole, index=["head", "relation", "tail"]), [9, 0, 3]):
        with pytest.raises(ConfigError, match="pass a list of triples"):
            run.score(single)


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame], ids=["pandas", "polars"])
def test_a_score_of_a_frame_is_of_its_names(run, make):
    names = run.node_names()[:3]
    frame = make({"head": names, "relation": ["likes"] * 3, "tail": names[::-1]})
    assert (
        run.score(frame).tolist()
        == run.score([*zip(names, ["likes"] * 3, names[::-1], strict=True)]).tolist()
    )
    turned = frame[["tail", "relation", "head"]]  # columns go by their names
    assert run.score(turned).tolist() == run.score(frame).tolist()
    assert run.score(frame[:0]).shape == (0,)
    assert run.score(row for row in frame.to_numpy().tolist()).tolist() == run.score(frame).tolist()
    with pytest.raises(ConfigError, match=r"'tail' has empty cells.* entry 1"):
        run.score(make({"head": names[:2], "relation": ["likes"] * 2, "tail": [names[0], None]}))
    with pytest.raises(ConfigError, match="7"):
        run.score(make({"head": [7], "relation": ["likes"], "tail": [names[0]]}))


def test_names_are_checked_before_a_temperature_is_fitted(written, tmp_path, capsys, monkeypatch):
    def fit_nothing(*arguments, **named):
        raise AssertionError("the temperature was fitted before the queries were checked")

    monkeypatch.setattr("marius_py.predict.answers._fitted", fit_nothing)
    monkeypatch.setattr("marius_py.commands.predict._QUERIES", 2)
    folder, names = str(written[0]), written[1].node_names()
    for words, message in (
        (["--head", "nod 0", "--relation", "likes"], "Did you mean"),
        (["--head", names[0], "--relation", "likes", "--tail", names[1]], "probabilities compare answers"),
        (["--head", names[0], "--relation", "likes", "-k", "0"], "k is 0"),
        (["--head", names[0], "--relation", "likes", "--memory", "1M"], "memory is 1048576 bytes"),
        (["--head", names[0], "--relation", "likes", "--memory", "9" * 400], "memory is 2^63 bytes or more"),
    ):
        assert cli.predict([folder, "--probabilities", *words]) == 2
        assert message in capsys.readouterr().err
    queries = tmp_path / "queries.tsv"
    queries.write_text("".join(f"{names[i]}\tlikes\t?\n" for i in range(4)) + f"{names[0]}\t?\t?\n")
    assert cli.predict([folder, "--probabilities", "--queries", str(queries)]) == 2
    place = f"{queries} line 5 ('?' stands for what is asked for)"
    assert f"{place} leaves out relation and tail" in capsys.readouterr().err


def test_queries_of_a_file_are_answered_in_blocks(written, tmp_path, monkeypatch):
    folder, names = str(written[0]), written[1].node_names()
    queries, answers = tmp_path / "queries.tsv", tmp_path / "answers.tsv"
    lines = [f"{names[0]}\tlikes\t?", f"{names[1]}\t?\t{names[2]}", f"{names[3]}\tlikes\t{names[4]}"]
    queries.write_text("\n".join(lines), encoding="utf-8")
    found = []
    for block in (1, 2, 100):
        monkeypatch.setattr("marius_py.commands.predict._QUERIES", block)
        assert cli.predict([folder, "--queries", str(queries), "--output", str(answers), "-k", "3"]) == 0
        found.append(answers.read_text(encoding="utf-8"))
    assert found[0] == found[1] == found[2]
    assert "".join(line.split("\t")[0] for line in found[0].splitlines()[1:]) == "000112"


def test_every_command_says_what_an_unfinished_run_has(written, tmp_path, capsys):
    folder = str(written[0])
    node = written[1].node_names()[0]
    calls = [
        (cli.evaluate, [f"run={folder}", "compute_threads=1"]),
        (cli.predict, [folder, "--head", node, "--relation", "likes"]),
        (cli.neighbors, [folder, "--node", node]),
        (cli.export, [folder, "--format", "npy", "--output", str(tmp_path / "rows.npy")]),
        (cli.report, [folder, "--output", str(tmp_path / "r.html"), "--no-figures"]),
    ]
    for command, words in calls:
        assert command(words) == 0
        assert "has not finished: this is its last commit, after 3 epochs" in capsys.readouterr().err


def test_command(written, tmp_path, capsys):
    folder, graph = str(written[0]), written[1]
    names = graph.node_names()
    assert cli.predict([folder, "--head", names[0], "--relation", "likes", "-k", "2", "--memory", "16M"]) == 0
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[0].split() == ["query", "head", "relation", "tail", "rank", "score"]
    assert len(lines) == 3
    assert "has not finished: this is its last commit, after 3 epochs" in err
    assert cli.predict([folder, "--head", "nod 0", "--relation", "likes"]) == 2
    assert "Did you mean" in capsys.readouterr().err
    assert cli.predict([folder, "--head", names[0], "--relation", "likes", "--memory", "much"]) == 2
    assert "no number of bytes" in capsys.readouterr().err
    assert cli.main(["neighbors", folder, "--node", names[0], "-k", "1", "--format", "json"]) == 0
    (one,) = json.loads(capsys.readouterr().out)
    assert (one["node"], one["rank"]) == (names[0], 1)
    assert cli.predict(["--help"]) == 0
    assert "--filter-known" in capsys.readouterr().out


def test_an_output_called_dash_is_standard_output(written, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    folder, node = str(written[0]), written[1].node_names()[0]
    for command, words in (
        (cli.predict, [folder, "--head", node, "--relation", "likes", "--format", "tsv"]),
        (cli.neighbors, [folder, "--node", node, "--format", "json"]),
    ):
        assert command(words) == 0
        shown = capsys.readouterr().out
        assert command([*words, "--output", "-"]) == 0
        assert capsys.readouterr().out == shown
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ending", ["tsv", "csv", "json", "parquet"])
@pytest.mark.parametrize("source", ["tsv", "parquet"])
def test_files(written, tmp_path, capsys, source, ending, caplog):
    caplog.set_level(logging.ERROR)
    folder, graph = str(written[0]), written[1]
    names = graph.node_names()
    queries = tmp_path / f"queries.{source}"
    if source == "tsv":
        queries.write_text(f"{names[0]}\tlikes\t?\n{names[1]}\t\t{names[2]}\n", encoding="utf-8")
    else:
        columns = {"head": names[:2], "relation": ["likes", None], "tail": [None, names[2]]}
        pq.write_table(pa.table(columns), queries)
    target = tmp_path / f"answers.{ending}"
    assert cli.predict([folder, "--queries", str(queries), "--output", str(target), "-k", "2"]) == 0
    assert capsys.readouterr().out.strip() == str(target)
    if ending == "parquet":
        rows = pq.read_table(target).to_pylist()
    elif ending == "json":
        rows = json.loads(target.read_text(encoding="utf-8"))
    elif ending == "csv":
        with target.open(encoding="utf-8", newline="") as lines:
            rows = list(csv.DictReader(lines))
    else:
        head, *lines = target.read_text(encoding="utf-8").splitlines()
        rows = [dict(zip(head.split("\t"), line.split("\t"), strict=True)) for line in lines]
    with load(written[0]) as opened:
        expected = opened.predict(head=names[:2], relation=["likes", None], tail=[None, names[2]], k=2)
    assert [(str(r["query"]), r["head"], r["relation"], r["tail"], float(r["score"])) for r in rows] == [
        (str(a.query), a.head, a.relation, a.tail, a.score) for a in expected
    ]
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([queries.name, target.name])


def test_csv_gives_every_name_back(tmp_path):
    odd = ['a,b "c"', "line\nfeed", "carriage\rreturn", "both\r\n", "東京", " blank "]
    given = [Neighbor(name, name, place, 0.1 * place) for place, name in enumerate(odd)]
    with AnswerWriter(tmp_path / "n.csv", "csv", Neighbor, io.StringIO()) as writer:
        writer.write(given[:3])
        writer.write(given[3:])
    with (tmp_path / "n.csv").open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    assert [(row["node"], row["neighbor"], int(row["rank"]), float(row["score"])) for row in rows] == [
        (one.node, one.neighbor, one.rank, one.score) for one in given
    ]


@pytest.mark.parametrize("format", ["tsv", "csv", "json", "table"])
def test_names_that_stdout_lacks_are_escaped_for_readers_alone(format):
    out = io.TextIOWrapper(io.BytesIO(), "ascii", errors="backslashreplace")
    writer = AnswerWriter(None, format, Neighbor, out)
    given = [Neighbor("b\u0101", "c", 1, 0.5)]
    if format == "table":
        with writer:
            writer.write(given)
        out.flush()
        assert b"b\\u0101" in out.buffer.getvalue()
        return
    with pytest.raises(StorageError, match=r"takes ascii, which lacks 'ā': give --output FILE"), writer:
        writer.write(given)


def test_control_characters_in_names_are_escaped_for_readers_alone(tmp_path):
    """They would break a line of the table, or steer the terminal."""
    name, seen = "Zürich\n\t\x1b[2J\x85\u2028\x7f", "Zürich\\n\\t\\x1b[2J\\x85\\u2028\\x7f"
    given = [Neighbor("Łódź मुंबई \u200d東京", name, 1, 0.5), Neighbor("Bern", "a\\n", 2, 0.25)]
    texts = {}
    for format in ("table", "csv", "json"):
        out = io.StringIO()
        with AnswerWriter(None, format, Neighbor, out) as writer:
            writer.write(given)
        texts[format] = out.getvalue()
    heading, first, second = texts["table"].split("\n")[:3]
    assert first.split("  ")[0] == "Łódź मुंबई \u200d東京"
    assert seen in first
    assert "a\\n" in second
    assert width_of(heading) == width_of(first) == width_of(second)
    assert texts["table"].count("\n") == 3
    assert [row[1] for row in csv.reader(io.StringIO(texts["csv"], newline=""))][1:] == [name, "a\\n"]
    assert [one["neighbor"] for one in json.loads(texts["json"])] == [name, "a\\n"]


def test_a_table_without_answers_has_the_columns_that_are_always_there():
    out = io.StringIO()
    with AnswerWriter(None, "table", Prediction, out) as writer:
        writer.write([])
    assert out.getvalue().split() == ["query", "head", "relation", "tail", "rank", "score"]


def test_a_table_of_several_blocks_has_one_heading():
    def block(*names):
        return [Prediction(0, name, "likes", "Oslo", 1, 0.5) for name in names]

    out = io.StringIO()
    with AnswerWriter(None, "table", Prediction, out) as writer:
        for answers in ([], block("Bern", "Lima"), block("Rome"), [], block("Reykjavik"), block("Rome")):
            writer.write(answers)
    assert out.getvalue().splitlines() == [
        "query  head  relation  tail  rank   score",
        "    0  Bern  likes     Oslo     1  0.5000",
        "    0  Lima  likes     Oslo     1  0.5000",
        "    0  Rome  likes     Oslo     1  0.5000",
        "    0  Reykjavik  likes     Oslo     1  0.5000",
        "    0  Rome       likes     Oslo     1  0.5000",
    ]


@pytest.mark.parametrize("format", ["table", "tsv", "csv", "json"])
def test_a_question_that_fails_leaves_standard_output_empty(written, format, capsys):
    folder, names = str(written[0]), written[1].node_names()
    assert cli.neighbors([folder, "--node", "nope", "--format", format]) == 2
    assert cli.predict([folder, "--head", "nope", "--relation", "likes", "--format", format]) == 2
    assert capsys.readouterr().out == ""
    assert cli.neighbors([folder, "--node", names[0], "--format", format]) == 0
    assert capsys.readouterr().out.startswith("[" if format == "json" else "node")


@pytest.mark.parametrize(("format", "between"), [("tsv", "\t"), ("csv", ",")])
def test_no_answers_have_a_heading(format, between):
    out = io.StringIO()
    with AnswerWriter(None, format, Neighbor, out) as writer:
        writer.write([])
    assert out.getvalue() == between.join(("node", "neighbor", "rank", "score")) + "\n"
    out = io.StringIO()
    with pytest.raises(FormatError, match="tab"), AnswerWriter(None, "tsv", Neighbor, out) as writer:
        writer.write([Neighbor("a\tb", "c", 1, 0.5)])
    assert not out.getvalue()


class _Full(io.StringIO):
    def write(self, text):
        raise OSError(28, "No space left on device")


def test_answers_that_stdout_does_not_take_are_told_of_it():
    writer = AnswerWriter(None, "table", Neighbor, _Full())
    with pytest.raises(StorageError, match=r"^standard output cannot be written: No space left"), writer:
        writer.write([Neighbor("a", "b", 1, 0.5)])


def _words(written, command):
    folder, node = str(written[0]), written[1].node_names()[0]
    return (
        [folder, "--node", node]
        if command is cli.neighbors
        else [folder, "--head", node, "--relation", "likes"]
    )


def _no_work(monkeypatch):
    def load_nothing(*arguments, **named):
        raise AssertionError("the run was opened before its output was checked")

    monkeypatch.setattr("marius_py.run.load", load_nothing)


@pytest.mark.parametrize("command", [cli.predict, cli.neighbors])
def test_the_ending_of_the_output_says_the_format(written, tmp_path, capsys, command, monkeypatch):
    words = _words(written, command)
    for name in ("a.txt", "a.CSV", "a"):
        assert command([*words, "--output", str(tmp_path / name), "-k", "2"]) == 0
    assert (tmp_path / "a.CSV").read_text(encoding="utf-8").startswith(("query,head,", "node,neighbor,"))
    assert (tmp_path / "a.txt").read_text() == (tmp_path / "a").read_text()
    assert "," not in (tmp_path / "a.txt").read_text()
    assert command([*words, "--output", str(tmp_path / "a.xls"), "--format", "json"]) == 0
    assert json.loads((tmp_path / "a.xls").read_text())
    (tmp_path / "a.xls").unlink()
    capsys.readouterr()
    _no_work(monkeypatch)
    for name in ("a.xls", "a.csv.gz"):
        assert command([*words, "--output", str(tmp_path / name)]) == 2
        err = capsys.readouterr().err
        assert "allowed: .txt, .tsv, .csv, .json, .parquet" in err
        assert f"--output {tmp_path / name}" in err
        assert not (tmp_path / name).exists()


@pytest.mark.parametrize("command", [cli.predict, cli.neighbors])
def test_an_output_that_is_a_file_of_the_run_is_refused(written, capsys, command):
    nodes = written[0] / "checkpoint" / "nodes.h5"
    before = nodes.read_bytes()
    assert command([*_words(written, command), "--format", "tsv", "--output", str(nodes)]) == 2
    assert f"--output {nodes} is a file of the run {written[0]}" in capsys.readouterr().err
    assert nodes.read_bytes() == before


@pytest.mark.parametrize("command", [cli.predict, cli.neighbors])
def test_an_output_that_cannot_be_written_is_refused_first(written, tmp_path, capsys, command, monkeypatch):
    _no_work(monkeypatch)
    words = [*_words(written, command), "--output"]
    assert command([*words, str(tmp_path / "none" / "a.tsv")]) == 2
    assert f"--output {tmp_path}/none/a.tsv: there is no folder {tmp_path}/none" in capsys.readouterr().err
    assert command([*words, f"{tmp_path}/a.tsv/"]) == 2
    assert f"--output {tmp_path}/a.tsv/ ends in a slash, as a folder does" in capsys.readouterr().err
    (tmp_path / "folder.tsv").mkdir()
    assert command([*words, str(tmp_path / "folder.tsv")]) == 2
    assert "is a folder or a device" in capsys.readouterr().err

    def refuse(**named):
        raise PermissionError(13, "Permission denied", str(named["dir"]))

    monkeypatch.setattr(tempfile, "TemporaryFile", refuse)
    assert command([*words, str(tmp_path / "a.tsv")]) == 1
    err = capsys.readouterr().err
    assert f"--output {tmp_path}/a.tsv: the folder {tmp_path} cannot be written to (Permission denied)" in err
    assert "unexpected" not in err


def test_an_output_that_fails_later_is_named(tmp_path):
    (tmp_path / "gone").mkdir()
    writer = AnswerWriter(tmp_path / "gone" / "n.csv", "csv", Neighbor, io.StringIO())
    (tmp_path / "gone").rmdir()
    with pytest.raises(StorageError, match=r"--output: writing .*n\.csv failed"), writer:
        pass


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_query_file_with_headings(tmp_path, encoding):
    file = tmp_path / "q.tsv"
    file.write_text("relation\ttail\nlikes\tA\nknows\tB\n", encoding=encoding)
    assert read_queries(file).columns == {"head": None, "relation": ["likes", "knows"], "tail": ["A", "B"]}
    file.write_text("likes\tA\n", encoding="utf-8")
    with pytest.raises(FormatError, match="line 1: 2 columns, expected 3"):
        read_queries(file)


@pytest.mark.parametrize(
    ("name", "text", "lines"),
    [
        ("q.csv", 'head,relation,tail\n"a, b",likes,?\n\n"two\nlines",,C\nD,likes,?\n', [2, 4, 6]),
        ("q.CSV", 'Source,TYPE,Target\n"a, b",likes,\n\n"two\nlines",?,C\nD,likes,\n', [2, 4, 6]),
        ("q.csv", '"a, b",likes,?\n"two\nlines",?,C\nD,likes,?\n', [1, 2, 4]),
    ],
)
def test_query_file_with_commas(tmp_path, name, text, lines):
    file = tmp_path / name
    file.write_text(text, encoding="utf-8-sig")
    found = read_queries(file)
    assert found.columns == {
        "head": ["a, b", "two\nlines", "D"],
        "relation": ["likes", None, "likes"],
        "tail": [None, "C", None],
    }
    assert [found.place(number) for number in range(3)] == [f"{file} line {line}" for line in lines]


def test_query_file_of_parquet_with_other_names(tmp_path):
    file = tmp_path / "q.PARQUET"
    pq.write_table(pa.table({"Object": ["A", "?"], "relation": ["x", "y"], "type": ["p", "q"]}), file)
    found = read_queries(file)
    assert found.columns == {"head": None, "relation": ["x", "y"], "tail": ["A", None]}
    assert found.place(0) == f"{file} row 1"
    assert found.place(1) == f"{file} row 2 ('?' stands for what is asked for)"
    pq.write_table(pa.table({"source": ["A"], "from": ["A"], "tail": ["B"]}), file)
    with pytest.raises(FormatError, match="more than one column for the head: source, from"):
        read_queries(file)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("q.tsv", "head\trelation\n{0}\tlikes\n?\tlikes\n"),
        ("q.csv", "{0},likes,\n{0},?,{0}\n?,likes,\n"),
        ("q.parquet", "?"),
        ("q.pq", "?"),
    ],
)
def test_a_sign_that_may_be_a_name_is_named(written, tmp_path, capsys, name, text):
    folder, first = str(written[0]), written[1].node_names(0, 1)[0]
    file = tmp_path / name
    is_table = text == "?"
    if is_table:
        columns = {"head": [first, None, text], "relation": ["likes"] * 3, "tail": [text, first, None]}
        pq.write_table(pa.table(columns), file)
    else:
        file.write_text(text.format(first), encoding="utf-8")
    assert cli.predict([folder, "--queries", str(file)]) == 2
    place = f"{file} {'row' if is_table else 'line'} 3"
    assert f"{place} ('?' stands for what is asked for) leaves out head and tail" in capsys.readouterr().err
    assert "stands for" not in read_queries(file).place(0)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("q.tsv", "head,relation,tail\nA,likes,?\n", "line 1: 1 column, expected 3 .* the ending .csv"),
        (
            "q.csv",
            "head,relation,tail,weight\nA,b,C,1\n",
            "line 1: 4 columns, .* names 'weight', which is no",
        ),
        ("q.csv", "head,relation,tail\n\nA,likes\n", "line 3: 2 columns, expected 3, as its first line"),
        ("q.csv", 'A,likes,?\n"B,likes,?\nC,likes,?\n', "line 2: "),
        ("q.tsv", "A\tB\n", "line 1: 2 columns, .* a first line that names the columns"),
        ("q.csv", "\n", "holds no queries"),
        ("q.tsv", "head\trelation\ttail\n", "holds no queries"),
    ],
)
def test_what_is_wrong_with_a_query_file(tmp_path, name, text, message):
    (tmp_path / name).write_text(text, encoding="utf-8")
    with pytest.raises(FormatError, match=message):
        read_queries(tmp_path / name)


def test_messages_name_the_line_of_the_file(written, tmp_path, capsys):
    folder, names = str(written[0]), written[1].node_names()
    file = tmp_path / "q.tsv"
    for rows, options, message in (
        (
            [f"{names[0]}\tlikes\t?", "nod 0\tlikes\t?", "nod 1\tlikes\t?"],
            (),
            "line 4 and 1 more: no node of",
        ),
        ([f"{names[0]}\tlikes\t?", f"{names[0]}\tlike\t?"], (), "line 4: no relation of"),
        ([f"{names[0]}\tlikes\t{names[1]}"], ("--probabilities",), "line 3 leaves out nothing"),
    ):
        file.write_text("\n".join(["head\trelation\ttail", "", *rows]), encoding="utf-8")
        assert cli.predict([folder, "--queries", str(file), *options]) == 2
        assert f"{file} {message}" in capsys.readouterr().err


@pytest.mark.slow
def test_answers_are_held_within_the_memory(tmp_path):
    names = [f"node {i}" for i in range(300)]
    folder = write_run(tmp_path, names=names)[0]
    asked = names  # 19 MiB of answers, were they held at once
    with load(folder) as run, AnswerWriter(tmp_path / "a.tsv", "tsv", Prediction, io.StringIO()) as writer:
        run.predict(head=names[0], relation="likes")
        tracemalloc.start()
        for answers in predict_in_blocks(run, asked, "likes", k=300, memory_bytes=16 << 20, block=1 << 14):
            writer.write(answers)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 16 << 20
    assert len((tmp_path / "a.tsv").read_text(encoding="utf-8").splitlines()) == 1 + 300 * 300


def test_answers_do_not_replace_the_queries(written, tmp_path, capsys, monkeypatch):
    _no_work(monkeypatch)
    monkeypatch.chdir(tmp_path)
    queries = tmp_path / "q.tsv"
    queries.write_text("a\tlikes\t?\n", encoding="utf-8")
    (tmp_path / "link.tsv").symlink_to(queries)
    for output in (str(queries), "link.tsv"):
        assert cli.predict([str(written[0]), "--queries", "q.tsv", "--output", output]) == 2
        assert f"--output {output} and --queries q.tsv are one file" in capsys.readouterr().err
    assert queries.read_text(encoding="utf-8") == "a\tlikes\t?\n"


@pytest.fixture
def diverged(tmp_path):
    """A run of which the first node and the second relation are not finite."""
    folder = write_run(tmp_path, names=NODES, diverged=1)[0]
    with load(folder) as run:
        run.model.relations[1] = np.nan
        yield run


def test_queries_without_numbers_are_said_once(diverged, caplog):
    caplog.set_level(logging.WARNING)
    names, kinds = diverged.node_names(), diverged.relation_names
    heads = [names[1], names[0], names[0], names[2], names[4]]
    relations = [kinds[0], kinds[0], None, kinds[1], kinds[0]]
    tails = [None, None, names[1], None, names[0]]
    found = [
        one for block in predict_in_blocks(diverged, heads, relations, tails, k=3, block=2) for one in block
    ]
    assert [one.query for one in found] == [0, 0, 0, 4]
    assert np.isnan(found[-1].score)
    assert [record.getMessage() for record in caplog.records] == [
        f"1 of {len(names)} nodes have embeddings that are not finite, the first of them {names[0]!r}: they "
        "are left out of all answers",
        f"{OF_RELATIONS} {kinds[1]!r}: they are left out of all answers",
        "query 2 and 3 more: the embedding of a given name is not finite, and so no answer has a score",
    ]


def test_odd_rows_are_found_a_part_at_a_time_and_on_either_side(tmp_path, monkeypatch, caplog):
    """The relation that is not finite is the inverse one, by which heads alone are asked for."""
    caplog.set_level(logging.WARNING)
    monkeypatch.setattr("marius_py.predict.finite._CHECKED_ROWS", 2)
    with load(write_run(tmp_path, names=NODES, diverged=1, reciprocal=True)[0]) as run:
        names, kinds = run.node_names(), run.relation_names
        run.model.relations[2 + 1] = np.nan
        found = run.neighbors([names[i] for i in (1, 2, 3, 0)], k=2)
        assert [one.node for one in found] == [names[i] for i in (1, 1, 2, 2, 3, 3)]
        assert f"{names[0]!r}: the embedding is not finite" in caplog.text
        caplog.clear()
        assert run.predict(names[2], kinds[1], k=2)
        assert not caplog.messages
        assert not run.predict(None, [kinds[1]] * 3, names[2], k=2)
        assert [one.split(":")[0] for one in caplog.messages] == ["query 1 and 2 more"]


class Root(DistMult):
    """A decoder of a user's own whose scores are NaN where DistMult's are negative."""

    def compare(self, query, candidates):
        return super().compare(query, candidates).sqrt()


@pytest.mark.parametrize("probabilities", [False, True])
def test_scores_of_a_users_decoder_that_are_nan_are_said_once(tmp_path, caplog, probabilities):
    caplog.set_level(logging.WARNING)
    with load(write_run(tmp_path, names=NODES, decoder=f"{__name__}.Root")[0]) as run:
        run.model.relations[1] = 0  # whose scores are all 0
        node, (odd, even) = run.node_names()[0], run.relation_names[:2]
        blocks = predict_in_blocks(
            run, [node] * 4, [even, odd, odd, even], k=3, block=2, probabilities=probabilities
        )
        assert {one.query for block in blocks for one in block} >= {0, 3}
    assert [one for one in caplog.messages if "NaN" in one] == [
        "query 2 and 1 more: some scores are NaN, which are no answers: look for roots, logarithms and "
        "divisions in model.decoder"
    ]


class Steep(DistMult):
    """A decoder of a user's own whose scores are infinite."""

    def compare(self, query, candidates):
        return super().compare(query, candidates) * float("inf")


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("filter_known", [False, True])
def test_no_temperature_is_fitted_to_infinite_scores(tmp_path, filter_known):
    said = (
        "the scores of the train edges are not finite: the run in .* diverged, or its decoder makes them so"
    )
    folder = write_run(tmp_path, names=NODES, decoder=f"{__name__}.Steep")[0]
    with load(folder) as run, pytest.raises(ConfigError, match=said):
        fit_temperature(run, split="train", filter_known=filter_known)


def test_a_relation_or_a_triple_whose_score_is_nan_is_said(tmp_path, caplog):
    with load(write_run(tmp_path, names=NODES, decoder=f"{__name__}.Root")[0]) as run:
        run.model.relations[0], run.model.relations[1] = -1, 1
        node, kinds = run.node_names()[0], run.relation_names
        assert np.isnan(run.predict(node, kinds[0], node)[0].score)
        assert kinds[0] not in {one.relation for one in run.predict(node, None, node)}
        assert run.predict(node, kinds[1], node)[0].score > 0
    assert [text[:28] for text in caplog.messages] == ["query 1: some scores are NaN"] * 2


def test_json_has_null_for_what_is_not_finite(tmp_path):
    numbers = [float("nan"), float("inf"), 0.5]
    with AnswerWriter(tmp_path / "a.json", "json", Prediction, io.StringIO()) as writer:
        writer.write([Prediction(0, "a", "b", "c", 1, one) for one in numbers])
    rows = json.loads((tmp_path / "a.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert [row["score"] for row in rows] == [None, None, 0.5]
    assert "probability" not in rows[0]


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
def test_what_is_not_finite_is_near_to_nothing(diverged, metric, caplog):
    caplog.set_level(logging.WARNING)
    odd, other = diverged.node_names(0, 2)
    found = diverged.neighbors([other, odd], k=50, metric=metric)
    assert len(found) == len(NODES) - 2
    assert {one.node for one in found} == {other}
    assert odd not in {one.neighbor for one in found}
    assert caplog.text.count(f"{odd!r}: the embedding is not finite") == 1


@pytest.fixture
def infinite(tmp_path):
    """A run of which two nodes and the second relation are infinite, as imported rows may be."""
    folder = write_run(tmp_path, names=NODES, diverged=2, spoilt=[np.inf, 1, 1, 1])[0]
    with load(folder) as run:
        run.model.relations[1, 0] = -np.inf
        yield run


OF_NODES = "2 of 40 nodes have embeddings that are not finite, the first of them"
OF_RELATIONS = "1 of 2 relations have embeddings that are not finite, the first of them"


@pytest.mark.parametrize("metric", ["cosine", "dot", "l2"])
@pytest.mark.parametrize("index", [False, True])
def test_nodes_that_are_infinite_are_no_neighbours(infinite, metric, index, caplog):
    names = infinite.node_names()
    for _ in range(2):  # said once of an opened run
        built = open_index(infinite, metric) if index else None
        found = infinite.neighbors(names[1:4], k=50, metric=metric, index=built)
    assert {one.node for one in found} == {*names[2:4]}
    assert {one.neighbor for one in found} == {*names[2:]}
    assert np.isfinite([one.score for one in found]).all()
    assert [text for text in caplog.messages if "nodes have" in text] == [
        f"{OF_NODES} {names[0]!r}: they are left out of all answers"
    ]


@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("filter_known", [False, True])
@pytest.mark.parametrize("k", [1, 50])
def test_what_is_infinite_is_no_answer(infinite, probabilities, filter_known, k, caplog):
    names, kinds = infinite.node_names(), infinite.relation_names
    heads, relations = [*names[2:12], names[0], names[3]], [kinds[0]] * 11 + [kinds[1]]
    for ends in ((heads, relations, None), (None, relations, heads)):
        found = infinite.predict(*ends, k=k, probabilities=probabilities, filter_known=filter_known)
        assert {one.query for one in found} == {*range(10)}
        assert not {one.head for one in found} & {*names[:2]}
        assert not {one.tail for one in found} & {*names[:2]}
        assert np.isfinite([one.score for one in found]).all()
        if probabilities and k > 1:
            np.testing.assert_allclose(sum(one.probability for one in found), 10)
    assert [text[: len(OF_NODES)] for text in caplog.messages].count(OF_NODES) == 1
    assert sum("and 1 more: the embedding of a given name" in text for text in caplog.messages) == 2


@pytest.mark.parametrize("probabilities", [False, True])
@pytest.mark.parametrize("k", [1, 2])
def test_a_relation_that_is_infinite_is_no_answer(infinite, probabilities, k, caplog):
    names, kinds = infinite.node_names(), infinite.relation_names
    found = infinite.predict(names[1:5], None, names[2:6], k=k, probabilities=probabilities)
    assert [(one.query, one.relation) for one in found] == [(i, kinds[0]) for i in (1, 2, 3)]
    assert [text for text in caplog.messages if "finite" in text] == [
        f"{OF_RELATIONS} {kinds[1]!r}: they are left out of all answers",
        "query 1: the embedding of a given name is not finite, and so no answer has a score",
    ]


def test_rows_without_numbers_are_not_blamed_on_a_decoder(tmp_path, caplog):
    with load(write_run(tmp_path, names=NODES, decoder=f"{__name__}.Own", diverged=1)[0]) as run:
        names = run.node_names()
        assert len(run.predict(names[1], run.relation_names[0], k=50)) == 39
    assert [text[:15] for text in caplog.messages] == ["1 of 40 nodes h"]


class Own(DistMult):
    """A decoder of a user's own with finite scores."""

    def compare(self, query, candidates):
        return super().compare(query, candidates)
