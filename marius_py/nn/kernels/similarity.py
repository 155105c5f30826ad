"""Scores of queries with shared candidates as one matrix product, forward and backward (floor 1).

Queries and candidates are extended by some columns, so that the product yields the shifted score itself, and
the product of weights with extended candidates yields the row sums of the weights: no pass over the (P, K)
scores is spent on either, nor on weights of groups of candidates, whose logarithms are added to the scores by
further columns. Everything works on blocks (g, P, K) of g chunks, sized to stay in cache.

Extended rows are padded with zeros to whole registers where that pays: on AVX-512 the product of (250, 1000)
and (1000, n) was measured to take 8 % less time for n = 112 than for n = 101.
"""

from __future__ import annotations

from types import ModuleType
from typing import Protocol

import torch
from torch import Tensor

from marius_py.nn.kernels.distance import SQUARE_FLOOR
from marius_py.nn.kernels.host import compiled_distance
from marius_py.nn.kernels.workspace import REGISTER, padded


def _product(left: Tensor, right: Tensor, out: Tensor, add: bool) -> None:
    if add:
        out.baddbmm_(left, right)
    else:
        torch.bmm(left, right, out=out)


class Block(Protocol):
    """What scores and gradients of P edges of each of g chunks are made in, with K candidates a chunk.

    Attributes:
        query: (g, P, W) extended queries. scaled: (g, P, G), their first columns times each edge's factor.
        d_query: (g, P, G) gradients. scores: (g, P, K), later the weights. inverse: (g, P, K) scratch.
    """

    query: Tensor
    scaled: Tensor
    d_query: Tensor
    scores: Tensor
    inverse: Tensor


class Similarity(Protocol):
    """One way to score; W is the width of extended rows, G ≤ W that of gradient sums, D ≤ G that of rows.

    Attributes:
        adds_biases: whether extended rows can carry an amount that is added to an edge's score with every
            candidate of a group. `groups`, below, is 0 where it is False or nothing is to be added.
        compiled: whether it needs Numba and works on the host alone.
    """

    adds_biases: bool
    compiled: bool

    def widths(self, dim: int, groups: int) -> tuple[int, int]:
        """(W, G) for rows of `dim` floats and biases of so many groups."""

    def positive(self, query: Tensor, answer: Tensor, scratch: Tensor) -> Tensor:
        """Scores (n,) of queries (n, D) with their own answers (n, D); scratch is (n, D)."""

    def extend_queries(
        self, extended: Tensor, dim: int, shift: Tensor | float, biases: Tensor | None = None
    ) -> None:
        """Fill all columns but the first D of (n, W) queries.

        `shift`, (n,), is added to every score, `biases`, (n, groups), to those with candidates of a group.
        """

    def extend_candidates(self, extended: Tensor, dim: int, group: Tensor | None = None) -> None:
        """Fill all columns but the first D of (*, W) candidates; `group`, (g, K) int64, is each one's.

        Without groups every candidate is treated alike, so that a table of rows may be filled before they
        are looked up.
        """

    def scores(self, block: Block, candidates: Tensor, dim: int, groups: int) -> None:
        """Write the shifted scores of the block's queries with extended candidates (g, K, W).

        What is left in `inverse` must reach `query_gradient`.
        """

    def query_gradient(self, block: Block, candidates: Tensor, dim: int) -> Tensor:
        """Write Σ_k weight_k ∂score_k/∂query into the first D columns of d_query, from weights in `scores`.

        These may be overwritten with what `candidate_gradient` needs, and d_query may be left to that.

        Returns:
            (g, P) row sums Σ_k weight_k.
        """

    def candidate_gradient(self, block: Block, candidates: Tensor, out: Tensor, add: bool) -> None:
        """Write Σ_p factor_p weight_pk ∂score_pk/∂candidate_k in a form that `finish_candidates` reads.

        Args:
            block: as `query_gradient` left it; `scaled` is known now.
            candidates: (g, K, W) extended.
            out: (g, K, G) sums.
            add: add to what `out` holds.
        """

    def finish_candidates(self, sums: Tensor, candidates: Tensor, dim: int) -> Tensor:
        """Turn the sums of `candidate_gradient` into gradients (g, K, D), their first columns, in place."""

    def positive_gradient(
        self,
        query: Tensor,
        answer: Tensor,
        gradient: Tensor,
        d_query: Tensor,
        d_answer: Tensor,
        scratch: Tensor,
    ) -> None:
        """Add the gradients of `positive` to d_query and d_answer (n, D), from those of its scores (n, 1)."""


