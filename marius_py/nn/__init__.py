"""Model floor (1): batch types, decoders, losses, negatives, sparse row optimizers."""

from marius_py.nn.batch import Batch, Corruption, Importance
from marius_py.nn.decoders import (
    RESCAL,
    ClosedFormDecoder,
    ComplEx,
    Decoder,
    DistMult,
    Dot,
    ProductDecoder,
    RotatE,
    TransE,
)
from marius_py.nn.initializers import Initializer
from marius_py.nn.losses import LogisticLoss, Loss, MarginLoss, SoftmaxLoss
from marius_py.nn.model import LinkPredictionModel
from marius_py.nn.negatives import (
    AllNegatives,
    DegreeNegatives,
    NegativeSampler,
    ResidentNodes,
    UniformNegatives,
)
from marius_py.nn.optimizers import SGD, Adagrad, AdagradRow, Adam, SparseOptimizer
from marius_py.nn.regularizers import L2, N3, Regularizer

__all__ = [
    "L2",
    "N3",
    "RESCAL",
    "SGD",
    "Adagrad",
    "AdagradRow",
    "Adam",
    "AllNegatives",
    "Batch",
    "ClosedFormDecoder",
    "ComplEx",
    "Corruption",
    "Decoder",
    "DegreeNegatives",
    "DistMult",
    "Dot",
    "Importance",
    "Initializer",
    "LinkPredictionModel",
    "LogisticLoss",
    "Loss",
    "MarginLoss",
    "NegativeSampler",
    "ProductDecoder",
    "Regularizer",
    "ResidentNodes",
    "RotatE",
    "SoftmaxLoss",
    "SparseOptimizer",
    "TransE",
    "UniformNegatives",
]
