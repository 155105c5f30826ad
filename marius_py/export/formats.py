"""Formats of other programs (floor 4): a run in; safetensors, PyTorch-BigGraph, TensorBoard projector out.

Also what names become in lines of text and in word2vec's words.

Blocks of embeddings stream through, as in `export`, which calls these. PyTorch-BigGraph and the projector
take a folder: it is built beside its place and renamed at the end, so it appears whole or not at all.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.csv
import xxhash
from numpy.typing import NDArray

from marius_py.errors import ConfigError, FormatError, MariusError, StorageError
from marius_py.run_files.reader import RunReader
from marius_py.storage import folders
from marius_py.storage.file_io import os_errors_as_storage, sync_path
from marius_py.storage.files import allocate, reason_of
from marius_py.storage.targets import check_no_nul

Float32 = NDArray[np.float32]
Blocks = Iterable[tuple[Sequence[str], Float32]]

_ENTITY = "all"
_RELATION = "all_edges"
_VERSION = 1
_HDF5_ROOM = 1 << 16
"""Bytes that a file of HDF5 takes beside its values, at most."""

_OPERATORS: dict[str, tuple[str, str]] = {
    "dot": ("none", "dot"),
    "distmult": ("diagonal", "dot"),
    "complex": ("complex_diagonal", "dot"),
    "transe": ("translation", "l2"),
}
"""Decoder → PyTorch-BigGraph's operator and comparator with the same score."""


_UNWRITTEN = {
    "rescal": "matrices of the decoder rescal are not written, though PyTorch-BigGraph's operator linear "
    "could hold them"
}
"""Decoder → why its relations are not exported though there is an operator for them."""
_VERB = "exporting"

_WRITTEN = (
    (
        {"projector_config.pbtxt"},
        {
            "projector_config.pbtxt",
            "nodes.tsv",
            "nodes_names.tsv",
            "relations.tsv",
            "relations_names.tsv",
        },
    ),
    (
        {"checkpoint_version.txt", f"embeddings_{_ENTITY}_0.v{_VERSION}.h5"},
        {
            "checkpoint_version.txt",
            f"embeddings_{_ENTITY}_0.v{_VERSION}.h5",
            f"entity_count_{_ENTITY}_0.txt",
            f"entity_names_{_ENTITY}_0.json",
            f"model.v{_VERSION}.h5",
            "config.json",
            "dynamic_rel_count.txt",
            "dynamic_rel_names.json",
        },
    ),
)
"""Of a folder for the projector, and of one for PyTorch-BigGraph: files that tell it, and all its files."""
_UNKNOWN = "PyTorch-BigGraph has no operator that scores like the decoder {decoder}, as far as is known here"


