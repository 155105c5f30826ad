"""A query's own node among its answers, in graphs without relations."""

import numpy as np
import pytest

import marius_py

SMALL = {"model.decoder": "dot", "model.dim": 4, "training.epochs": 2, "training.valid_every": 0}


@pytest.mark.parametrize("loop", [False, True])
def test_own_node_is_offered_where_self_loops_are(tmp_path, loop):
    edges = np.array([[i, (i + 1) % 12] for i in range(12)] + [[3, 3]] * loop)
    graph = marius_py.graph_from(edges, tmp_path / "g", split=(1, 0, 0))
    with marius_py.train(graph.path, tmp_path / "r", SMALL) as run:
        for asked, given in (("tail", "head"), ("head", "tail")):
            for known in (False, True):
                found = {
                    allow: [
                        getattr(one, asked)
                        for one in run.predict(**{given: "5"}, k=12, filter_known=known, allow_self=allow)
                    ]
                    for allow in (None, False, True)
                }
                assert "5" not in found[False]
                assert "5" in found[True]
                assert [name for name in found[True] if name != "5"] == found[False]
                assert found[None] == found[loop]
                assert len(found[True]) == 12 - known
