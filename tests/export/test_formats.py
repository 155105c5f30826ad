"""Formats of other programs read back equal; relations score there as here."""

import errno
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from marius_py import cli, load
from marius_py.errors import ConfigError, StorageError
from marius_py.export import export
from marius_py.storage import folders
from tests.small_runs import write_run


def read_safetensors(path):
    """The format's definition, read by hand."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    data = content[8 + size :]
    assert size % 8 == 0
    assert header.pop("__metadata__") == {"format": "pt"}
    assert max(one["data_offsets"][1] for one in header.values()) == len(data)
    return {
        name: np.frombuffer(data[slice(*one["data_offsets"])], "<f4").reshape(one["shape"])
        for name, one in header.items()
    }


@pytest.mark.parametrize("block_bytes", [1, 50, 1 << 20])
def test_safetensors(tmp_path, block_bytes):
    folder, graph, rows, relations = write_run(tmp_path)
    target = tmp_path / "v.safetensors"
    files = export(folder, target, "safetensors", block_bytes=block_bytes)
    assert [path.name for path in files] == ["v.safetensors", "v.names.txt", "v.relations.names.txt"]
    tensors = read_safetensors(target)
    np.testing.assert_array_equal(tensors["nodes"], rows)
    np.testing.assert_array_equal(tensors["relations"], relations)
    assert files[1].read_text(encoding="utf-8").split("\n")[:-1] == graph.node_names()
    assert files[2].read_text(encoding="utf-8").split("\n")[:-1] == graph.relation_names()
    with pytest.raises(ConfigError, match="exists"):
        export(folder, target, "safetensors")


def test_the_library_reads_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy", reason="the safetensors library is not installed")
    folder, _, rows, _ = write_run(tmp_path)
    export(folder, tmp_path / "v.safetensors", "safetensors")
    np.testing.assert_array_equal(safetensors.load_file(tmp_path / "v.safetensors")["nodes"], rows)


@pytest.mark.parametrize("block_bytes", [50, 1 << 20])
def test_projector(tmp_path, block_bytes):
    folder, graph, rows, relations = write_run(tmp_path)
    target = tmp_path / "log"
    assert export(folder, target, "projector", block_bytes=block_bytes) == [target]
    np.testing.assert_array_equal(np.loadtxt(target / "nodes.tsv", dtype=np.float32), rows)
    np.testing.assert_array_equal(np.loadtxt(target / "relations.tsv", dtype=np.float32), relations)
    assert (target / "nodes_names.tsv").read_text(encoding="utf-8").split("\n")[:-1] == graph.node_names()
    assert 'metadata_path: "nodes_names.tsv"' in (target / "projector_config.pbtxt").read_text()


def apply(operator, embedding, parameters, relation):
    """PyTorch-BigGraph's dynamic operators."""
    if operator == "complex_diagonal":
        half = len(embedding) // 2
        weight = parameters["real"][relation] + 1j * parameters["imag"][relation]
        product = (embedding[:half] + 1j * embedding[half:]) * weight
        return np.concatenate((product.real, product.imag))
    if operator == "diagonal":
        return embedding * parameters["diagonals"][relation]
    return embedding + parameters["translations"][relation]


