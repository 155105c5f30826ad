"""Classes of a user's own, in a module that settings can name."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

MODULE = """
from marius_py.nn.decoders import ComplEx, DistMult
from marius_py.nn.losses import Loss
from marius_py.nn.optimizers import SGD

class MyDecoder(DistMult):
    def __init__(self, dim, gamma=1.0):
        super().__init__(dim)
        self.gamma = gamma

class MyComplEx(ComplEx):
    pass

class MyLoss(Loss):
    def __init__(self, *, alpha):
        if alpha == 13:
            raise RuntimeError("unlucky")
        if alpha == 14:
            raise SystemExit(0)
        self.alpha = alpha
    def __call__(self, positive, negative, keep):
        return (negative.mean() - positive.mean()) * self.alpha

class HalfLoss(Loss):
    pass

class Forgetful(DistMult):
    def __init__(self, dim):
        self.width = dim

class WithoutWidth(DistMult):
    @property
    def relation_dim(self):
        return self.width

class ForgetfulOptimizer(SGD):
    def __init__(self, lr):
        self.rate = lr

class MyOptimizer(SGD):
    def __init__(self, lr, momentum=0.0):
        super().__init__(lr)
        self.momentum = momentum
"""


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "userparts.py").write_text(MODULE)
    (tmp_path / "brokenparts.py").write_text("import marius_py\nraise OSError('no licence')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("userparts", "brokenparts"):
        sys.modules.pop(name, None)
    return "userparts"
