"""A FAISS index over a run's embeddings (floor 4): a run in, a file beside it, approximate neighbours out.

The exact search reads the whole table for each call; an index is built once, saved, and finds in milliseconds
from memory which rows to read and to score. It says which commit it was made of, and is built again when the
run has moved on. Rows that are not finite are not in it. faiss is imported on use: it is an extra.
"""

from __future__ import annotations

import errno
import json
import logging
import math
import re
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from marius_py.errors import ConfigError, MariusError, MissingPathError, StorageError
from marius_py.evaluation.evaluator import DEFAULT_MEMORY_BYTES
from marius_py.evaluation.metrics import check_whole
from marius_py.evaluation.ranking.candidates import Float32, Ids
from marius_py.given import as_path
from marius_py.machine import available_cores
from marius_py.predict.completion import check_k, check_memory
from marius_py.predict.finite import only_numbers, tell_left_out
from marius_py.predict.metric import Metric, check_metric, scorer_of
from marius_py.predict.topk import Best, TopK
from marius_py.run_files.reader import RunReader, check_open
from marius_py.storage.file_io import file_checksum
from marius_py.storage.files import made_folders
from marius_py.storage.regular import read_regular
from marius_py.storage.replacing import Replacing
from marius_py.streams import Purpose, stream
from marius_py.types import Progress

logger = logging.getLogger(__name__)

INDEX_FOLDER = "index"
AUTO = "auto"
_FORMAT = 2
_FLAT_NODES = 1 << 14
"""Below so many nodes every list would be searched anyhow."""

_SAMPLES_A_LIST = 64
_SEED = 0
_SITE = re.compile(r"^Error in .* at \S+:\d+: (Error: )?")
"""Where faiss has raised an error, as its text begins."""


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
        rows: hash of the embeddings it was built of, `fingerprint` of the run.
    """

    def __init__(
        self, path: Path, metric: Metric, factory: str, rows: str, index: Any, left_out: Ids
    ) -> None:
        self.path = path
        self.metric = metric
        self.factory = factory
        self.rows = rows
        self._index = index
        self._before = left_out - np.arange(left_out.size)

    def neighbors(self, run: RunReader, nodes: Ids, k: int) -> TopK:
        """The k nodes most similar to each of `nodes` (Q,) among those that the index finds, itself left out.

        The rows that were found are read and scored as `find_neighbors` scores them.

        Returns:
            As `find_neighbors`: ids (Q, k), −1 where fewer were found, and scores (Q, k) as `metric` says.

        Raises:
            ConfigError: the run's embeddings are others than those the index was built of.
        """
        self._check(run)
        k = min(check_k(k), max(run.num_nodes - 1, 1))
        best = Best(nodes.size, k)
        scorer = scorer_of(self.metric, run)
        pairs = max(1, DEFAULT_MEMORY_BYTES // 4 // (16 * run.dim + 64))
        step = max(1, pairs // (k + 1))
        for start in range(0, nodes.size, step):
            part = nodes[start : start + step]
            rows = only_numbers(run.embeddings(part))[0]
            found = self._find(rows, k + 1)
            # The node itself is as a rule the first; ties and approximation may put it elsewhere, or nowhere.
            query, place = np.nonzero((found >= 0) & (found != part[:, None]))
            for begin in range(0, query.size, pairs):
                of = query[begin : begin + pairs]
                ids = found[of, place[begin : begin + pairs]]
                given, candidates = (
                    torch.from_numpy(side).to(scorer.device) for side in (rows[of], run.embeddings(ids))
                )
                best.merge(start + of, ids, scorer.exact(given, candidates).cpu().numpy())
        return TopK(best.ids, best.scores, None)

    def _check(self, run: RunReader) -> None:
        """Refuse a run whose rows are not those of the index: what it finds would be neighbours of others."""
        if run.fingerprint != self.rows:
            raise ConfigError(
                f"the index {self.path} is of another run than {run.path}, or of another commit of it (the "
                f"embeddings have fingerprints {self.rows} and {run.fingerprint}); give index= what "
                f"open_index(run, {self.metric!r}) returns for this run as it is open"
            )

    def _find(self, rows: Float32, count: int) -> Ids:
        """Ids (Q, count or fewer) of the nodes nearest to rows (Q, D) as faiss sees it; −1 for none."""
        count = min(count, self._index.ntotal)
        if count == 0:
            return np.empty((len(rows), 0), dtype=np.int64)
        # No candidate has a score with a row that is not finite, wherever the search for it ends.
        finite = np.isfinite(rows).all(axis=1, keepdims=True)
        places = self._index.search(_prepared(np.where(finite, rows, 0), self.metric), count)[1]
        found: Ids = places + np.searchsorted(self._before, places, side="right")
        return found


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
        ConfigError: `run` is no open run, faiss is not installed, it does not know the metric or the
            description, or `probes` does not fit the index.
        StorageError: reading or writing failed.
    """
    check_open(run)
    faiss = import_faiss()
    check_memory(memory_bytes)
    check_metric(metric)
    if not isinstance(factory, str):
        raise ConfigError(f"factory is {factory!r}; allowed: 'auto', or a description such as 'HNSW32'")
    if probes is not None:
        probes = check_whole("probes", probes, 1)
    described = factory_for(run.num_nodes) if factory == AUTO else factory
    place = default_folder(run) if folder is None else as_path(folder, "folder", "the folder of indexes")
    path = place / f"{metric}-{re.sub(r'[^A-Za-z0-9]+', '_', described)}.faiss"
    facts = {
        "format": _FORMAT,
        "rows": run.fingerprint,
        "nodes": run.num_nodes,
        "dim": run.dim,
        "metric": metric,
        "factory": described,
    }
    with _naming(described):
        empty = faiss.index_factory(
            run.dim, described, faiss.METRIC_L2 if metric == "l2" else faiss.METRIC_INNER_PRODUCT
        )
    _set_probes(faiss, empty, probes)  # refuses them before any work
    saved = _saved(faiss, path, facts)
    if saved is not None:
        index, left_out = saved
        _set_probes(faiss, index, probes)
    else:
        _check_place(place)
        index = empty
        with _naming(described):
            left_out = _fill(faiss, index, run, metric, memory_bytes, progress)
        _save(faiss, index, path, {**facts, "left_out": left_out.tolist()})
    if left_out.size:
        first = run.node_names(int(left_out[0]), int(left_out[0]) + 1)[0]
        tell_left_out(run, "nodes", left_out.size, run.num_nodes, first)
    return NeighborIndex(path, metric, described, run.fingerprint, index, left_out)