class DotSimilarity:
    """score = query · candidate. Columns after the row: shift or 1, biases or membership of groups, zeros.

    Where a row fills whole registers, gradients leave the extra columns out and row sums take a pass of their
    own, which costs less than a register of zeros.
    """

    adds_biases = True
    compiled = False

    def widths(self, dim: int, groups: int) -> tuple[int, int]:
        """One extra column and those of groups for the scores; none for gradients if rows fill registers."""
        if dim % REGISTER == 0:
            return dim + 1 + groups, dim
        return padded(dim + 1 + groups), padded(dim + 1)

    def positive(self, query: Tensor, answer: Tensor, scratch: Tensor) -> Tensor:
        """Dot products of pairs."""
        return torch.mul(query, answer, out=scratch).sum(1)

    def extend_queries(
        self, extended: Tensor, dim: int, shift: Tensor | float, biases: Tensor | None = None
    ) -> None:
        """The shift rides along as a coordinate, and so do the biases."""
        extended[:, dim:] = 0
        extended[:, dim] = shift
        if biases is not None:
            extended[:, dim + 1 : dim + 1 + biases.shape[1]] = biases

    def extend_candidates(self, extended: Tensor, dim: int, group: Tensor | None = None) -> None:
        """The coordinates that meet the shift and the bias of the candidate's group."""
        extended[..., dim:] = 0
        extended[..., dim] = 1
        if group is not None:
            extended.scatter_(2, group.unsqueeze(2) + (dim + 1), 1.0)

    def scores(self, block: Block, candidates: Tensor, dim: int, groups: int) -> None:
        """One batched product."""
        used = dim + 1 + groups
        torch.bmm(block.query[..., :used], candidates[..., :used].transpose(1, 2), out=block.scores)

    def query_gradient(self, block: Block, candidates: Tensor, dim: int) -> Tensor:
        """weights @ [candidates, 1] is the gradient and, in its last column, the row sums."""
        out = block.d_query
        torch.bmm(block.scores, candidates[..., : out.shape[-1]], out=out)
        return block.scores.sum(-1) if out.shape[-1] == dim else out[..., dim]

    def candidate_gradient(self, block: Block, candidates: Tensor, out: Tensor, add: bool) -> None:
        """weightsᵀ @ (factor · query): the factor enters the small operand."""
        _product(block.scores.transpose(1, 2), block.scaled, out, add)

    def finish_candidates(self, sums: Tensor, candidates: Tensor, dim: int) -> Tensor:
        """The sums are the gradient."""
        return sums[..., :dim]

    def positive_gradient(
        self,
        query: Tensor,
        answer: Tensor,
        gradient: Tensor,
        d_query: Tensor,
        d_answer: Tensor,
        scratch: Tensor,
    ) -> None:
        """Product rule."""
        d_query.addcmul_(answer, gradient)
        d_answer.addcmul_(query, gradient)


class L2Similarity:
    """score = −‖query − candidate‖ by expanded squares.

    Extended queries [q, ‖q‖², 1, shift] times extended candidates [−2k, 1, ‖k‖², 0] are squared distances;
    the shift only travels along, since the root must be taken before it is added.
    """

    adds_biases = False
    compiled = False

    def widths(self, dim: int, groups: int) -> tuple[int, int]:
        """Three extra columns, which gradients need as well."""
        return padded(dim + 3), padded(dim + 3)

    def positive(self, query: Tensor, answer: Tensor, scratch: Tensor) -> Tensor:
        """Minus the distances of pairs, from differences: a true answer may be too near for expansion."""
        distance: Tensor = torch.linalg.vector_norm(torch.sub(query, answer, out=scratch), dim=1)
        return distance.neg_()

    def extend_queries(
        self, extended: Tensor, dim: int, shift: Tensor | float, biases: Tensor | None = None
    ) -> None:
        """Squared norm, one, shift."""
        extended[:, dim:] = 0
        extended[:, dim] = extended[:, :dim].square().sum(1)
        extended[:, dim + 1] = 1
        extended[:, dim + 2] = shift

    def extend_candidates(self, extended: Tensor, dim: int, group: Tensor | None = None) -> None:
        """Scale by −2; one, squared norm, zeros."""
        candidates = extended[..., :dim]
        extended[..., dim:] = 0
        extended[..., dim] = 1
        extended[..., dim + 1] = candidates.square().sum(-1)
        candidates.mul_(-2)

    def scores(self, block: Block, candidates: Tensor, dim: int, groups: int) -> None:
        """Shift minus distance; `inverse` keeps 1 / distance, 0 where rounding noise hides the distance."""
        out = block.scores
        torch.bmm(block.query, candidates.transpose(1, 2), out=out)
        torch.ge(out, SQUARE_FLOOR, out=block.inverse)
        out.clamp_min_(SQUARE_FLOOR).sqrt_()
        block.inverse.div_(out)
        out.neg_().add_(block.query[..., dim + 2 : dim + 3])

    def query_gradient(self, block: Block, candidates: Tensor, dim: int) -> Tensor:
        """Σ_k f_k (k − q) with f = weight / distance, which replaces the weights."""
        weights, out = block.scores, block.d_query
        row_sums = weights.sum(-1)
        weights.mul_(block.inverse)
        torch.bmm(weights, candidates, out=out)
        sums = out[..., :dim].mul_(-0.5)
        sums.addcmul_(block.query[..., :dim], out[..., dim : dim + 1], value=-1)
        return row_sums

    def candidate_gradient(self, block: Block, candidates: Tensor, out: Tensor, add: bool) -> None:
        """Σ_p f_pk · factor_p · [q, ‖q‖², 1, shift]."""
        _product(block.scores.transpose(1, 2), block.scaled, out, add)

    def finish_candidates(self, sums: Tensor, candidates: Tensor, dim: int) -> Tensor:
        """Σ_p f_pk (q − k), whose two sums stand in the first D columns and in the column of ones."""
        return sums[..., :dim].addcmul_(candidates[..., :dim], sums[..., dim + 1 : dim + 2], value=0.5)

    def positive_gradient(
        self,
        query: Tensor,
        answer: Tensor,
        gradient: Tensor,
        d_query: Tensor,
        d_answer: Tensor,
        scratch: Tensor,
    ) -> None:
        """Unit vectors from query to answer and back; zero where they coincide."""
        difference = torch.sub(answer, query, out=scratch)
        distance = torch.linalg.vector_norm(difference, dim=1, keepdim=True)
        factor = torch.where(distance > 0, gradient / distance, 0.0)
        d_query.addcmul_(difference, factor)
        d_answer.addcmul_(difference, factor, value=-1)


