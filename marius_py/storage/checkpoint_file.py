"""checkpoint.h5: the manifest, the small arrays, the user's view of the nodes (floor 1).

In: a Manifest and a Checkpoint. Out: the file's bytes, and back. The file is built and parsed in memory, so
HDF5 never touches the disk: what is written and read are plain bytes, whose hash in the file's user block
(the 512 bytes before the HDF5 content, a line of text) is checked before HDF5 sees a single one of them.

Nothing in it can execute code or name another file to this package: the virtual data sets `embeddings` and
`state` are for people with h5py, and never followed here.
"""

from __future__ import annotations

import io
import json
import math
import re
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import xxhash
from numpy.typing import NDArray

from marius_py.errors import FormatError, MariusError, StorageError
from marius_py.partitioning import Partitioning
from marius_py.storage import files
from marius_py.storage.checks import FROM_A_COPY
from marius_py.storage.node_file import EMBEDDINGS, NODES_NAME, STATE
from marius_py.storage.protocols import Checkpoint, JsonText, NodeTable
from marius_py.storage.slots import EMPTY

CHECKPOINT_NAME = "checkpoint.h5"
FORMAT_VERSION = 1
HEADER_BYTES = 512
SIZE_LIMIT = 1 << 36
"""Bytes of checkpoint.h5 that are read at most: 64 GiB, far above any relation table."""

_HEADER = re.compile(rb"marius_py checkpoint, format (\d{1,9}), (\d{1,15}) bytes, xxh3_128 ([0-9a-f]{32})\n")
_ARRAY_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
_KINDS = "biuf"


@dataclass(frozen=True, slots=True)
class Manifest:
    """The committed state of the node table.

    Attributes:
        store_id: 32 hex digits drawn when the store was created; nodes.h5 bears the same.
        generation: commits so far; 0 = created, nothing committed.
        table: shape of the node table.
        num_slots: slots of nodes.h5.
        slots: (p,) int64 slot of each partition's committed version; EMPTY in generation 0.
        hashes: (p, 2) uint64 xxh3_64 of each partition's rows: embeddings, state.
    """

    store_id: str
    generation: int
    table: NodeTable
    num_slots: int
    slots: NDArray[np.int64]
    hashes: NDArray[np.uint64]


class Encoded(NamedTuple):
    """The bytes of checkpoint.h5, `header` and then `content`, and those of the meta in it."""

    header: bytes
    content: bytes
    meta: bytes


def encode(manifest: Manifest, checkpoint: Checkpoint) -> Encoded:
    """The bytes of checkpoint.h5; FormatError if an array or the meta cannot be stored."""
    arrays = {name: _storable(name, array) for name, array in checkpoint.arrays.items()}
    meta = encode_meta(checkpoint.meta)
    # The name is never used on a disk, but HDF5 tells open files in memory apart by it.
    with h5py.File(
        uuid.uuid4().hex,
        "w",
        driver="core",
        backing_store=False,
        block_size=1 << 20,
        userblock_size=HEADER_BYTES,
        # Of HDF5 before 2.0 an image's superblock has a wrong checksum, unless it is of the first version,
        # which has none.
        libver=("earliest", "v110"),
    ) as file:
        table = manifest.table
        facts = {
            "format_version": FORMAT_VERSION,
            "generation": manifest.generation,
            "num_nodes": table.partitioning.num_nodes,
            "num_partitions": table.partitioning.num_partitions,
            "dim": table.dim,
            "state_dim": table.state_dim,
            "num_slots": manifest.num_slots,
        }
        for name, value in facts.items():
            file.attrs[name] = np.int64(value)
        file.attrs["store_id"] = manifest.store_id
        file.create_dataset("partition_slot", data=manifest.slots)
        file.create_dataset("partition_xxh3", data=manifest.hashes)
        file.create_dataset("meta", data=np.frombuffer(meta, np.uint8))
        group = file.create_group("arrays")
        for name, array in arrays.items():
            group.create_dataset(name, data=array)
        if manifest.generation > 0:
            _add_view(file, "embeddings", EMBEDDINGS, manifest, table.dim)
            _add_view(file, "state", STATE, manifest, table.state_dim)
        file.flush()
        content: bytes = file.id.get_file_image()
    return Encoded(_header(FORMAT_VERSION, content), content, meta)


