"""What a run reports (floor 4): metrics of its committed state, result.json, metrics.jsonl.

In: a run folder or its parts. Out: plain dicts and files, each replaced atomically.
"""

from __future__ import annotations

import json
import logging
import platform
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace as replace_fields
from pathlib import Path
from typing import Any, cast

import h5py
import numpy as np
import torch

from marius_py.evaluation.evaluator import DEFAULT_MEMORY_BYTES, Evaluator, Mode
from marius_py.evaluation.metrics import DEFAULT_KS, Metrics
from marius_py.evaluation.ranking.candidates import Ids
from marius_py.evaluation.ranking.trained import TrainedModel
from marius_py.graph import Graph
from marius_py.nn.micro_batches import is_out_of_memory
from marius_py.nn.model import LinkPredictionModel
from marius_py.nn.product_units import HostPrecision
from marius_py.run_files.names import CHECKPOINT_FOLDER
from marius_py.storage.file_io import replace_file
from marius_py.storage.protocols import Edges, EdgeStore
from marius_py.storage.reader import NodeReader, open_node_reader
from marius_py.storage.replacing import Replacing
from marius_py.types import StageProgress
from marius_py.version import __version__

LEAST_MEMORY_BYTES = 1 << 20
"""What ranking shrinks its blocks to before it leaves the device."""

log = logging.getLogger(__name__)


