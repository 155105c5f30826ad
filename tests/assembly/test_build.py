"""Assembling a run: what cannot be had is refused before anything is opened."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from marius_py.assembly import folder
from marius_py.assembly.build import Watcher, train, warn_of_decline
from marius_py.assembly.folder import run_folder
from marius_py.assembly.planned import plan
from marius_py.config import EvaluateConfig, TrainConfig, compose, load_config
from marius_py.errors import ConfigError, StorageError
from marius_py.evaluating import evaluate
from marius_py.parts import check_resumable
from marius_py.prepare import prepare, prepare_arrays
from marius_py.resuming.resume import check_free
from marius_py.storage.reader import open_node_reader


def test_a_buffer_on_a_device_that_is_not_there_is_refused(tmp_path: Path) -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a CUDA device")
    config = load_config([f"output={tmp_path / 'run'}", f"graph={tmp_path / 'none'}", "storage.device=cuda"])
    with pytest.raises(ConfigError, match=r"storage\.device=cuda.*set storage\.device=cpu"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_a_missing_graph_leaves_no_run_folder(tmp_path: Path) -> None:
    config = load_config([f"output={tmp_path / 'run'}", f"graph={tmp_path / 'none'}", "device=cpu"])
    with pytest.raises(OSError, match="does not exist"):
        train(config)
    assert not (tmp_path / "run").exists()


def test_a_graph_whose_edges_cannot_be_opened_leaves_no_run_folder(tmp_path: Path) -> None:
    (tmp_path / "e.tsv").write_text("".join(f"a{i}\tr\tb{i}\n" for i in range(50)), encoding="utf-8")
    graph = prepare(tmp_path / "e.tsv", tmp_path / "graph").path
    with (graph / "edges.h5").open("r+b") as file:
        file.write(bytes(8))
    with pytest.raises(StorageError, match=r"edges\.h5"):
        train(load_config([f"output={tmp_path / 'run'}", f"graph={graph}", "device=cpu"]))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("named", "enter"),
    [
        ("the run folder {}", lambda path: check_free(path, resume=False)),
        ("--config-dir {}", lambda path: load_config([], config_dir=path)),
    ],
)
def test_a_folder_that_may_not_be_entered_is_told(
    named: str, enter: Callable[[Path], Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> bool:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "is_dir", refuse)
        patch.setattr(Path, "iterdir", refuse)
        with pytest.raises(StorageError) as caught:
            enter(tmp_path)
    assert str(caught.value) == f"{named.format(tmp_path)} cannot be read: Permission denied"


@pytest.mark.parametrize("resume", [False, True])
def test_a_link_that_leads_nowhere_is_refused(resume: bool, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("gone")
    with pytest.raises(ConfigError, match=r"^output=\S+/link is a link to gone, which is not there: make"):
        check_free(tmp_path / "link", resume=resume, trains=True)
    (tmp_path / "gone").mkdir()
    check_free(tmp_path / "link", resume=resume, trains=True)


def test_a_refused_run_without_a_name_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config([f"graph={tmp_path / 'none'}", "device=cpu"])
    with pytest.raises(OSError, match="does not exist"):
        train(config)
    assert not list(tmp_path.iterdir())
    (tmp_path / "runs").mkdir()
    with pytest.raises(OSError, match="does not exist"):
        train(config)
    assert [path.name for path in tmp_path.rglob("*")] == ["runs"]


class Noon(datetime):
    """A clock that stands still."""

    @classmethod
    def now(cls, tz: object = None) -> Noon:
        return cls(2026, 7, 1, 12)


def test_runs_of_one_second_have_folders_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder, "datetime", Noon)
    small = ["device=cpu", "model.dim=4", "training.epochs=1", "training.valid_every=0"]
    small += ["negatives.count=4", "pipeline.mode=inline", "pipeline.compute_threads=1"]
    (tmp_path / "edges.tsv").write_text("".join(f"a{i}\tr\ta{i + 1}\n" for i in range(30)))
    prepare(tmp_path / "edges.tsv", tmp_path / "graph", header=False)
    runs = [Path(train(load_config(["graph=graph", *small]))["output"]) for _ in range(2)]
    noon = tmp_path / "runs" / "2026-07-01_12-00-00"
    assert runs == [noon, noon.with_name(f"{noon.name}-2")]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(run_folder, [TrainConfig()] * 8))
    assert {path.name for path in found} == {f"{noon.name}-{number}" for number in range(3, 11)}
    with pytest.raises(ConfigError, match=r"storage\.capacity=9"):
        train(load_config(["graph=graph", *small, "storage.capacity=9"]))
    assert len(list((tmp_path / "runs").iterdir())) == 10


def test_torchs_threads_are_as_before_a_command(tmp_path: Path) -> None:
    (tmp_path / "edges.tsv").write_text("".join(f"a{i}\tr\ta{i + 1}\n" for i in range(30)))
    prepare(tmp_path / "edges.tsv", tmp_path / "graph", header=False)
    words = [f"graph={tmp_path / 'graph'}", "device=cpu", "model.dim=4", "training.epochs=1"]
    words += ["training.valid_every=0", "negatives.count=4", "pipeline.compute_threads=2"]
    torch.set_num_threads(3)
    try:
        train(load_config([*words, f"output={tmp_path / 'run'}"]))
        assert torch.get_num_threads() == 3
        with pytest.raises(ConfigError, match=r"storage\.capacity=9"):
            train(load_config([*words, f"output={tmp_path / 'other'}", "storage.capacity=9"]))
        assert torch.get_num_threads() == 3
        evaluate(compose(EvaluateConfig, [f"run={tmp_path / 'run'}", "compute_threads=2"]))
        assert torch.get_num_threads() == 3
        plan(load_config(words))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(1)


def test_a_run_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").write_text("")
    with pytest.raises(StorageError, match=r"runs/.* cannot be made: .*; give output=RUN"):
        train(load_config(["device=cpu"]))


@pytest.mark.parametrize(
    ("settings", "kept", "said"),
    [
        ([], False, True),
        ([], True, True),
        (["training.patience=2"], False, False),
        (["checkpoint.best=true"], True, False),
        (["checkpoint.best=true"], False, True),
    ],
)
def test_a_decline_is_told_only_where_no_setting_provides_for_it(
    settings: list[str], kept: bool, said: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    history = [{"epoch": epoch, "valid": {"mrr": mrr}} for epoch, mrr in ((0, 0.2), (1, 0.1))]
    if kept:
        (tmp_path / "snapshots" / "best-0001").mkdir(parents=True)
    warn_of_decline(load_config(["training.valid_every=1", *settings]), history, tmp_path)
    assert ("is 0.1000 after epoch 2," in caplog.text) == said
    assert ("no snapshot of it was kept" in caplog.text) == ("checkpoint.best=true" in settings and not kept)


def test_steps_that_leave_batches_small_are_told(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    lines = [f"a{i % 400}\tr\ta{7 * i % 397}\n" for i in range(2000)]
    (tmp_path / "edges.tsv").write_text("".join(lines))
    prepare(tmp_path / "edges.tsv", tmp_path / "graph", header=False)
    words = [f"graph={tmp_path / 'graph'}", "training.epochs=1", "model.dim=4", "storage.partitions=16"]
    for capacity, said in ((2, True), (16, False)):
        with caplog.at_level("WARNING"):
            train(load_config([*words, f"output={tmp_path / str(capacity)}", f"storage.capacity={capacity}"]))
        assert ("% of training.batch_size=" in caplog.text) == said
        caplog.clear()


@pytest.mark.parametrize(
    "words", [["training.patience=1"], ["optimizer.schedule.name=plateau"], ["checkpoint.best=true"]]
)
def test_what_goes_by_validation_is_refused_before_anything_is_written(
    words: list[str], tmp_path: Path
) -> None:
    (tmp_path / "edges.tsv").write_text("".join(f"a{i}\tr\ta{i + 1}\n" for i in range(30)))
    prepare(tmp_path / "edges.tsv", tmp_path / "graph", header=False, split=(1, 0, 0))
    run = tmp_path / "run"
    small = [f"output={run}", "device=cpu", "model.dim=4", "training.valid_every=1", "training.epochs=1"]
    small.append(f"graph={tmp_path / 'graph'}")
    with pytest.raises(ConfigError, match="no validation edges"):
        train(load_config([*small, *words]))
    assert not run.exists()
    train(load_config(small))
    before = (run / "config.yaml").read_bytes()
    again = [f"output={run}", "resume=true", "training.epochs=2"]
    with pytest.raises(ConfigError, match="no validation edges"):
        train(load_config([*again, *words]))
    assert (run / "config.yaml").read_bytes() == before
    assert train(load_config(again))["train"]["epochs"] == 2


@pytest.mark.parametrize(
    ("key", "before", "is_same"),
    [
        ("model.decoder", {"_target_": "marius_py.nn.ComplEx"}, True),
        ("model.decoder", {"_target_": "marius_py.nn.DistMult"}, False),
        ("model.decoder", {"_target_": "mine.ComplEx"}, False),
        ("optimizer.name", "marius_py.nn.optimizers.Adagrad", True),
        ("optimizer.name", "marius_py.nn.Adam", False),
        ("model.init", {"_target_": "marius_py.nn.initializers.XavierNormal"}, True),
    ],
)
def test_a_run_that_named_a_built_in_part_by_its_path_goes_on(
    key: str, before: object, is_same: bool, tmp_path: Path
) -> None:
    now = {
        "model.decoder": {"_target_": "complex"},
        "optimizer.name": "adagrad",
        "model.init": {"_target_": "xavier_normal"},
    }
    committed, wanted = {"settings": {**now, key: before}, "graph": 1}, {"settings": now, "graph": 1}
    with nullcontext() if is_same else pytest.raises(ConfigError, match=f"changed settings: {key}"):
        check_resumable(committed, wanted, tmp_path)


def test_what_has_changed_is_told_as_it_is_given(tmp_path: Path) -> None:
    committed = {"settings": {"model.decoder": {"_target_": "complex"}, "model.reciprocal": True}, "graph": 1}
    wanted = {"settings": {"model.decoder": {"_target_": "rotate"}, "model.reciprocal": False}, "graph": 2}
    for other, told in (("/b", "was /a, now /b"), ("/a", "in /a is another than then")):
        with pytest.raises(ConfigError) as error:
            check_resumable(
                committed | {"config": {"graph": "/a"}}, wanted | {"config": {"graph": other}}, tmp_path
            )
        assert (
            "model.decoder (the run has complex, now rotate); "
            "model.reciprocal (the run has true, now false); "
            f"graph (the run's {told}); set"
        ) in str(error.value)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["storage.partitions=4", "storage.capacity=3", "negatives.sampler=degree"],
        pytest.param(["model.decoder=transe", "loss=margin", "optimizer=adam"], marks=pytest.mark.slow),
        pytest.param(
            ["model.decoder=rotate", "loss=logistic", "storage.partitions=4", "storage.capacity=3"],
            marks=pytest.mark.slow,
        ),
        ["model.decoder=tests.assembly.own_parts.Plain", "storage.partitions=4", "storage.capacity=3"],
        pytest.param(["loss.smoothing=0.1", "negatives.mask_known=true"], marks=pytest.mark.slow),
        ["loss.smoothing=0.1", "model.decoder=tests.assembly.own_parts.Plain"],
        ["model.decoder=rescal", "training.regularizer.n3=0.1"],
    ],
    ids=[
        "complex",
        "partitions",
        "transe",
        "rotate",
        "autograd",
        "smoothing",
        "smoothing_autograd",
        "rescal",
    ],
)
@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_run_is_the_same_whatever_torchs_defaults_are(
    words: list[str], compiled: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marius_py.parts.is_worth_compiling", lambda *sizes: compiled)
    rows = "".join(f"a{i % 40}\tr{i % 3}\ta{(i * i + 1) % 40}\n" for i in range(400))
    (tmp_path / "edges.tsv").write_text(rows)
    prepare(tmp_path / "edges.tsv", tmp_path / "graph", header=False, partitions=4, split=(0.8, 0.1, 0.1))
    small = [f"graph={tmp_path / 'graph'}", "device=cpu", "model.dim=4", "training.epochs=2"]
    small += ["training.batch_size=64", "negatives.count=8", "negatives.chunks=2", "model.node_dropout=0.1"]
    small += ["pipeline.mode=inline", "pipeline.compute_threads=1"]
    modes: list[list[AbstractContextManager[Any]]] = [
        [],
        [default_dtype(torch.float64), torch.device("meta"), torch.inference_mode()],
        [default_dtype(torch.bfloat16), torch.autocast("cpu", dtype=torch.bfloat16)],
    ]
    if compiled:  # slow: one at a time
        modes = [[], *([one] for mode in modes for one in mode)]
    found = []
    for number, mode in enumerate(modes):
        with ExitStack() as stack:
            for one in mode:
                stack.enter_context(one)
            result = train(load_config([*small, *words, f"output={tmp_path / str(number)}"]))
        with open_node_reader(tmp_path / str(number) / "checkpoint") as reader:
            found.append((result["test"]["mrr"], reader.fingerprint))
    assert found == [found[0]] * len(modes)


@pytest.mark.parametrize("partitions", [4, 2])
def test_a_run_goes_on_with_its_graph_where_another_takes_the_place(partitions: int, tmp_path: Path) -> None:
    def prepared(shift: int) -> None:
        edges = [(node % 20, 0, (node * node + shift) % 20) for node in range(60)]
        split = {"train": edges[:40], "valid": edges[40:50], "test": edges[50:]}
        arrays = {name: np.array(some) for name, some in split.items()}
        prepare_arrays(**arrays, output=tmp_path / "graph", num_nodes=20, partitions=4, overwrite=True)

    class Replacing(Watcher):
        def on_epoch(self, line: Mapping[str, Any]) -> None:
            prepared(3)

    results = []
    for number, watcher in enumerate((Watcher(), Replacing())):
        prepared(1)
        words = [
            "device=cpu",
            "model.dim=4",
            "negatives.count=4",
            "training.epochs=2",
            "training.valid_every=1",
        ]
        words += [f"storage.partitions={partitions}", "pipeline.mode=inline", "pipeline.compute_threads=1"]
        output = f"output={tmp_path / f'run{number}'}"
        results.append(train(load_config([f"graph={tmp_path / 'graph'}", output, *words]), watcher)["test"])
    first, second = ({**one, "seconds": 0} for one in results)
    assert first == second
