"""A run that is made of another system's model takes its folder alone, and takes nothing from anybody."""

import numpy as np
import pytest

import marius_py
from marius_py.errors import ConfigError, StorageError
from marius_py.importing import runs
from marius_py.verify import is_sound, verify


@pytest.fixture
def graph(tmp_path):
    return marius_py.graph_from([("a", "r", "b"), ("b", "r", "c")], tmp_path / "g", split=(1, 0, 0))


def model(value):
    """All embeddings of three nodes are `value`."""
    rows = np.full((3, 4), value, np.float32)
    return runs.PeerModel(
        decoder={"_target_": "marius_py.nn.decoders.DistMult"},
        dim=4,
        reciprocal=False,
        node_names=["a", "b", "c"],
        relation_names=["r"],
        relations=np.ones((1, 4), np.float32),
        blocks=lambda: iter([(0, rows)]),
    )


@pytest.mark.parametrize("step", ["_places", "_fill"])
def test_what_another_process_has_made_meanwhile_stays(graph, tmp_path, monkeypatch, step):
    own = getattr(runs, step)

    def meanwhile(*given):
        monkeypatch.setattr(runs, step, own)
        if step == "_fill":
            made = runs.write_run(model(2), graph, tmp_path / "elsewhere")
            made.rename(tmp_path / "run")
        else:
            runs.write_run(model(2), graph, tmp_path / "run")
        return own(*given)

    monkeypatch.setattr(runs, step, meanwhile)
    with pytest.raises(ConfigError, match="is not empty"):
        runs.write_run(model(1), graph, tmp_path / "run")
    assert is_sound(verify(tmp_path / "run"))
    with marius_py.load(tmp_path / "run") as run:
        assert (run.to_numpy() == 2).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g", "run"]


def test_the_second_of_two_at_once_is_refused_and_the_first_goes_on(graph, tmp_path, monkeypatch):
    fill = runs._fill

    def meanwhile(*given):
        monkeypatch.setattr(runs, "_fill", fill)
        with pytest.raises(StorageError, match=f"is preparing {tmp_path / 'run'} right now; wait for it"):
            runs.write_run(model(2), graph, tmp_path / "run")
        fill(*given)

    monkeypatch.setattr(runs, "_fill", meanwhile)
    runs.write_run(model(1), graph, tmp_path / "run")
    assert is_sound(verify(tmp_path / "run"))
    with marius_py.load(tmp_path / "run") as run:
        assert (run.to_numpy() == 1).all()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g", "run"]
