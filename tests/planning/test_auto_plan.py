"""storage.partitions=auto: numbers are chosen once, stored with the run, and never change it afterwards."""

from functools import partial

import numpy as np
import pytest
import yaml

from marius_py import cli, load_config
from marius_py.data.batch_settings import check_answers
from marius_py.errors import ConfigError
from marius_py.graph import open_graph
from marius_py.nn.model import LinkPredictionModel
from marius_py.parts import partitioning_of
from marius_py.prepare import prepare_arrays

LIMIT = 4 << 20
"""Bytes; the table with its state takes 40,000 · 32 · 4 = 5.1 million."""


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    """40,000 nodes, 3000 edges, 4 partitions."""
    rng = np.random.default_rng(0)
    edges = np.stack(
        [rng.integers(40_000, size=3000), np.zeros(3000, int), rng.integers(40_000, size=3000)], axis=1
    )
    folder = tmp_path_factory.mktemp("auto") / "graph"
    prepare_arrays(edges, folder, partitions=4, num_nodes=40_000)
    return folder


@pytest.fixture
def memory(monkeypatch):
    """Sets the bytes that are available, of which half may be taken."""
    monkeypatch.setattr("marius_py.assembly.probes._PROBE_S", 0.01)
    monkeypatch.setattr("marius_py.planning.disk._PROBE_BYTES", 1 << 20)

    def limit(num_bytes):
        monkeypatch.setattr("marius_py.assembly.planned.available_memory", lambda device="cpu": num_bytes)

    return limit


def train(graph, run, *words):
    given = ["model.decoder=distmult", "model.dim=16", "training.epochs=1", "training.valid_every=0"]
    code = cli.train([f"graph={graph}", f"output={run}", "negatives.count=16", *given, *words])
    assert code == 0
    return yaml.safe_load((run / "config.yaml").read_text())["storage"]


def plans(capsys):
    """Lines of the log since the last call that tell of a plan."""
    return [line for line in capsys.readouterr().err.splitlines() if " plan: " in line]


def test_everything_stays_in_memory_if_it_fits(graph, tmp_path, capsys):
    storage = train(graph, tmp_path / "run", "storage.partitions=auto")
    assert (storage["partitions"], storage["capacity"]) == (4, 4)
    (line,) = plans(capsys)
    assert "everything in memory" in line


@pytest.mark.slow
def test_relations_leave_less_to_the_buffer(graph, tmp_path, memory, monkeypatch):
    memory(3 * LIMIT)
    for size, in_memory in ((0, True), (LIMIT // 2, False)):
        monkeypatch.setattr(LinkPredictionModel, "relation_bytes", size)
        storage = train(graph, tmp_path / str(size), "storage.partitions=auto")
        assert (storage["partitions"] == storage["capacity"]) == in_memory


def test_a_run_keeps_what_was_chosen_for_it(graph, tmp_path, memory, capsys):
    memory(2 * LIMIT)
    run = tmp_path / "run"
    first = train(graph, run, "storage.partitions=auto")
    slots = -(-40_000 // first["partitions"]) * 128 * (first["capacity"] + 1)
    assert 2 <= first["capacity"] < first["partitions"]
    assert slots <= LIMIT
    assert len(plans(capsys)) == 1
    memory(1 << 30)
    again = train(graph, run, "resume=true", "training.epochs=2", "storage.partitions=auto")
    assert again == first
    (line,) = plans(capsys)
    assert "as the run began" in line
    assert train(graph, run, "resume=true", "training.epochs=3") == first
    assert not plans(capsys)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["storage.capacity=auto"], (4, 2)),
        (["storage.partitions=8", "storage.capacity=auto"], (8, 4)),
        (["storage.partitions=auto", "storage.capacity=2"], (4, 2)),
    ],
)
def test_what_is_given_is_kept(graph, tmp_path, memory, words, expected):
    memory(2 * LIMIT)
    storage = train(graph, tmp_path / "run", *words)
    assert (storage["partitions"], storage["capacity"]) == expected


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["storage.capacity=auto"], (None, 2)),
        (["storage.partitions=auto"], (None, 2)),
        (["storage.partitions=auto", "storage.capacity=3"], (None, 3)),
    ],
)
def test_a_run_that_began_without_a_plan_keeps_its_numbers(graph, tmp_path, capsys, words, expected):
    run = tmp_path / "run"
    train(graph, run, "storage.capacity=2", "checkpoint.every_steps=4")
    storage = train(graph, run, "resume=true", "training.epochs=2", *words)
    assert (storage["partitions"], storage["capacity"]) == expected
    (line,) = plans(capsys)
    assert f"storage.partitions=null storage.capacity={expected[1]}, as the run began" in line


@pytest.mark.parametrize("more", [0, 1])
def test_no_plan_is_told_that_training_refuses(graph, memory, capsys, monkeypatch, more):
    """Questions are counted among so many known edges at most."""
    memory(1 << 30)
    number = open_graph(graph).num_edges["train"]
    limit = partial(check_answers, limit=number - more)
    monkeypatch.setattr("marius_py.assembly.checks.check_answers", limit)
    words = [f"graph={graph}", "negatives.per_question=true", "device=cpu", "model.dim=16"]
    assert cli.plan([*words, "storage.partitions=4", "training.valid_every=0"]) == (2 if more else 0)
    told = f"storage.capacity=4 of storage.partitions=4 there may be {number}: set a smaller storage.capacity"
    assert (told in capsys.readouterr().err) == bool(more)


def test_what_does_not_fit_is_said_before_relations_are_made(graph, tmp_path, memory, capsys, monkeypatch):
    memory(1000)
    monkeypatch.setattr("marius_py.assembly.planned.make_model", None)
    assert cli.train([f"graph={graph}", f"output={tmp_path / 'run'}", "storage.partitions=auto"]) == 2
    assert "the buffer needs" in capsys.readouterr().err


def test_batches_that_do_not_fit_are_told_before_one_is_measured(graph, memory, capsys, monkeypatch):
    memory(1 << 30)
    monkeypatch.setattr("marius_py.assembly.planned.measure_disk", None)
    monkeypatch.setattr("marius_py.assembly.checks.memory_with_swap", lambda device: 1 << 30)
    assert cli.plan([f"graph={graph}", "negatives.count=20000000", "device=cpu"]) == 2
    assert "a batch needs 1.2 GiB" in capsys.readouterr().err


def test_other_words_are_refused(graph, capsys):
    assert cli.train([f"graph={graph}", "storage.partitions=many"]) == 2
    assert "an integer from 1 to 1024 (partitions), or auto, or null" in capsys.readouterr().err
    config = load_config([f"graph={graph}", "storage.partitions=auto"])
    with pytest.raises(ConfigError, match="chosen when a run starts"):
        partitioning_of(open_graph(graph), config)