def import_faiss() -> Any:
    """The faiss module, with no more threads than the cores that this process may use.

    Raises:
        ConfigError: it is not installed; names the extra.
    """
    try:
        with warnings.catch_warnings():
            # Wrappers made by SWIG warn about their own types from Python 3.12 on.
            warnings.simplefilter("ignore", DeprecationWarning)
            import faiss
    except ImportError as error:
        raise ConfigError(
            "an index needs faiss: pip install 'marius_py[faiss]', or search exactly, without an index"
        ) from error
    faiss.omp_set_num_threads(min(faiss.omp_get_max_threads(), available_cores()))
    return faiss


@contextmanager
def _naming(factory: str) -> Iterator[None]:
    """Turn what faiss raises into a ConfigError that names the index."""
    try:
        yield
    except (RuntimeError, AssertionError) as error:
        if isinstance(error, MariusError):
            raise
        text = " ".join(str(error).split())
        raise ConfigError(
            f"faiss cannot build the index {factory!r} of this run: {_SITE.sub('', text)}; --index-type (in "
            "Python factory=) takes auto, or what faiss' index_factory does, such as Flat, HNSW32 or "
            "IVF64,Flat"
        ) from error


def _fill(
    faiss: Any, index: Any, run: RunReader, metric: Metric, memory_bytes: int, progress: Progress | None
) -> Ids:
    """Train the index on a sample and add all finite rows, block by block, in the order of ids.

    Returns:
        Ids (n,), ascending, of the nodes whose rows are not finite, which are left out.
    """
    if not index.is_trained:
        rows = _sample(run, _lists_of(faiss, index))
        rows = rows[np.isfinite(rows).all(axis=1)]
        if len(rows):
            index.train(_prepared(rows, metric))
    left_out = [np.empty(0, dtype=np.int64)]
    step = max(1, memory_bytes // (8 * run.dim))
    for start in range(0, run.num_nodes, step):
        stop = min(start + step, run.num_nodes)
        rows = run.read_rows(start, stop)
        finite = np.isfinite(rows).all(axis=1)
        if not finite.all():
            left_out.append(start + np.flatnonzero(~finite))
            rows = rows[finite]
        if len(rows):
            index.add(_prepared(rows, metric))
        if progress is not None:
            progress(stop, run.num_nodes)
    return np.concatenate(left_out)


def _sample(run: RunReader, lists: Any) -> Float32:
    """Rows to train on: some for each of the lists, if there are any; all of a small run."""
    wanted = max(1 << 14, _SAMPLES_A_LIST * (0 if lists is None else int(lists.nlist)))
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


def _lists_of(faiss: Any, index: Any) -> Any:
    """The part of an index that has lists, whatever comes before or after it; None if there is none."""
    try:
        return faiss.extract_index_ivf(index)
    except RuntimeError:
        return None


def _set_probes(faiss: Any, index: Any, probes: int | None) -> None:
    """How many lists a search looks into, where there are lists."""
    lists = _lists_of(faiss, index)
    if lists is None:
        if probes is not None:
            raise ConfigError("probes is for an index of lists (IVF…), and this one has none")
        return
    if probes is not None and not 1 <= probes <= lists.nlist:
        raise ConfigError(f"probes is {probes}; allowed: 1 to {lists.nlist}, the lists of the index")
    lists.nprobe = min(lists.nlist, max(16, lists.nlist // 16)) if probes is None else probes


# ---------------------------------------------------------------------- files


def _facts_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def _saved(faiss: Any, path: Path, facts: Mapping[str, Any]) -> tuple[Any, Ids] | None:
    """The index in a file, and the ids it lacks, if it is whole and of these facts; else None."""
    try:
        known = json.loads(read_regular(_facts_path(path)))
        if not isinstance(known, dict) or known | dict(facts) != known:
            logger.info("%s is of another commit of the run: it is built again", path)
            return None
        if known.get("xxh3") != file_checksum(path):
            logger.warning("%s is damaged or half-written: it is built again", path)
            return None
        return faiss.read_index(str(path)), np.array(known["left_out"], dtype=np.int64)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, TypeError, LookupError, RuntimeError) as error:
        logger.warning("%s cannot be used (%s): it is built again", path, error)
        return None


def _check_place(folder: Path) -> None:
    """Refuse a folder in which no index can be written, before one is built.

    One that is not there is not made: who opens the index at the same time would find it, and then lose it.
    """
    other = "give another --index-folder (in Python folder=)"
    try:
        around = (folder, *folder.absolute().parents)
        above = next(one for one in around if one.exists() or one.is_symlink())
        if not above.is_dir():
            kind = "a file" if above.exists() else "a link that leads nowhere"
            where = f"is {kind}" if above == folder else f"lies below {above}, which is {kind}"
            raise ConfigError(f"the folder {folder} of the index {where}: {other}")
        with tempfile.TemporaryFile(dir=above):
            pass
    except OSError as error:
        error_type = MissingPathError if error.errno == errno.ENAMETOOLONG else StorageError
        raise error_type(
            f"the folder {folder} of the index cannot be written to ({error.strerror}): {other}"
        ) from error


def _save(faiss: Any, index: Any, path: Path, facts: Mapping[str, Any]) -> None:
    """Write the index, then what it is of: without the second file the first is not used.

    Where another thread writes the same index at this moment, that is left to it.
    """
    of = _facts_path(path)
    try:
        with made_folders(path.parent), Replacing([path, of]) as temporary:
            # Through a file of Python's: of what faiss opens itself, an error in closing is printed and lost.
            with temporary[path].open("wb") as file:
                faiss.write_index(index, faiss.PyCallbackIOWriter(file.write))
            checksum = file_checksum(temporary[path])
            temporary[of].write_text(
                json.dumps({**facts, "xxh3": checksum}, indent=2) + "\n", encoding="utf-8"
            )
            of.unlink(missing_ok=True)
    except (OSError, RuntimeError) as error:
        if isinstance(error.__cause__, BlockingIOError):
            logger.info("%s is saved by another thread", path)
            return
        if isinstance(error, MariusError):
            raise
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        raise StorageError(f"writing the index {path} failed: {reason}") from error
    logger.info("%s: an index of %d nodes, %s", path, facts["nodes"], facts["factory"])