def rank_split(
    nodes: Path | NodeReader,
    graph: Graph,
    edges: EdgeStore,
    model: LinkPredictionModel | TrainedModel,
    split: str,
    *,
    mode: Mode = "full",
    ks: Sequence[int] = DEFAULT_KS,
    candidates: int = 1000,
    max_edges: int | None = None,
    given: Edges | None = None,
    among: Ids | None = None,
    details: bool = False,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    precision: HostPrecision = "float32",
    seed: int = 0,
    progress: StageProgress | None = None,
    touch: Callable[[], None] = lambda: None,
) -> Metrics:
    """Link-prediction metrics of a commit, embeddings streamed from disk.

    Args:
        nodes: the run folder, for its last commit, or a reader of the commit that `model` is of.
        graph: the graph it was trained on.
        edges: that graph's edges, in any number of partitions.
        model: holds the committed relations.
        split: "train", "valid" or "test".
        mode: "full", or "sampled" with half of `candidates` uniform and half by degree.
        ks: of Hits@k.
        candidates: nodes a query is ranked against in mode "sampled".
        max_edges: rank a random sample of so many edges; None: all.
        given: (E, 3) ids to rank instead of the split.
        among: (n,) ids of the nodes among which answers are ranked; None: all.
        details: also figures by category, relation and degree of the answer.
        memory_bytes: bound of the evaluator's working memory.
        precision: "bfloat16" rounds queries and candidates, for dot products.
        seed: of the samples.
        progress: called after each block of edges.
        touch: called whenever something has been read, in the caller's thread: ranking makes progress.
    """

    raised: BaseException | None = None
    """What `progress` raised: no less memory for ranking would help."""

    def report(done: int, total: int) -> None:
        nonlocal raised
        touch()
        if progress is not None:
            try:
                progress(f"rank {split}", done, total, "edges")
            except BaseException as error:
                raised = error
                raise

    ranked = model
    opened = (
        nullcontext(nodes) if isinstance(nodes, NodeReader) else open_node_reader(nodes / CHECKPOINT_FOLDER)
    )
    with opened as reader:
        while True:
            evaluator = Evaluator(
                ranked,
                cast(Any, _Touching(reader, touch)),
                cast(Any, _Touching(edges, touch)),
                graph.num_nodes,
                graph.num_relations,
                dim=model.decoder.dim,
                memory_bytes=memory_bytes,
                ks=ks,
                seed=seed,
                precision=precision,
            )
            try:
                return evaluator.evaluate(
                    split,
                    mode,
                    num_uniform=candidates - candidates // 2,
                    num_by_degree=candidates // 2,
                    edges=given,
                    among=among,
                    max_edges=max_edges,
                    details=details,
                    degrees=cast(Any, edges) if details else None,
                    progress=report,
                )
            except Exception as error:
                at_end = memory_bytes <= LEAST_MEMORY_BYTES and is_on_host(ranked)
                if at_end or error is raised or not is_out_of_memory(error):
                    raise
            # Here, not above: as long as the error lives, so does the memory of its frames.
            if memory_bytes > LEAST_MEMORY_BYTES:
                memory_bytes = max(memory_bytes // 4, LEAST_MEMORY_BYTES)
                log.warning("out of memory: ranking again in blocks of %.0f MiB", memory_bytes / 2**20)
            else:
                ranked = _on_host(model)
                log.warning("out of memory on %s: ranking on the CPU", model.device)


def is_on_host(model: LinkPredictionModel | TrainedModel) -> bool:
    """Whether a model ranks with the host's memory."""
    return model.device.type == "cpu"


def _on_host(model: LinkPredictionModel | TrainedModel) -> TrainedModel:
    """The part of a model that ranking needs, on the CPU."""
    if isinstance(model, TrainedModel):
        return replace_fields(model, relations=model.relations.cpu())
    relations = torch.from_numpy(model.state_arrays()["relations"])
    return TrainedModel(model.decoder, relations, model.reciprocal)


class _Touching:
    """Passes everything on to a reader, and calls `touch` for each of its methods."""

    def __init__(self, inner: object, touch: Callable[[], None]) -> None:
        self._inner = inner
        self._touch = touch

    def __getattr__(self, name: str) -> Any:
        self._touch()
        return getattr(self._inner, name)


def summarize(history: Sequence[Mapping[str, Any]], peaks: Mapping[str, int]) -> dict[str, Any]:
    """The "train" part of result.json.

    Args:
        history: the lines of metrics.jsonl; loads an epoch are their median.
        peaks: `memory_peaks` when training ended.
    """
    seconds = sum(line["seconds"] for line in history)
    edges = sum(line["edges"] for line in history)
    return {
        "epochs": len(history),
        "edges_per_second": edges / seconds if seconds else 0.0,
        "seconds": seconds,
        "loss": history[-1]["loss"] if history else None,
        "loads_per_epoch": float(np.median([line["loads"] for line in history])) if history else 0.0,
        "bytes_read": sum(line["bytes_read"] for line in history),
        "bytes_written": sum(line["bytes_written"] for line in history),
        "wait_disk_s": sum(line["wait_disk_s"] for line in history),
        "wait_device_s": sum(line["wait_device_s"] for line in history),
        "cpu_s": sum(line.get("cpu_s", 0.0) for line in history),
        **peaks,
    }


def memory_peaks() -> dict[str, int]:
    """The most memory that the process has had so far: resident, and allocated on a device."""
    cuda = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return {"peak_rss_bytes": peak_rss_bytes(), "peak_cuda_bytes": cuda}


def memory_report(parts: Mapping[str, int], phases: Mapping[str, int]) -> dict[str, Any]:
    """The "memory" part of result.json.

    Args:
        parts: the most bytes that each component has held.
        phases: the most resident memory up to the end of each phase.
    """
    return {**memory_peaks(), "peak_rss_bytes": dict(phases), "components": dict(sorted(parts.items()))}


def peak_rss_bytes() -> int:
    """Most resident memory that this process has had so far.

    The kernel's own count of it, where it tells: `getrusage` counts what the process was forked from as well,
    be it a notebook of many gigabytes.
    """
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    return {
        "marius_py": __version__,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": np.__version__,
        "h5py": h5py.__version__,
        "hdf5": h5py.version.hdf5_version,
    }


def write_output(path: Path, value: Mapping[str, Any]) -> None:
    """Write an object as JSON to a file of the user's, which other processes may write to as well.

    Raises:
        StorageError: writing failed, or another one writes to it; what was there is there still.
    """
    with Replacing([path]) as temporary:
        temporary[path].write_text(_json(value), encoding="utf-8")


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write `value` as JSON, replacing `path` atomically. Raises StorageError."""
    replace_file(path, _json(value).encode())


def _json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def write_lines(path: Path, lines: Iterable[Mapping[str, Any] | str]) -> None:
    """Write one JSON object a line, replacing `path` atomically. Raises StorageError.

    Args:
        path: the file.
        lines: objects, or their JSON.
    """
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    replace_file(path, "".join(f"{text}\n" for text in texts).encode())
