"""A FAISS index over a run's embeddings (floor 4): a run in, a file beside it, approximate neighbours out.

The exact search reads the whole table for each call; an index is built once, saved, and answers in
milliseconds from memory. It says which commit it was made of, and is built again when the run has moved on.
faiss is imported on use: it is an extra.
"""

from __future__ import annotations

import json
import logging
import math
import re
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from marius_py.errors import ConfigError, MariusError, StorageError
from marius_py.evaluation.ranking.candidates import Float32, Ids
from marius_py.predict.completion import DEFAULT_MEMORY_BYTES, Progress, check_k, check_memory
from marius_py.predict.neighbors import METRICS, Metric
from marius_py.predict.topk import TopK
from marius_py.storage.file_io import file_checksum
from marius_py.storage.replacing import Replacing
from marius_py.streams import Purpose, stream

if TYPE_CHECKING:
    from marius_py.run_files.reader import RunReader

logger = logging.getLogger(__name__)

INDEX_FOLDER = "index"
AUTO = "auto"
_FORMAT = 1
_FLAT_NODES = 1 << 14
"""Below so many nodes every list would be searched anyhow."""

_SAMPLES_A_LIST = 64
_SEED = 0


def default_folder(run: RunReader) -> Path:
    """Where a run's indexes are kept unless another folder is named."""
    return run.path / INDEX_FOLDER


def factory_for(num_nodes: int) -> str:
    """faiss' description of the index that "auto" stands for.

    All vectors as they are in √N·4 lists; of few nodes one list.

    >>> factory_for(1000), factory_for(1_000_000)
    ('Flat', 'IVF4000,Flat')
    """
    return "Flat" if num_nodes < _FLAT_NODES else f"IVF{4 * math.isqrt(num_nodes)},Flat"


class NeighborIndex:
    """An index in memory; made by `open_index`. One thread at a time.

    Attributes:
        path: its file.
        metric: what it was built for.
        factory: faiss' description of it.
    """

    def __init__(self, path: Path, metric: Metric, factory: str, index: Any) -> None:
        self.path = path
        self.metric = metric
        self.factory = factory
        self._index = index

    def neighbors(self, run: RunReader, nodes: Ids, k: int) -> TopK:
        """The k nodes (approximately) most similar to each of `nodes` (Q,), itself left out.

        Returns:
            As `find_neighbors`: ids (Q, k), −1 where fewer were found, and scores (Q, k) as `metric` says.
        """
        k = min(check_k(k), max(run.num_nodes - 1, 1))
        rows = _prepared(run.embeddings(nodes), self.metric)
        values, found = self._index.search(rows, min(k + 1, run.num_nodes))
        if self.metric == "l2":
            values = -np.sqrt(np.maximum(values, 0))
        # The node itself is as a rule the first; ties and approximation may put it elsewhere, or nowhere.
        kept = (found != nodes[:, None]) & (found >= 0)
        order = np.argsort(~kept, axis=1, kind="stable")[:, :k]
        kept = np.take_along_axis(kept, order, axis=1)
        ids = np.where(kept, np.take_along_axis(found, order, axis=1), -1).astype(np.int64)
        scores = np.where(kept, np.take_along_axis(values, order, axis=1), -np.inf).astype(np.float64)
        missing = k - ids.shape[1]
        if missing > 0:
            ids = np.pad(ids, ((0, 0), (0, missing)), constant_values=-1)
            scores = np.pad(scores, ((0, 0), (0, missing)), constant_values=-np.inf)
        return TopK(ids, scores, None)


def open_index(
    run: RunReader,
    metric: Metric = "cosine",
    *,
    folder: Path | str | None = None,
    factory: str = AUTO,
    probes: int | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
) -> NeighborIndex:
    """Open a run's index, built and saved first unless there is one of this commit, metric and kind.

    Args:
        run: an open run.
        metric: "cosine", "dot" or "l2".
        folder: where indexes are kept; None: RUN/index.
        factory: "auto", or any description that faiss' index_factory takes ("HNSW32", "IVF4096,PQ32"). The
            index has to fit in memory: 4·D bytes a node unless vectors are compressed.
        probes: lists that are searched, of an index of lists (IVF); None: a sixteenth of them, at least 16.
        memory_bytes: bound of the blocks that are read while it is built, beside the index.
        progress: called with (nodes added, N).

    Raises:
        ConfigError: faiss is not installed, or it does not know the metric or the description.
        StorageError: reading or writing failed.
    """
    faiss = import_faiss()
    check_memory(memory_bytes)
    if metric not in METRICS:
        raise ConfigError(f"metric is {metric!r}; allowed: {', '.join(METRICS)}")
    described = factory_for(run.num_nodes) if factory == AUTO else factory
    place = default_folder(run) if folder is None else Path(folder)
    path = place / f"{metric}-{re.sub(r'[^A-Za-z0-9]+', '_', described)}.faiss"
    facts = {
        "format": _FORMAT,
        "rows": run.fingerprint,
        "nodes": run.num_nodes,
        "dim": run.dim,
        "metric": metric,
        "factory": described,
    }
    index = _saved(faiss, path, facts)
    if index is None:
        index = _build(faiss, run, metric, described, memory_bytes, progress)
        _save(faiss, index, path, facts)
    _set_probes(faiss, index, probes)
    return NeighborIndex(path, metric, described, index)


