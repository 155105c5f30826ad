"""Writes a run's embeddings with their node names (floor 4): a run in, files of common formats out.

Rows are read and written in blocks, so memory does not grow with the number of nodes. Files appear whole or
not at all: each is written beside its place under a temporary name and renamed at the end.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from marius_py.buffer.numbers import NotFinite
from marius_py.errors import ConfigError
from marius_py.evaluation.metrics import check_whole
from marius_py.export.formats import (
    check_words,
    new_folder,
    number_lines,
    words,
    write_pbg,
    write_projector,
    write_safetensors,
)
from marius_py.export.formats import one_line as _lines
from marius_py.given import as_path, check_flags
from marius_py.run_files.outputs import check_output
from marius_py.run_files.reader import RunReader, open_run
from marius_py.storage.replacing import Replacing
from marius_py.storage.targets import check_file_name
from marius_py.types import EXPORT_FORMATS, ExportFormat, StageProgress

logger = logging.getLogger(__name__)

Float32 = NDArray[np.float32]

_SUFFIX = {"npy": ".npy", "parquet": ".parquet", "tsv": ".tsv", "word2vec": ".txt"}
_NAME_BLOCK = 1 << 16
_NOT_FINITE = "%d of %d %s hold a NaN or an infinity, the first that of %r; they are written as they are"


class _Writer(Protocol):
    def write(self, names: Sequence[str], rows: Float32) -> None: ...

    def close(self) -> None: ...


def export(
    run: RunReader | Path | str,
    output: Path | str,
    format: ExportFormat = "npy",
    *,
    overwrite: bool = False,
    relations: bool = True,
    block_bytes: int = 32 << 20,
    progress: StageProgress | None = None,
) -> list[Path]:
    """Write all embeddings, in the order of node ids, and beside them the relations.

    - npy: `output` (N, D) float32, and one name a line in STEM.names.txt;
    - parquet: columns `name` and `embedding` (a fixed-size list of D float32);
    - tsv: a line a node, the name and D numbers between tabs, shortest digits that read back equal;
    - word2vec: a first line "N D", then name and numbers between blanks; blanks in names become "_", and
      names that would become equal are refused;
    - safetensors: tensors `nodes` and `relations` in one file, and names in STEM.names.txt and
      STEM.relations.names.txt;
    - pbg: a folder that is checkpoint and entity folder of PyTorch-BigGraph, with dynamic relations;
    - projector: a log folder for TensorBoard's embedding projector.

    Otherwise relations go to STEM.relations.SUFFIX in the same format, SUFFIX that of `output` or else the
    format's; of a reciprocal run the inverses follow, their names ending in "^-1". A decoder without relation
    parameters writes none.

    Args:
        run: an open run, or the path of a run folder.
        output: file, or folder, to write.
        format: one of `EXPORT_FORMATS`.
        overwrite: replace files that exist, and a folder that is empty or that an earlier export wrote.
        relations: write the relations too.
        block_bytes: bytes of embeddings in memory at a time.
        progress: called with ("export", nodes done, N, "nodes").

    Returns:
        The files written, `output` first.

    Raises:
        ConfigError: unknown format, an argument of a wrong type, a file exists, or is one of the run or its
            graph, no such folder, or a folder to replace that holds what no export wrote.
        FormatError: a name holds a tab or line break, which a text format cannot carry, or two names become
            the same word of word2vec.
        StorageError: reading or writing failed; no file was changed.
    """
    if format not in EXPORT_FORMATS:
        raise ConfigError(f"format is {format!r}; allowed: {', '.join(EXPORT_FORMATS)}")
    check_flags(overwrite=overwrite, relations=relations)
    check_whole("block_bytes", block_bytes, 1)
    target = as_path(output, "output", "the file to write, or the folder")
    if format not in ("pbg", "projector"):
        check_file_name(output, f"output={output}")
    if not isinstance(run, RunReader):
        with open_run(RunReader, run, None, "cpu") as opened:
            return export(
                opened,
                output,
                format,
                overwrite=overwrite,
                relations=relations,
                block_bytes=block_bytes,
                progress=progress,
            )
    names, rows = run.relations()
    with_relations = relations and rows.shape[1] > 0
    odd = np.flatnonzero(~np.isfinite(rows).all(axis=1)) if with_relations else np.empty(0, np.int64)
    if odd.size:
        logger.warning(_NOT_FINITE, odd.size, len(rows), "relation rows", names[int(odd[0])])
    if format in ("pbg", "projector"):
        parts = _blocks(run, block_bytes, progress)
        with new_folder(target, overwrite=overwrite) as folder:
            if format == "pbg":
                write_pbg(folder, run, parts, with_relations=with_relations)
            else:
                write_projector(folder, parts, (names, rows) if with_relations else None)
        return [target]
    if format in ("npy", "safetensors"):
        _tell_order(run, _names_file(target))
    if format == "safetensors":
        return _export_safetensors(
            run,
            target,
            (names, rows) if with_relations else None,
            overwrite,
            _blocks(run, block_bytes, progress),
        )
    beside = target.with_name(f"{target.stem}.relations{target.suffix or _SUFFIX[format]}")
    targets = _files(target, format) + (_files(beside, format) if with_relations else [])
    _check_targets(run, targets, overwrite)
    if format == "word2vec":
        check_words("nodes", lambda: _name_blocks(run))
        check_words("relations", lambda: [names if with_relations else []])
    with Replacing(targets) as temporary:
        writer = _open(format, temporary, target, run.num_nodes, run.dim)
        _copy(writer, _blocks(run, block_bytes, progress))
        if with_relations:
            _copy(_open(format, temporary, beside, *rows.shape), [(names, rows)])
    return targets


def _export_safetensors(
    run: RunReader,
    target: Path,
    relations: tuple[list[str], Float32] | None,
    overwrite: bool,
    blocks: Iterable[tuple[Sequence[str], Float32]],
) -> list[Path]:
    targets = [target, _names_file(target)]
    if relations is not None:
        targets.append(target.with_name(f"{target.stem}.relations.names.txt"))
    _check_targets(run, targets, overwrite)
    with Replacing(targets) as temporary, temporary[targets[1]].open("wb") as names:
        rows = None if relations is None else relations[1]
        write_safetensors(temporary[target], blocks, run.num_nodes, run.dim, rows, names)
        if relations is not None:
            lines = "".join(f"{name}\n" for name in _lines(relations[0]))
            temporary[targets[2]].write_text(lines, encoding="utf-8", newline="\n")
    return targets


def _tell_order(run: RunReader, names: Path) -> None:
    """Log that rows do not follow the names of nodes where these are numbers, taken for places else."""
    first = run.graph.node_names(0, min(5, run.num_nodes))
    if all(name.isdecimal() for name in first):
        logger.info("rows are in the order of %s: the first is that of node %s", names, first[0])


def _files(target: Path, format: ExportFormat) -> list[Path]:
    """The files that one table becomes."""
    return [target, _names_file(target)] if format == "npy" else [target]


def _names_file(target: Path) -> Path:
    return target.with_name(f"{target.stem}.names.txt")


def _check_targets(run: RunReader, targets: Sequence[Path], overwrite: bool) -> None:
    for path in targets:
        check_output(run, path, f"output={path}", overwrite=overwrite)


def _blocks(
    run: RunReader, block_bytes: int, progress: StageProgress | None
) -> Iterator[tuple[list[str], Float32]]:
    """Names and rows of all nodes; warns of rows that are not finite, once they are through."""
    step = max(1, block_bytes // (4 * run.dim))
    odd = NotFinite()
    for start in range(0, run.num_nodes, step):
        stop = min(start + step, run.num_nodes)
        rows = run.read_rows(start, stop)
        odd.see(rows, start)
        yield run.node_names(start, stop), rows
        if progress is not None:
            progress("export", stop, run.num_nodes, "nodes")
    if odd.count:
        first = run.node_names(odd.first, odd.first + 1)[0]
        logger.warning(_NOT_FINITE, odd.count, run.num_nodes, "embeddings", first)


def _name_blocks(run: RunReader) -> Iterator[list[str]]:
    for start in range(0, run.num_nodes, _NAME_BLOCK):
        yield run.node_names(start, min(start + _NAME_BLOCK, run.num_nodes))


def _copy(writer: _Writer, blocks: Iterable[tuple[Sequence[str], Float32]]) -> None:
    try:
        for names, rows in blocks:
            writer.write(names, rows)
    finally:
        writer.close()


def _open(
    format: ExportFormat, temporary: dict[Path, Path], target: Path, num_rows: int, dim: int
) -> _Writer:
    path = temporary[target]
    if format == "npy":
        return _Npy(path, temporary[_names_file(target)], num_rows, dim)
    if format == "parquet":
        return _Parquet(path, dim)
    return _Text(path, num_rows, dim, word2vec=format == "word2vec")


class _Npy:
    """The array in one file, the names in another."""

    def __init__(self, path: Path, names: Path, num_rows: int, dim: int) -> None:
        with ExitStack() as stack:
            self._rows: BinaryIO = stack.enter_context(path.open("wb"))
            self._names: BinaryIO = stack.enter_context(names.open("wb"))
            header = {"descr": "<f4", "fortran_order": False, "shape": (num_rows, dim)}
            np.lib.format.write_array_header_1_0(self._rows, header)
            self._files = stack.pop_all()

    def write(self, names: Sequence[str], rows: Float32) -> None:
        self._rows.write(np.ascontiguousarray(rows, dtype="<f4").data)
        self._names.write("".join(f"{name}\n" for name in _lines(names)).encode())

    def close(self) -> None:
        self._files.close()


class _Parquet:
    """A row group a block."""

    def __init__(self, path: Path, dim: int) -> None:
        self._dim = dim
        self._schema = pa.schema([("name", pa.string()), ("embedding", pa.list_(pa.float32(), dim))])
        with ExitStack() as stack:
            file = stack.enter_context(path.open("wb"))  # Arrow takes no path that is not UTF-8
            self._file = stack.enter_context(
                pq.ParquetWriter(file, self._schema, compression="zstd", use_dictionary=False)
            )
            self._files = stack.pop_all()

    def write(self, names: Sequence[str], rows: Float32) -> None:
        values = pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), self._dim)
        self._file.write_table(pa.table([pa.array(names, pa.string()), values], schema=self._schema))

    def close(self) -> None:
        self._files.close()


class _Text:
    """Lines of a name and numbers."""

    def __init__(self, path: Path, num_rows: int, dim: int, *, word2vec: bool) -> None:
        self._separator, self._named = (" ", words) if word2vec else ("\t", _lines)
        self._file: BinaryIO = path.open("wb")
        if word2vec:
            self._file.write(f"{num_rows} {dim}\n".encode())

    def write(self, names: Sequence[str], rows: Float32) -> None:
        texts = number_lines(rows, self._separator).decode("ascii").splitlines(keepends=True)
        named = zip(self._named(names), texts, strict=True)
        self._file.write("".join(f"{name}{self._separator}{text}" for name, text in named).encode())

    def close(self) -> None:
        self._file.close()
