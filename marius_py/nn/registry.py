"""Plain names of the built-in parts (floor 1), for configuration: name → class.

A user's own class is named by its import path instead and needs no entry here.
"""

from __future__ import annotations

from marius_py.nn.decoders import RESCAL, ComplEx, Decoder, DistMult, Dot, RotatE, TransE
from marius_py.nn.initializers import Initializer, Normal, Uniform, XavierNormal, XavierUniform
from marius_py.nn.losses import LogisticLoss, Loss, MarginLoss, SoftmaxLoss
from marius_py.nn.negatives import AllNegatives, DegreeNegatives, NegativeSampler, UniformNegatives
from marius_py.nn.optimizers import SGD, Adagrad, AdagradRow, Adam, SparseOptimizer
from marius_py.nn.schedules import ConstantRate, CosineRate, LinearRate, PlateauRate, RateSchedule

DECODERS: dict[str, type[Decoder]] = {
    "dot": Dot,
    "distmult": DistMult,
    "complex": ComplEx,
    "transe": TransE,
    "rotate": RotatE,
    "rescal": RESCAL,
}
LOSSES: dict[str, type[Loss]] = {"softmax": SoftmaxLoss, "logistic": LogisticLoss, "margin": MarginLoss}
OPTIMIZERS: dict[str, type[SparseOptimizer]] = {
    "adagrad": Adagrad,
    "adagrad_row": AdagradRow,
    "adam": Adam,
    "sgd": SGD,
}
SAMPLERS: dict[str, type[NegativeSampler]] = {
    "uniform": UniformNegatives,
    "degree": DegreeNegatives,
    "all": AllNegatives,
}
INITIALIZERS: dict[str, type[Initializer]] = {
    "uniform": Uniform,
    "normal": Normal,
    "xavier_uniform": XavierUniform,
    "xavier_normal": XavierNormal,
}
SCHEDULES: dict[str, type[RateSchedule]] = {
    "constant": ConstantRate,
    "linear": LinearRate,
    "cosine": CosineRate,
    "plateau": PlateauRate,
}
