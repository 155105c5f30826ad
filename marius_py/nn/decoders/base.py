"""What a decoder is (floor 1): rows of nodes and relations in, scores out.

A decoder splits a score into a query, made of the known node and the relation, and a comparison of queries
with candidate rows, so that the candidates of a chunk are shared by all of its edges.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from numbers import Real
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from marius_py.arrays import is_float32
from marius_py.errors import ConfigError
from marius_py.nn.initializers import Initializer
from marius_py.readable import readable
from marius_py.types import Side
from marius_py.whole import is_whole


def written_together(decoder: object, *methods: str) -> bool:
    """Whether one class wrote all these methods: a subclass that overrides some no longer fits the others."""
    return len({author_of(decoder, name) for name in methods}) == 1


def declared_similarity(decoder: object) -> str | None:
    """A decoder's `similarity`, unless a class above the one that wrote `compare` has said so: then None."""
    similarity: str | None = getattr(decoder, "similarity", None)
    if similarity is None:
        return None
    said = author_of(decoder, "__init__" if "similarity" in vars(decoder) else "similarity")
    wrote = author_of(decoder, "compare")
    return None if wrote is not said and issubclass(wrote, said) else similarity


def author_of(made: object, name: str) -> type:
    """The class that wrote a method, or an attribute of classes, of an object."""
    return next(cls for cls in type(made).__mro__ if name in vars(cls))


def fits(found: object, shape: tuple[int, ...], asked: torch.dtype = torch.float32) -> bool:
    """Whether what a decoder gives is dense and has a shape, in float32 or the type it was asked in."""
    return (
        isinstance(found, Tensor)
        and found.shape == shape
        and found.dtype in (torch.float32, asked)
        and found.layout == torch.strided
    )


def told(found: object) -> str:
    """What a class gave, for an error, in a line."""
    if isinstance(found, Tensor):
        layout = "" if found.layout == torch.strided else f"{found.layout} of "
        return f"{layout}{found.dtype} of shape {tuple(found.shape)}"
    if isinstance(found, np.ndarray):
        return f"a NumPy array, {found.dtype} of shape {found.shape}"
    return readable(repr(found))


def misfit(what: str, found: object, shape: tuple[int, ...]) -> ConfigError:
    """The error that a decoder's `what` does not fit."""
    return ConfigError(f"{what} gives {told(found)}; it must be torch.float32 of shape {tuple(shape)}")


def queries_of(decoder: Decoder, node: Tensor, relation: Tensor, side: Side) -> Tensor:
    """What `decoder.query` gives; ConfigError, naming `model.decoder`, if that does not fit."""
    found = decoder.query(node, relation, side)
    if not fits(found, node.shape, node.dtype):
        rows = f"nodes {tuple(node.shape)} and relations {tuple(relation.shape)}, side {side!r},"
        raise misfit(f"{name_of(decoder)}: query of {rows}", found, node.shape)
    return found


def scores_of(decoder: Decoder, query: Tensor, candidates: Tensor) -> Tensor:
    """What `decoder.compare` gives; ConfigError, naming `model.decoder`, if that does not fit."""
    found = decoder.compare(query, candidates)
    shape = (*query.shape[:2], candidates.shape[1])
    if not fits(found, shape, query.dtype):
        rows = f"queries {tuple(query.shape)} and candidates {tuple(candidates.shape)}"
        raise misfit(f"{name_of(decoder)}: compare of {rows}", found, shape)
    return found


def name_of(decoder: Decoder) -> str:
    """Key and class of a decoder, for errors."""
    return f"model.decoder={type(decoder).__module__}.{type(decoder).__qualname__}"


class Decoder(ABC):
    """Scores edges; higher means more likely. A subclass defines `query` and `compare`.

    For every side pair, compare(query(head, relation, "tail"), tail) and
    compare(query(tail, relation, "head"), head) are the same score of the same edge.

    Args:
        dim: embedding width D in floats, at least 1.

    Raises:
        ConfigError: `dim` is not a positive integer.
    """

    complex_halves: ClassVar[bool] = False
    """True if a row is a complex vector, real parts in its first half, imaginary parts in the second."""

    def __init__(self, dim: int) -> None:
        if not is_whole(dim, 1):
            raise ConfigError(f"model.dim is {dim!r}; it must be a whole number of floats, at least 1")
        self.dim = int(dim)

    @property
    def relation_dim(self) -> int:
        """Width Dr of a relation's row; 0 if the decoder has no relation parameters."""
        return self.dim

    @abstractmethod
    def query(self, node: Tensor, relation: Tensor, side: Side) -> Tensor:
        """Queries for the corrupted (or ranked) side.

        Args:
            node: (*, D) rows of the known end: heads if `side` is "tail", tails if it is "head".
            relation: (*, Dr) relation rows.
            side: the end that candidates will stand in for.

        Returns:
            (*, D) queries.
        """

    @abstractmethod
    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Scores of every query of a chunk with every candidate of that chunk.

        Args:
            query: (C, P, D).
            candidates: (C, K, D) node rows.

        Returns:
            (C, P, K) scores, higher is better.
        """

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Scores of queries with one candidate each: (*, D) and (*, D) give (*)."""
        one_by_one = scores_of(self, query.reshape(-1, 1, self.dim), candidate.reshape(-1, 1, self.dim))
        return one_by_one.reshape(query.shape[:-1])

    def init_rows(self, out: np.ndarray, rng: np.random.Generator, initializer: Initializer) -> None:
        """Fill (n, D) float32 node rows with initial values."""
        initializer.fill(out, rng)

    def init_relations(self, out: np.ndarray, rng: np.random.Generator, initializer: Initializer) -> None:
        """Fill (R, Dr) float32 relation rows with initial values."""
        initializer.fill(out, rng)


