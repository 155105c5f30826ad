"""Scores of queries with shared candidates as one matrix product, forward and backward (floor 1).

Queries and candidates are extended by a column or two, so that the product yields the shifted score itself,
and the product of weights with extended candidates yields the row sums of the weights: no pass over the
(P, K) scores is spent on either. Everything works on blocks (g, P, K) of g chunks, sized to stay in cache.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from marius_py.nn.kernels.distance import SQUARE_FLOOR
from marius_py.nn.kernels.workspace import Workspace


class Similarity(Protocol):
    """One way to score. Extended queries and candidates have `extra` more columns than rows.

    Attributes:
        extra: columns added to queries and candidates.
        extra_sums: columns added to the sums of `candidate_gradient`.
    """

    extra: int
    extra_sums: int

    def positive(self, query: Tensor, answer: Tensor, scratch: Tensor) -> Tensor:
        """Scores (n,) of queries (n, D) with their own answers (n, D); scratch is (n, D)."""

    def extend_queries(self, extended: Tensor, shift: Tensor | float) -> None:
        """Fill the extra columns of (n, D + extra) queries; `shift`, (n,), is added to every score."""

    def extend_candidates(self, extended: Tensor) -> None:
        """Fill the extra columns of (g, K, D + extra) candidates."""

    def scores(self, query: Tensor, candidates: Tensor, out: Tensor, workspace: Workspace) -> None:
        """Write the shifted scores (g, P, K) of extended queries with extended candidates."""

    def query_gradient(
        self, weights: Tensor, query: Tensor, candidates: Tensor, out: Tensor, workspace: Workspace
    ) -> Tensor:
        """Write Σ_k weight_k ∂score_k/∂query into the first D columns of out (g, P, D + extra).

        `weights` (g, P, K) may be overwritten with what `candidate_gradient` needs.

        Returns:
            (g, P) row sums Σ_k weight_k.
        """

    def candidate_gradient(self, weights: Tensor, scaled_query: Tensor, out: Tensor) -> None:
        """Add up Σ_p factor_p weight_pk ∂score_pk/∂candidate_k in a form that `finish_candidates` reads.

        Args:
            weights: (g, P, K) as `query_gradient` left them.
            scaled_query: (g, P, D + extra_sums), factor_p times the first columns of extended queries.
            out: (g, K, D + extra_sums) sums.
        """

    def finish_candidates(self, sums: Tensor, candidates: Tensor) -> Tensor:
        """Turn the sums of `candidate_gradient` into gradients (g, K, D), in place."""

    def positive_gradient(
        self,
        query: Tensor,
        answer: Tensor,
        gradient: Tensor,
        d_query: Tensor,
        d_answer: Tensor,
        scratch: Tensor,
    ) -> None:
        """Add the gradients of `positive`, given those of its scores (n,), to d_query and d_answer (n, D)."""


class DotSimilarity:
    """score = query · candidate. Extra column: the shift in queries, 1 in candidates."""

    extra = 1
    extra_sums = 0

    def positive(self, query: Tensor, answer: Tensor, scratch: Tensor) -> Tensor:
        """Dot products of pairs."""
        return torch.mul(query, answer, out=scratch).sum(1)

    def extend_queries(self, extended: Tensor, shift: Tensor | float) -> None:
        """The shift rides along as a coordinate."""
        extended[:, -1] = shift

    def extend_candidates(self, extended: Tensor) -> None:
        """The coordinate that meets the shift."""
        extended[..., -1] = 1

    def scores(self, query: Tensor, candidates: Tensor, out: Tensor, workspace: Workspace) -> None:
        """One batched product."""
        torch.bmm(query, candidates.transpose(1, 2), out=out)

    def query_gradient(
        self, weights: Tensor, query: Tensor, candidates: Tensor, out: Tensor, workspace: Workspace
    ) -> Tensor:
        """weights @ [candidates, 1] is the gradient and, in its last column, the row sums."""
        torch.bmm(weights, candidates, out=out)
        return out[..., -1]

    def candidate_gradient(self, weights: Tensor, scaled_query: Tensor, out: Tensor) -> None:
        """weightsᵀ @ (factor · query): the factor enters the small operand."""
        out.baddbmm_(weights.transpose(1, 2), scaled_query)

    def finish_candidates(self, sums: Tensor, candidates: Tensor) -> Tensor:
        """The sums are the gradient."""
        return sums

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
        d_query.addcmul_(answer, gradient.unsqueeze(1))
        d_answer.addcmul_(query, gradient.unsqueeze(1))


class L2Similarity:
    """score = −‖query − candidate‖ by expanded squares.

    Extended queries [q, ‖q‖², 1, shift] times extended candidates [−2k, 1, ‖k‖², 0] are squared distances;
    the shift only travels along, since the root must be taken before it is added.
    """

    extra = 3
    extra_sums = 3

    def positive(self, query: Tensor, answer: Tensor, scratch: Tensor) -> Tensor:
        """Minus the distances of pairs, from differences: a true answer may be too near for expansion."""
        distance: Tensor = torch.linalg.vector_norm(torch.sub(query, answer, out=scratch), dim=1)
        return distance.neg_()

    def extend_queries(self, extended: Tensor, shift: Tensor | float) -> None:
        """Squared norm, one, shift."""
        query = extended[:, : -self.extra]
        extended[:, -3] = query.square().sum(1)
        extended[:, -2] = 1
        extended[:, -1] = shift

    def extend_candidates(self, extended: Tensor) -> None:
        """Scale by −2; one, squared norm, zero."""
        candidates = extended[..., : -self.extra]
        extended[..., -2] = candidates.square().sum(-1)
        candidates.mul_(-2)
        extended[..., -3] = 1
        extended[..., -1] = 0

    def scores(self, query: Tensor, candidates: Tensor, out: Tensor, workspace: Workspace) -> None:
        """Shift minus distance; 1 / distance stays in the workspace for the gradient."""
        torch.bmm(query, candidates.transpose(1, 2), out=out)
        inverse = workspace.take("inverse", *out.shape)
        torch.ge(out, SQUARE_FLOOR, out=inverse)
        out.clamp_min_(SQUARE_FLOOR).sqrt_()
        inverse.div_(out)
        out.neg_().add_(query[..., -1:])

    def query_gradient(
        self, weights: Tensor, query: Tensor, candidates: Tensor, out: Tensor, workspace: Workspace
    ) -> Tensor:
        """Σ_k f_k (k − q) with f = weight / distance, which replaces the weights."""
        row_sums = weights.sum(-1)
        weights.mul_(workspace.take("inverse", *weights.shape))
        torch.bmm(weights, candidates, out=out)
        sums = out[..., : -self.extra].mul_(-0.5)
        sums.addcmul_(query[..., : -self.extra], out[..., -3].unsqueeze(-1), value=-1)
        return row_sums

    def candidate_gradient(self, weights: Tensor, scaled_query: Tensor, out: Tensor) -> None:
        """Σ_p f_pk · factor_p · [q, ‖q‖², 1, shift]."""
        out.baddbmm_(weights.transpose(1, 2), scaled_query)

    def finish_candidates(self, sums: Tensor, candidates: Tensor) -> Tensor:
        """Σ_p f_pk (q − k), whose two sums stand in the first D columns and in the column of ones."""
        gradient = sums[..., : -self.extra]
        return gradient.addcmul_(candidates[..., : -self.extra], sums[..., -2].unsqueeze(-1), value=0.5)

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
        distance = torch.linalg.vector_norm(difference, dim=1)
        factor = torch.where(distance > 0, gradient / distance, 0.0).unsqueeze(1)
        d_query.addcmul_(difference, factor)
        d_answer.addcmul_(difference, factor, value=-1)


SIMILARITIES: dict[str, Similarity] = {"dot": DotSimilarity(), "l2": L2Similarity()}
"""`ClosedFormDecoder.similarity` → how to compute it; they hold no state."""