def import_faiss() -> Any:
    """The faiss module; ConfigError that names the extra if it is not installed."""
    try:
        with warnings.catch_warnings():
            # Wrappers made by SWIG warn about their own types from Python 3.12 on.
            warnings.simplefilter("ignore", DeprecationWarning)
            import faiss
    except ImportError as error:
        raise ConfigError(
            "an index needs faiss: pip install 'marius_py[faiss]', or search exactly, without an index"
        ) from error
    return faiss


def _build(
    faiss: Any, run: RunReader, metric: Metric, factory: str, memory_bytes: int, progress: Progress | None
) -> Any:
    """Train the index on a sample and add all rows, block by block, so that places are node ids."""
    kind = faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
    try:
        index = faiss.index_factory(run.dim, factory, kind)
        if not index.is_trained:
            index.train(_prepared(_sample(run, index), metric))
        step = max(1, memory_bytes // (8 * run.dim))
        for start in range(0, run.num_nodes, step):
            stop = min(start + step, run.num_nodes)
            index.add(_prepared(run.read_rows(start, stop), metric))
            if progress is not None:
                progress(stop, run.num_nodes)
    except (RuntimeError, AssertionError) as error:
        if isinstance(error, MariusError):
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(f"faiss cannot build the index {factory!r}: {reason}") from error
    return index


def _sample(run: RunReader, index: Any) -> Float32:
    """Rows to train on: some for each list, all of a small run."""
    wanted = max(1 << 14, _SAMPLES_A_LIST * int(getattr(index, "nlist", 0)))
    if wanted >= run.num_nodes:
        return run.to_numpy()
    ids = stream(_SEED, Purpose.EVALUATE, 4).choice(run.num_nodes, wanted, replace=False)
    return run.embeddings(np.sort(ids))


def _prepared(rows: Float32, metric: Metric) -> Float32:
    """Rows as the index compares them: of length 1 for cosine; a zero row stays zero."""
    rows = np.ascontiguousarray(rows, dtype=np.float32)
    if metric == "cosine":
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        rows = (rows / np.where(lengths > 0, lengths, 1)).astype(np.float32)
    return rows


def _set_probes(faiss: Any, index: Any, probes: int | None) -> None:
    """How many lists a search looks into, where there are lists."""
    try:
        lists = faiss.extract_index_ivf(index)
    except RuntimeError:
        if probes is not None:
            raise ConfigError("probes is for an index of lists (IVF…), and this one has none") from None
        return
    if probes is not None and not 1 <= probes <= lists.nlist:
        raise ConfigError(f"probes is {probes}; allowed: 1 to {lists.nlist}, the lists of the index")
    lists.nprobe = min(lists.nlist, max(16, lists.nlist // 16)) if probes is None else probes


# ---------------------------------------------------------------------- files


def _facts_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _saved(faiss: Any, path: Path, facts: Mapping[str, Any]) -> Any | None:
    """The index in a file if it is whole and of these facts; else None."""
    try:
        known = json.loads(_facts_path(path).read_text(encoding="utf-8"))
        if not isinstance(known, dict) or known | dict(facts) != known:
            logger.info("%s is of another commit of the run: it is built again", path)
            return None
        if known.get("xxh3") != file_checksum(path):
            logger.warning("%s is damaged or half-written: it is built again", path)
            return None
        return faiss.read_index(str(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RuntimeError) as error:
        logger.warning("%s cannot be used (%s): it is built again", path, error)
        return None


def _save(faiss: Any, index: Any, path: Path, facts: Mapping[str, Any]) -> None:
    """Write the index, then what it is of: without the second file the first is not used."""
    of = _facts_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        of.unlink(missing_ok=True)
        with Replacing([path, of]) as temporary:
            faiss.write_index(index, str(temporary[path]))
            checksum = file_checksum(temporary[path])
            temporary[of].write_text(
                json.dumps({**facts, "xxh3": checksum}, indent=2) + "\n", encoding="utf-8"
            )
    except (OSError, RuntimeError) as error:
        if isinstance(error, MariusError):
            raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise StorageError(f"writing the index {path} failed: {reason}") from error
    logger.info("%s: an index of %d nodes, %s", path, facts["nodes"], facts["factory"])