@pytest.mark.parametrize("decoder", ["distmult", "complex", "transe"])
@pytest.mark.parametrize("reciprocal", [False, True])
def test_pbg_scores_as_here(tmp_path, decoder, reciprocal):
    folder, graph, rows, _ = write_run(tmp_path, decoder=decoder, reciprocal=reciprocal)
    target = tmp_path / "pbg"
    export(folder, target, "pbg", block_bytes=50)
    config = json.loads((target / "config.json").read_text())
    version = int((target / "checkpoint_version.txt").read_text())
    assert json.loads((target / "entity_names_all_0.json").read_text(encoding="utf-8")) == graph.node_names()
    assert int((target / "entity_count_all_0.txt").read_text()) == 10
    assert json.loads((target / "dynamic_rel_names.json").read_text()) == graph.relation_names()
    with h5py.File(target / f"embeddings_all_0.v{version}.h5") as file:
        assert file.attrs["format_version"] == 1
        table = file["embeddings"][...]
    np.testing.assert_array_equal(table, rows)
    operator = config["relations"][0]["operator"]
    with h5py.File(target / f"model.v{version}.h5") as file, load(folder) as run:
        group = file["model/relations/0/operator"]
        sides = {side: {name: group[side][name][...] for name in group[side]} for side in ("lhs", "rhs")}
        for side, known, other in (("tail", 3, 7), ("head", 7, 3)):
            ours = run.model.queries(torch.from_numpy(rows[[known]]), torch.tensor([1]), side)
            score = run.model.compare(ours[None], torch.from_numpy(rows[[other]])[None]).item()
            query = apply(operator, table[known], sides["lhs" if side == "tail" else "rhs"], 1)
            if config["comparator"] == "dot":
                theirs = query @ table[other]
            else:
                theirs = -np.linalg.norm(query - table[other])
            np.testing.assert_allclose(theirs, score, rtol=1e-5)