def _header(version: int, content: bytes | memoryview) -> bytes:
    digest = xxhash.xxh3_128_hexdigest(content)
    line = f"marius_py checkpoint, format {version}, {len(content)} bytes, xxh3_128 {digest}\n"
    return line.encode().ljust(HEADER_BYTES, b"\0")


def copy_checkpoint(checkpoint: Checkpoint) -> Checkpoint:
    """A deep copy, as writing it to the disk and reading it back gives; FormatError as `encode`."""
    arrays = {name: np.array(_storable(name, array)) for name, array in checkpoint.arrays.items()}
    return Checkpoint(arrays=arrays, meta=json.loads(encode_meta(checkpoint.meta)))


def encode_meta(meta: Mapping[str, Any]) -> bytes:
    """The bytes of a checkpoint's meta, one JSON object; FormatError if it holds anything else."""
    try:
        entries = [
            f"{json.dumps(name)}: {value.text}"
            if isinstance(value, JsonText)
            else json.dumps({name: value})[1:-1]
            for name, value in meta.items()
        ]
    except (TypeError, ValueError) as error:
        raise FormatError(f"checkpoint meta must be plain JSON values: {error}") from error
    return f"{{{', '.join(entries)}}}".encode()


def _storable(name: str, array: NDArray[Any]) -> NDArray[Any]:
    if not _ARRAY_NAME.fullmatch(name):
        raise FormatError(f"checkpoint array name {name!r}; allowed: letters, digits, '_', '.', '-'")
    array = np.asarray(array)
    if array.dtype.kind not in _KINDS or array.dtype.itemsize > 8:
        raise FormatError(
            f"checkpoint array {name!r} has dtype {array.dtype}; allowed: bool, int, float to 64 bit"
        )
    return array


def _add_view(file: h5py.File, name: str, source: str, manifest: Manifest, width: int) -> None:
    """A virtual data set over nodes.h5 (beside this file) in node-id order: (N, width) float32."""
    parts, rows = manifest.table.partitioning, manifest.table.slot_rows
    if width == 0:
        file.create_dataset(name, shape=(parts.num_nodes, 0), dtype=np.float32)
        return
    layout = h5py.VirtualLayout((parts.num_nodes, width), np.float32)
    slots = h5py.VirtualSource(NODES_NAME, source, shape=(manifest.num_slots * rows, width))
    for part, slot in enumerate(manifest.slots.tolist()):
        start, size = parts.start(part), parts.size(part)
        layout[start : start + size] = slots[slot * rows : slot * rows + size]
    file.create_virtual_dataset(name, layout)


def read_checkpoint(path: Path) -> tuple[Manifest, Checkpoint]:
    """Read and check checkpoint.h5.

    Raises:
        StorageError: missing, truncated or damaged (its hash differs).
        FormatError: not a checkpoint, of another format version, or contradictory.
    """
    return decode(files.read_whole(path, SIZE_LIMIT), path)


def decode(data: bytes, path: Path) -> tuple[Manifest, Checkpoint]:
    """Parse the bytes of checkpoint.h5; `path` is for messages only. Raises like `read_checkpoint`."""
    found = CheckpointFile(data, path)
    return found.manifest, found.checkpoint()


def open_checkpoint(path: Path) -> CheckpointFile:
    """Read checkpoint.h5 and check all but its meta; raises like `read_checkpoint`."""
    return CheckpointFile(files.read_whole(path, SIZE_LIMIT), path)