def write_safetensors(
    path: Path, blocks: Blocks, num_nodes: int, dim: int, relations: Float32 | None, names: BinaryIO
) -> None:
    """Write tensors `nodes` (N, D) and `relations` (R, Dr), F32, and a line a node name to `names`.

    The format is an eight-byte length, a JSON header, and the tensors' bytes; no library is needed.
    """
    tensors: dict[str, Any] = {}
    offset = 0
    shapes = {"nodes": (num_nodes, dim)}
    if relations is not None:
        shapes["relations"] = relations.shape
    for name, shape in shapes.items():
        size = 4 * shape[0] * shape[1]
        tensors[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    header = json.dumps({"__metadata__": {"format": "pt"}, **tensors}).encode()
    header += b" " * (-len(header) % 8)
    with path.open("wb") as file:
        file.write(len(header).to_bytes(8, "little") + header)
        for block_names, rows in blocks:
            file.write(np.ascontiguousarray(rows, dtype="<f4").data)
            names.write("".join(f"{name}\n" for name in one_line(block_names)).encode())
        if relations is not None:
            file.write(np.ascontiguousarray(relations, dtype="<f4").data)


def write_projector(folder: Path, blocks: Blocks, relations: tuple[list[str], Float32] | None) -> None:
    """Write a log folder of TensorBoard's embedding projector."""
    tables = {"nodes": blocks}
    if relations is not None:
        tables["relations"] = [relations]
    config = ""
    for name, parts in tables.items():
        with (
            (folder / f"{name}.tsv").open("wb") as vectors,
            (folder / f"{name}_names.tsv").open("wb") as texts,
        ):
            for names, rows in parts:
                vectors.write(number_lines(rows, "\t"))
                texts.write("".join(f"{one}\n" for one in one_line(names)).encode())
        config += (
            f'embeddings {{\n  tensor_name: "{name}"\n  tensor_path: "{name}.tsv"\n'
            f'  metadata_path: "{name}_names.tsv"\n}}\n'
        )
    (folder / "projector_config.pbtxt").write_text(config, encoding="utf-8")


def write_pbg(folder: Path, run: RunReader, blocks: Blocks, *, with_relations: bool) -> None:
    """Write entities and a checkpoint as PyTorch-BigGraph lays them out, with one entity type in one part.

    Relations become dynamic relations: the left-hand operator asks for tails and the right-hand one for
    heads, which is what the two rows of a reciprocal relation do. The relation of a graph without relations
    is static where its operator is none, and else the only dynamic one.

    Raises:
        ConfigError: PyTorch-BigGraph has no operator that scores like the run's decoder.
    """
    decoder = _decoder_name(run)
    if with_relations and decoder not in _OPERATORS:
        raise ConfigError(
            f"format=pbg: {_UNWRITTEN.get(decoder, _UNKNOWN.format(decoder=decoder))}; relations are written "
            f"for {', '.join(_OPERATORS)}: leave them out with --no-relations (in Python relations=False)"
        )
    _write_pbg_entities(folder, run, blocks)
    operator, comparator = _OPERATORS.get(decoder, ("none", "dot"))
    sides = _sides(run, decoder) if with_relations else ()
    with _hdf5(folder / f"model.v{_VERSION}.h5", sum(rows.nbytes for rows in sides)) as file:
        group = file.create_group("model", track_order=True)
        for side, rows in zip(("lhs", "rhs"), sides, strict=False):
            for name, values in _parameters(operator, rows).items():
                data = group.create_dataset(f"relations/0/operator/{side}/{name}", data=values)
                data.attrs["state_dict_key"] = f"{side}_operators.0.{name}"
    dynamic = run.graph.has_relations or operator != "none"
    if dynamic:
        names = run.relation_names if run.graph.has_relations else [_RELATION]
        _write_json(folder / "dynamic_rel_names.json", names)
        (folder / "dynamic_rel_count.txt").write_text(f"{len(names)}\n", encoding="ascii")
    config = {
        "entity_path": ".",
        "edge_paths": [],
        "checkpoint_path": ".",
        "entities": {_ENTITY: {"num_partitions": 1}},
        "relations": [{"name": _RELATION, "lhs": _ENTITY, "rhs": _ENTITY, "operator": operator}],
        "dynamic_relations": dynamic,
        "dimension": run.dim,
        "global_emb": False,
        "comparator": comparator,
    }
    _write_json(folder / "config.json", config)
    (folder / "checkpoint_version.txt").write_text(f"{_VERSION}\n", encoding="ascii")


def _write_pbg_entities(folder: Path, run: RunReader, blocks: Blocks) -> None:
    """Count, names and embeddings of the one part of the one entity type."""
    (folder / f"entity_count_{_ENTITY}_0.txt").write_text(f"{run.num_nodes}\n", encoding="ascii")
    with (
        (folder / f"entity_names_{_ENTITY}_0.json").open("w", encoding="utf-8") as names,
        _hdf5(folder / f"embeddings_{_ENTITY}_0.v{_VERSION}.h5", 4 * run.num_nodes * run.dim) as file,
    ):
        table = file.create_dataset("embeddings", (run.num_nodes, run.dim), dtype="<f4")
        start = 0
        for block_names, rows in blocks:
            table[start : start + len(rows)] = rows
            part = json.dumps(list(block_names), ensure_ascii=False)
            names.write(("," if start else "[") + part[1:-1])
            start += len(rows)
        names.write("]\n")


@contextmanager
def _hdf5(path: Path, size: int) -> Iterator[h5py.File]:
    """A new HDF5 file of PyTorch-BigGraph for `size` bytes of values.

    HDF5 may end the process where it cannot write the last of a file while closing it, so that the file
    system is asked first for as much room, which others may take meanwhile.

    Raises:
        OSError: there is none, or writing failed.
    """
    with path.open("wb") as plain:
        allocate(plain.fileno(), size + _HDF5_ROOM)  # or writing finds out
    try:
        with h5py.File(path, "w", locking=False) as file:
            file.attrs["format_version"] = 1
            yield file
    except RuntimeError as error:
        raise OSError(f"{path.name}: {error}") from error


def _write_json(path: Path, value: Any) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _decoder_name(run: RunReader) -> str:
    setting = run.settings.get("model.decoder")
    name = setting.get("_target_") if isinstance(setting, dict) else setting
    if name == "transe" and isinstance(setting, dict) and setting.get("norm", "l2") != "l2":
        return "transe with norm l1"
    return str(name)


def _sides(run: RunReader, decoder: str) -> tuple[Float32, Float32]:
    """Rows (R, Dr) that are applied to the head to ask for tails, and to the tail to ask for heads."""
    rows = run.relations()[1]
    count = run.graph.num_relations
    if run.model.reciprocal:
        return rows[:count], rows[count:]
    inverse = rows.copy()
    if decoder == "complex":  # the conjugate
        inverse[:, rows.shape[1] // 2 :] *= -1
    elif decoder == "transe":
        inverse *= -1
    return rows, inverse


def _parameters(operator: str, rows: Float32) -> dict[str, Float32]:
    half = rows.shape[1] // 2
    if operator == "complex_diagonal":
        return {"real": rows[:, :half], "imag": rows[:, half:]}
    names = {"diagonal": "diagonals", "translation": "translations"}
    return {names[operator]: rows} if operator in names else {}


@contextmanager
def new_folder(target: Path, *, overwrite: bool) -> Iterator[Path]:
    """A temporary folder that takes `target`'s place when the block ends well.

    Of folders that exist only an empty one, or one that an export wrote, is replaced.

    Raises:
        ConfigError: `target` exists and is not to be overwritten, it holds what no export wrote, or there is
            no folder for it.
        StorageError: writing failed, and nothing was replaced unless it says so; or another process exports
            to it.
    """
    check_no_nul(target, f"output={target}")
    target = Path(os.path.realpath(target))
    check = partial(_check_target, target, overwrite)
    check()
    try:
        with folders.new_folder(target, _VERB, check, replace=overwrite) as temporary:
            yield temporary
            for path in temporary.iterdir():
                sync_path(path)
    except OSError as error:
        if isinstance(error, MariusError):
            raise
        raise StorageError(f"writing {target} failed: {reason_of(error)}; nothing was replaced") from error


def _check_target(target: Path, overwrite: bool) -> None:
    """Refuse with a ConfigError what no folder can take the place of, or none should."""
    folders.check_folder_name(target, _VERB, f"output={target}")
    with os_errors_as_storage("look at output", target):
        if not target.parent.is_dir():
            raise ConfigError(f"output={target}: there is no folder {target.parent}; create it first")
        if target.exists():
            if not (overwrite and target.is_dir()):
                raise ConfigError(
                    f"output: {target} exists; choose another name, or replace a folder with --overwrite "
                    "(in Python overwrite=True)"
                )
            _check_replaceable(target)
            if os.path.samefile(target, os.curdir):  # which would be one that is gone, to whoever is in it
                raise ConfigError(
                    f"output: {target} is the current folder, whose place no other can take; choose another "
                    "name"
                )


def _check_replaceable(folder: Path) -> None:
    """Refuse with a ConfigError to replace a folder that is neither empty nor what an export wrote."""
    found = {path.name for path in folder.iterdir()}
    if not found or any(marks <= found <= files for marks, files in _WRITTEN):
        return
    shown = ", ".join(sorted(found - _WRITTEN[0][1] - _WRITTEN[1][1])[:3] or sorted(found)[:3])
    raise ConfigError(
        f"output: {folder} is no folder that an export wrote (it holds {shown}), and only such a one or an "
        "empty one is replaced; choose another name"
    )


def number_lines(rows: Float32, separator: str) -> bytes:
    """A line a row, its numbers as the shortest digits that read back equal."""
    buffer = io.BytesIO()
    columns: list[Any] = [pa.array(np.ascontiguousarray(column)) for column in rows.T]
    options = pa.csv.WriteOptions(include_header=False, delimiter=separator)
    pa.csv.write_csv(pa.table(columns, names=[str(i) for i in range(rows.shape[1])]), buffer, options)
    return buffer.getvalue()


def one_line(names: Sequence[str]) -> Sequence[str]:
    """The names, if each fits into a line and a column; FormatError otherwise."""
    for name in names:
        if "\n" in name or "\t" in name or "\r" in name:
            raise FormatError(f"the name {name!r} holds a tab or line break; export it as parquet")
    return names


def words(names: Sequence[str]) -> list[str]:
    """The names as word2vec's words, which hold no blanks."""
    return [name.replace(" ", "_") for name in one_line(names)]


def check_words(what: str, blocks: Callable[[], Iterable[Sequence[str]]]) -> None:
    """Refuse names that become the same word; read before anything is written.

    Keeps eight bytes a name with a blank or underscore: only those can meet.

    Args:
        what: "nodes" or "relations".
        blocks: reads the distinct names; called once more where hashes of words are equal.

    Raises:
        FormatError: two names differ only in blanks and underscores.
    """
    parts = [np.fromiter((place for place, _ in _hashed(names)), np.uint64) for names in blocks()]
    hashes = np.sort(np.concatenate(parts))
    repeated = set(hashes[1:][hashes[1:] == hashes[:-1]].tolist())
    if not repeated:
        return
    name_of: dict[str, str] = {}
    for names in blocks():
        for place, name in _hashed(names):
            word = name.replace(" ", "_")
            if place in repeated and name_of.setdefault(word, name) != name:
                leave = ", or leave them out with --no-relations" if what == "relations" else ""
                raise FormatError(
                    f"the {what} {name_of[word]!r} and {name!r} would both be the word {word!r}: "
                    "format=word2vec writes blanks as '_'; take a format that keeps them, such as tsv, npy, "
                    f"or parquet{leave}"
                )


def _hashed(names: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Hash of the word, and the name, of each name that may share its word with another."""
    for name in names:
        if " " in name or "_" in name:
            yield xxhash.xxh3_64_intdigest(name.replace(" ", "_").encode()), name