def test_pbg_without_relations(tmp_path):
    folder = write_run(tmp_path, decoder="rotate", dr=2)[0]
    with pytest.raises(ConfigError, match="no operator that scores like the decoder rotate"):
        export(folder, tmp_path / "pbg", "pbg")
    assert not (tmp_path / "pbg").exists()
    words = [str(folder), "--format", "pbg", "--output", str(tmp_path / "pbg"), "--no-relations"]
    assert cli.export(words) == 0
    assert (tmp_path / "pbg" / "embeddings_all_0.v1.h5").exists()


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    folder, _, rows, _ = write_run(tmp_path)
    target = tmp_path / "log"
    export(folder, target, "projector")
    before = sorted(path.name for path in tmp_path.iterdir())
    with pytest.raises(ConfigError, match="log exists"):
        export(folder, target, "pbg")
    with load(folder) as run:
        monkeypatch.setattr(run, "read_rows", lambda start, stop: (_ for _ in ()).throw(OSError(28, "full")))
        with pytest.raises(StorageError, match="No space left on device; nothing was replaced"):
            export(run, target, "pbg", overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == before
    np.testing.assert_array_equal(np.loadtxt(target / "nodes.tsv", dtype=np.float32), rows)
    export(folder, target, "pbg", overwrite=True)
    assert (target / "config.json").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_an_interrupt_between_the_renames_puts_the_old_folder_back(tmp_path, monkeypatch):
    folder, *_ = write_run(tmp_path)
    target = tmp_path / "log"
    export(folder, target, "projector")
    before = {path: path.read_bytes() for path in target.iterdir()}
    beside = sorted(path.name for path in tmp_path.iterdir())
    plain = os.rename

    def rename(path, other):
        plain(path, other)
        if path == target:
            raise KeyboardInterrupt

    monkeypatch.setattr(folders, "_exchange", lambda first, second: False)  # in one step else
    monkeypatch.setattr(folders.os, "rename", rename)
    with pytest.raises(KeyboardInterrupt):
        export(folder, target, "pbg", overwrite=True)
    assert {path: path.read_bytes() for path in target.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == beside


@pytest.mark.parametrize("exchanges", [True, False])
def test_what_a_killed_export_has_left_is_removed_by_the_next(tmp_path, monkeypatch, exchanges):
    folder, *_ = write_run(tmp_path)
    target = tmp_path / "log"
    export(folder, target, "projector")
    beside = sorted(path.name for path in tmp_path.iterdir())
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    for number in "12":
        (tmp_path / f".log.exporting-{dead.pid}-{number}").mkdir()
        (tmp_path / f".log.exporting-{dead.pid}-{number}" / "nodes.tsv").write_text("half a ta")
    if not exchanges:
        monkeypatch.setattr(folders, "_exchange", lambda first, second: False)
        target.rename(tmp_path / ".log.replaced")  # killed between the two renames
        with pytest.raises(ConfigError, match=r"output: .*log exists; choose another name"):
            export(folder, target, "pbg")
    export(folder, target, "pbg", overwrite=True)
    assert (target / "config.json").is_file()
    assert sorted(path.name for path in tmp_path.iterdir()) == beside


FULL = """
import resource, sys
from marius_py import cli
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))  # as with a full disk, files end there
sys.exit(cli.export([{run!r}, "--format", "pbg", "--output", {target!r}, "--overwrite"]))
"""


@pytest.mark.parametrize("limit", [pytest.param(1 << 10, marks=pytest.mark.slow), 1 << 16])
def test_a_full_disk_ends_an_export_for_pbg_with_one_message(tmp_path, limit):
    """HDF5 alone would end the process, or say that it cannot close a file."""
    folder, *_ = write_run(tmp_path)
    target = tmp_path / "model"
    export(folder, target, "pbg")
    before = {path.name: path.read_bytes() for path in target.iterdir()}
    code = FULL.format(limit=limit, run=str(folder), target=str(target))
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    told = done.stderr.splitlines()
    assert re.fullmatch(r"error: writing .*model failed: File too large; nothing was replaced", told[-1])
    assert len(told) == 2  # the other says that the run is not finished
    assert {path.name: path.read_bytes() for path in target.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(".")) == []


def test_two_exports_to_one_folder_do_not_meet(tmp_path):
    folder, *_ = write_run(tmp_path)
    with (
        folders.locked_folder(tmp_path, ".log.exporting-", "exporting"),
        pytest.raises(StorageError, match=r"another process or thread is exporting .*log right now; wait"),
    ):
        export(folder, tmp_path / "log", "pbg")
    export(folder, tmp_path / "log", "pbg")


@pytest.mark.parametrize("format", ["projector", "pbg"])
def test_only_what_an_export_wrote_is_replaced(tmp_path, monkeypatch, format):
    folder, _, _, _ = write_run(tmp_path)
    mine = tmp_path / "mine"
    mine.mkdir()
    export(folder, mine, format, overwrite=True)  # an empty folder
    before = sorted(path.name for path in mine.iterdir())
    (mine / "notes.txt").write_text("keep me")
    others = {"tables": "nodes.tsv", "settings": "config.json"}
    for name, file in others.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / file).write_text("keep me")
    kept = sorted(path for path in tmp_path.rglob("*") if path != tmp_path / "log")
    monkeypatch.chdir(folder)
    for place in (mine, folder, folder / "checkpoint", tmp_path, ".", "..", *map(tmp_path.joinpath, others)):
        with pytest.raises(ConfigError, match="is no folder that an export wrote"):
            export(folder, place, format, overwrite=True)
    with pytest.raises(ConfigError, match=r"it holds notes\.txt\)"):
        export(folder, mine, format, overwrite=True)
    words = [".", "--format", format, "--output", ".", "--overwrite"]
    assert cli.export(words) == 2
    assert sorted(tmp_path.rglob("*")) == kept
    (mine / "notes.txt").unlink()
    (tmp_path / "link").symlink_to(mine)
    assert export(folder, tmp_path / "link", format, overwrite=True) == [tmp_path / "link"]
    assert (tmp_path / "link").is_symlink()
    assert sorted(path.name for path in mine.iterdir()) == before
    monkeypatch.chdir(mine)
    with pytest.raises(ConfigError, match="is the current folder, whose place no other can take"):
        export(folder, ".", format, overwrite=True)
    assert sorted(os.listdir()) == before


@pytest.mark.parametrize("format", ["npy", "pbg"])
def test_an_output_in_a_folder_that_may_not_be_entered(tmp_path, monkeypatch, format):
    folder, *_ = write_run(tmp_path)
    plain = Path.stat

    def stat(path, **named):
        if "closed" in path.parts:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return plain(path, **named)

    monkeypatch.setattr(Path, "stat", stat)
    target = tmp_path / "closed" / "inner" / "v"
    with pytest.raises(StorageError, match=rf"output.{target}: .*Permission denied"):
        export(folder, target, format)