class CheckpointFile:
    """The bytes of checkpoint.h5, checked; arrays and meta are parsed when they are asked for.

    Args:
        data: all of the file; kept.
        path: for messages only.

    Attributes:
        manifest: the committed state of the node table.
        encoded_meta: the bytes of the meta.

    Raises:
        StorageError, FormatError: like `read_checkpoint`, but for a meta that is no JSON object.
    """

    def __init__(self, data: bytes, path: Path) -> None:
        _check_header(data, path)
        self._data, self._path = data, path
        with _parsing(path), _open_image(data) as file:
            facts = {
                name: int(file.attrs[name])
                for name in ("generation", "num_nodes", "num_partitions", "dim", "state_dim", "num_slots")
            }
            store_id = str(file.attrs["store_id"])
            slots, hashes = (_plain(file, name)[()] for name in ("partition_slot", "partition_xxh3"))
            self.encoded_meta = _plain(file, "meta")[()].astype(np.uint8).tobytes()
            for name in file["arrays"]:
                _plain(file["arrays"], name)
            self.manifest = _checked(facts, store_id, slots, hashes)

    def checkpoint(self) -> Checkpoint:
        """The checkpoint in it, new at each call; FormatError if its meta is no JSON object."""
        with _parsing(self._path), _open_image(self._data) as file:
            group = file["arrays"]
            arrays = {name: np.asarray(_plain(group, name)[()]) for name in group}
        return Checkpoint(arrays=arrays, meta=decode_meta(self.encoded_meta, self._path))


def decode_meta(encoded: bytes, path: Path) -> dict[str, Any]:
    """Parse the bytes of a checkpoint's meta; FormatError, which names `path`, if they are no JSON object."""
    with _parsing(path):
        meta = json.loads(encoded)
        if not isinstance(meta, dict):
            raise FormatError("meta is not a JSON object")
        return meta


@contextmanager
def _parsing(path: Path) -> Iterator[None]:
    """Whatever goes wrong inside becomes an error that names the file."""
    try:
        yield
    except MariusError as error:
        raise type(error)(f"{path}: {error}") from None
    except MemoryError:  # no fault of the file
        raise
    except Exception as error:
        raise FormatError(f"{path} is not a checkpoint of this package: {error}") from error


def _check_header(data: bytes, path: Path) -> None:
    """Check the first line and the hash that it gives of the rest; raises like `read_checkpoint`."""
    match = _HEADER.match(data[:HEADER_BYTES])
    if not data:
        raise StorageError(f"{path} is empty; {FROM_A_COPY}")
    if match is None:
        raise FormatError(
            f"{path} is damaged, or no checkpoint of this package: its first line is unknown; {FROM_A_COPY}"
        )
    version, size = int(match[1]), int(match[2])
    if version != FORMAT_VERSION:
        raise FormatError(f"{path} has format version {version}; this version reads {FORMAT_VERSION}")
    content = memoryview(data)[HEADER_BYTES:]
    if len(content) < size:
        raise StorageError(f"{path} is truncated: {len(content):,} of {size:,} bytes are left; {FROM_A_COPY}")
    if data[:HEADER_BYTES] != _header(version, content):
        raise StorageError(f"{path} is damaged: its checksum differs; {FROM_A_COPY}")


def _plain(group: h5py.Group, name: str) -> h5py.Dataset:
    """Find a data set that lies wholly in this file and holds numbers only; FormatError otherwise."""
    if not isinstance(group.get(name, getlink=True), h5py.HardLink):
        raise FormatError(f"{name!r} is missing or a link out of the file")
    data = group[name]
    if not isinstance(data, h5py.Dataset) or data.shape is None:
        raise FormatError(f"{name!r} is not a data set")
    layout = data.id.get_create_plist().get_layout()
    if layout not in (h5py.h5d.CONTIGUOUS, h5py.h5d.COMPACT) or data.external is not None:
        raise FormatError(f"{name!r} does not lie in this file in one piece")
    if data.dtype.kind not in _KINDS or data.dtype.itemsize > 8:
        raise FormatError(f"{name!r} has dtype {data.dtype}")
    if data.id.get_storage_size() != math.prod(data.shape) * data.dtype.itemsize:
        raise FormatError(f"{name!r} is not stored in full")
    return data


