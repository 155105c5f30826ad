"""Decoders (floor 1): one small class a file; `base.Decoder` is what a user's own class derives from."""

from marius_py.nn.decoders.base import ClosedFormDecoder, Decoder, ProductDecoder
from marius_py.nn.decoders.complex import ComplEx
from marius_py.nn.decoders.distmult import DistMult
from marius_py.nn.decoders.dot import Dot
from marius_py.nn.decoders.rescal import RESCAL
from marius_py.nn.decoders.rotate import RotatE
from marius_py.nn.decoders.transe import TransE

__all__ = [
    "RESCAL",
    "ClosedFormDecoder",
    "ComplEx",
    "Decoder",
    "DistMult",
    "Dot",
    "ProductDecoder",
    "RotatE",
    "TransE",
]