class ClosedFormDecoder(Decoder):
    """A decoder whose gradients are known in closed form, so that the fused step can train it.

    Attributes:
        similarity: what `compare` computes: "dot" is query · candidate, "l2" is minus the
            euclidean distance, computed by expanded squares, "l1" minus the sum of absolute differences,
            "moduli" minus that of the moduli of complex ones; None: something else (then autograd is used). A
            subclass that writes `compare` anew says it anew.
        product: how a query is made: it is the known node's row ("none"), its product with the relation's
            coordinate by coordinate ("real"), their complex product, for heads with the conjugate
            ("complex"), their sum, for heads their difference ("sum"), or that with the matrices b × b along
            a diagonal that the relation's row (D · b) holds, for heads turned ("matrix"); None: in another
            way. Of the relation's row it takes what `factors` makes of it.
    """

    similarity: Literal["dot", "l1", "l2", "moduli"] | None
    product: Literal["none", "real", "complex", "sum", "matrix"] | None = None

    @abstractmethod
    def query_into(self, node: Tensor, relation: Tensor, side: Side, out: Tensor) -> None:
        """Write `query(node, relation, side)` into `out` (n, D), which may be strided; no graph is built."""

    @abstractmethod
    def query_backward(
        self, node: Tensor, relation: Tensor, side: Side, gradient: Tensor, d_node: Tensor, d_relation: Tensor
    ) -> None:
        """Add the gradients of `query` to `d_node` (n, D) and `d_relation` (n, Dr).

        Args:
            node: (n, D) rows the query was made of.
            relation: (n, Dr) relation rows the query was made of.
            side: side of the query.
            gradient: (n, D) gradient of the loss with respect to the query; may be overwritten.
            d_node: (n, D) accumulated in place.
            d_relation: (n, Dr) accumulated in place.
        """

    def factors(self, relation: Tensor) -> Tensor:
        """Rows (n, D) that `product` joins with nodes', of relation rows (n, Dr): these themselves."""
        return relation

    def factors_backward(self, relation: Tensor, gradient: Tensor, d_relation: Tensor) -> None:
        """Add to `d_relation` (n, Dr) what a gradient of `factors` (n, D) is for their relation rows."""
        d_relation.add_(gradient)


class ProductDecoder(ClosedFormDecoder):
    """A decoder whose score is a sum of products of head, relation and tail, coordinate by coordinate.

    Such scores are flat where all rows are near 0: what a row learns first is an accident of its initial
    values, and in a graph that says little about most nodes it may never learn how often they answer at all.
    With `popularity` one coordinate begins high for all nodes and relations and has a slope from the start:
    there a candidate rises with each edge that it answers and falls with each that it does not. Test MRR with
    1 instead of 0: WN18RR .432 to .442, umls .887 to .895, FB15k-237 .324 to .322, hackage .400 to .387.

    Args:
        dim: embedding width in floats.
        popularity: what is added to the initial values of the first coordinate, of nodes and relations; 0: as
            published.

    Raises:
        ConfigError: `dim` or `popularity` is not such a number.
    """

    def __init__(self, dim: int, popularity: float = 0.0) -> None:
        super().__init__(dim)
        given: object = popularity
        if isinstance(given, bool) or not isinstance(given, Real) or not is_float32(popularity):
            raise ConfigError(
                f"model.decoder.popularity is {popularity!r}; it must be a finite number of float32"
            )
        self.popularity = float(popularity)

    def init_rows(self, out: np.ndarray, rng: np.random.Generator, initializer: Initializer) -> None:
        """Fill (n, D) float32 node rows with initial values."""
        initializer.fill(out, rng)
        out[:, 0] += self.popularity

    def init_relations(self, out: np.ndarray, rng: np.random.Generator, initializer: Initializer) -> None:
        """Fill (R, Dr) float32 relation rows with initial values."""
        self.init_rows(out, rng, initializer)


def require_even(dim: int, decoder: str) -> None:
    """Raise ConfigError if a complex decoder's dim cannot be split into real and imaginary halves."""
    if dim % 2:
        raise ConfigError(
            f"model.dim is {dim}; {decoder} keeps real and imaginary halves and needs an even dim, "
            f"such as {dim + 1}"
        )