def _checked(facts: dict[str, int], store_id: str, slots: NDArray[Any], hashes: NDArray[Any]) -> Manifest:
    num_parts, num_slots = facts["num_partitions"], facts["num_slots"]
    is_table = facts["dim"] >= 1 and facts["state_dim"] >= 0 and 1 <= num_parts <= facts["num_nodes"]
    if facts["generation"] < 0 or not is_table:
        raise FormatError(f"impossible counts {facts}")
    if not re.fullmatch("[0-9a-f]{32}", store_id):
        raise FormatError("its store_id is not 32 hex digits")
    if slots.shape != (num_parts,) or slots.dtype != np.int64:
        raise FormatError(f"partition_slot has shape {slots.shape}, dtype {slots.dtype}")
    if hashes.shape != (num_parts, 2) or hashes.dtype != np.uint64:
        raise FormatError(f"partition_xxh3 has shape {hashes.shape}, dtype {hashes.dtype}")
    if facts["generation"] == 0:
        sound = bool((slots == EMPTY).all())
    else:
        sound = len(np.unique(slots)) == num_parts and slots.min() >= 0 and slots.max() < num_slots
    if not sound or num_slots < num_parts:
        raise FormatError(f"partition_slot {slots.tolist()[:20]} does not fit {num_slots} slots")
    table = NodeTable(Partitioning(facts["num_nodes"], num_parts), facts["dim"], facts["state_dim"])
    return Manifest(store_id, facts["generation"], table, num_slots, slots, hashes)


def view_problems(data: bytes, manifest: Manifest) -> list[str]:
    """What is wrong with the virtual data sets that h5py users read; `data` has passed `decode`."""
    if manifest.generation == 0:
        return []
    problems = []
    with _open_image(data) as file:
        for name, source, width in (
            ("embeddings", EMBEDDINGS, manifest.table.dim),
            ("state", STATE, manifest.table.state_dim),
        ):
            data_set = file.get(name) if isinstance(file.get(name, getlink=True), h5py.HardLink) else None
            shape = (manifest.table.partitioning.num_nodes, width)
            if not isinstance(data_set, h5py.Dataset) or data_set.shape != shape:
                problems.append(f"data set {name!r} is missing or not of shape {shape}")
            elif width and _sources(data_set) != _expected_sources(manifest, source, width):
                problems.append(f"virtual data set {name!r} does not map the committed slots of {NODES_NAME}")
    return problems


def _sources(data_set: h5py.Dataset) -> list[tuple[Any, ...]]:
    if not data_set.is_virtual:
        return []
    try:
        return sorted(
            (*of.vspace.get_select_bounds(), of.file_name, of.dset_name, *of.src_space.get_select_bounds())
            for of in data_set.virtual_sources()
        )
    except (ValueError, TypeError, RuntimeError):  # a selection without bounds is none of ours
        return []


def _expected_sources(manifest: Manifest, source: str, width: int) -> list[tuple[Any, ...]]:
    parts, rows = manifest.table.partitioning, manifest.table.slot_rows
    expected = []
    for part, slot in enumerate(manifest.slots.tolist()):
        start, size, first = parts.start(part), parts.size(part), slot * rows
        node_range = ((start, 0), (start + size - 1, width - 1))
        slot_range = ((first, 0), (first + size - 1, width - 1))
        expected.append((*node_range, NODES_NAME, source, *slot_range))
    return expected


def _open_image(data: bytes) -> h5py.File:
    """Open the bytes of checkpoint.h5, of which nothing is copied but what is read."""
    return h5py.File(io.BytesIO(data), "r")