class SumSimilarity:
    """score = −Σ_d |query_d − candidate_d|, or so over complex coordinates (Sun et al., 2019): no product.

    Extended queries are [q, shift, 1]: scaled by an edge's factor, their last column is that factor.

    Args:
        is_complex: whether coordinates are complex, real parts in the first half of a row.
    """

    adds_biases = False
    compiled = True

    def __init__(self, *, is_complex: bool) -> None:
        self._is_complex = is_complex

    def widths(self, dim: int, groups: int) -> tuple[int, int]:
        """Two extra columns for either."""
        return dim + 2, dim + 2

    def positive(self, query: Tensor, answer: Tensor, scratch: Tensor) -> Tensor:
        """Minus the distances of pairs."""
        difference = torch.sub(query, answer, out=scratch)
        sizes = torch.hypot(*difference.chunk(2, 1)) if self._is_complex else difference.abs_()
        return sizes.sum(1).neg_()

    def extend_queries(
        self, extended: Tensor, dim: int, shift: Tensor | float, biases: Tensor | None = None
    ) -> None:
        """Shift, one."""
        extended[:, dim] = shift
        extended[:, dim + 1] = 1

    def extend_candidates(self, extended: Tensor, dim: int, group: Tensor | None = None) -> None:
        """Zeros, which nothing reads."""
        extended[..., dim:] = 0

    def scores(self, block: Block, candidates: Tensor, dim: int, groups: int) -> None:
        """Shift minus distance."""
        given = block.query.numpy(), candidates.numpy()
        _compiled().distances(*given, dim, self._is_complex, block.scores.numpy())
        torch.sub(block.query[..., dim : dim + 1], block.scores, out=block.scores)

    def query_gradient(self, block: Block, candidates: Tensor, dim: int) -> Tensor:
        """The row sums; the gradient is left to `candidate_gradient`, which has the same differences."""
        return block.scores.sum(-1)

    def candidate_gradient(self, block: Block, candidates: Tensor, out: Tensor, add: bool) -> None:
        """Signs of differences, or unit ones, by weights, of both sides at once."""
        block.d_query.zero_()
        if not add:
            out.zero_()
        arrays = (one.numpy() for one in (block.scores.neg_(), block.query, candidates))
        factor, dim = block.scaled[..., -1].contiguous(), block.query.shape[-1] - 2
        sums = (one.numpy() for one in (block.d_query, out))
        _compiled().distances_backward(*arrays, dim, self._is_complex, factor.numpy(), *sums)

    def finish_candidates(self, sums: Tensor, candidates: Tensor, dim: int) -> Tensor:
        """The sums are the gradient."""
        return sums[..., :dim]

    def positive_gradient(
        self,
        query: Tensor,
        answer: Tensor,
        gradient: Tensor,
        d_query: Tensor,
        d_answer: Tensor,
        scratch: Tensor,
    ) -> None:
        """Signs of differences, or unit ones, to the answer and back; zero where both coincide."""
        difference = torch.sub(answer, query, out=scratch)
        if self._is_complex:
            modulus = torch.hypot(*difference.chunk(2, 1))
            factor = torch.where(modulus > 0, gradient / modulus, 0.0).repeat(1, 2)
        else:
            difference, factor = difference.sign_(), gradient
        d_query.addcmul_(difference, factor)
        d_answer.addcmul_(difference, factor, value=-1)


def _compiled() -> ModuleType:
    compiled = compiled_distance()
    assert compiled is not None, "fused_contrast.find_closed_form asks for it first"
    return compiled


SIMILARITIES: dict[str, Similarity] = {
    "dot": DotSimilarity(),
    "l2": L2Similarity(),
    "l1": SumSimilarity(is_complex=False),
    "moduli": SumSimilarity(is_complex=True),
}
"""`ClosedFormDecoder.similarity` → how to compute it; they hold no state."""
