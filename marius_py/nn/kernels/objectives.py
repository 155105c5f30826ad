"""Losses in closed form on blocks of scores (floor 1): scores become weights in place.

An objective's gradient with respect to the score of negative k of edge b is factor_b · weight_bk. Whatever
depends on the whole row (the softmax's denominator) is kept in the factor, which later enters the small
operand of a matrix product, so that the (P, K) block is touched once.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional

from marius_py.nn.losses import LogisticLoss, Loss, MarginLoss, SoftmaxLoss

MOST_WEIGHT = 1e24
"""Largest sum of an edge's softmax weights, e^(s − s⁺), whose products with rows are sure to be finite.

Float32 ends at 3.4e38: this leaves 1e14 for a row's coordinate; for distances, whose weights are divided by
down to 1e-6 and meet squared norms of rows, norms of 1e4. Negatives that score 55 above an edge reach it."""


class Objective(Protocol):
    """One loss on blocks; g chunks of P edges with K shared negatives.

    Attributes:
        averages: whether the number of kept negatives matters.
        exponential: whether a count of w is the same as log w more in the score.
    """

    averages: bool
    exponential: bool

    def shift(self, positive: Tensor) -> Tensor | float:
        """What is added to the scores of an edge's negatives, given positive scores (B,)."""

    def weigh(
        self, scores: Tensor, counts: Tensor | None, dropped: Tensor | None, scratch: Tensor
    ) -> Tensor | None:
        """Replace shifted scores (g, P, K) by weights in place.

        Args:
            scores: overwritten.
            counts: (g, P, K) int8, 0 where the negative must not count, or float32, what it counts.
            dropped: (M,) int64 positions in the flattened (g, P, K) that must not count either.
            scratch: (g, P, K), undefined.

        Returns:
            (g, P) sums over k of the negatives' losses, or None if the row sums of weights tell the loss.
        """

    def reduce(
        self, positive: Tensor, row_sums: Tensor, losses: Tensor | None, kept: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Finish whole rows; all (g, P, 1).

        Args:
            positive: scores of the true edges.
            row_sums: Σ_k weight_k.
            losses: what `weigh` returned.
            kept: sum of the negatives' counts, of every edge, (g, P, 1), or of all, (); None unless
                `averages`.

        Returns:
            Loss, factor, and gradient of the positive score, of each edge alone, (g, P, 1).
        """


class SoftmaxObjective:
    """Cross-entropy, shifted by the positive score: loss = log(1 + w Σ_k e^(s_k − s⁺)).

    Args:
        log_weight: log w, added to the score of every negative.

    The shift needs no pass for the rows' maxima. Where a negative scores some 55 above the true edge, so that
    the weights' sum exceeds `MOST_WEIGHT` and products with them may overflow, the loss is said to be
    infinite, which the caller sees and computes again in a stable way.
    """

    averages = False
    exponential = True

    def __init__(self, log_weight: float = 0.0) -> None:
        self.log_weight = log_weight

    def shift(self, positive: Tensor) -> Tensor | float:
        """Minus the positive scores, plus log w."""
        return self.log_weight - positive

    def weigh(
        self, scores: Tensor, counts: Tensor | None, dropped: Tensor | None, scratch: Tensor
    ) -> Tensor | None:
        """Exponentials."""
        scores.exp_()
        if counts is not None:
            scores.mul_(counts)
        if dropped is not None:
            scores.view(-1).index_fill_(0, dropped, 0)
        return None

    def reduce(
        self, positive: Tensor, row_sums: Tensor, losses: Tensor | None, kept: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The denominator is 1 + Σ e^(s − s⁺); the loss is infinite where that is too large for gradients."""
        factor = (row_sums + 1).reciprocal_()
        loss = torch.log1p(row_sums).masked_fill_(row_sums > MOST_WEIGHT, math.inf)
        return loss, factor, torch.mul(row_sums, factor).neg_()


class SmoothedObjective(SoftmaxObjective):
    """Cross-entropy with label smoothing ε: of log p of each of n kept negatives, − ε / (n + 1) is added.

    Finite wherever the scores are: with ε = 0 it takes over where `SoftmaxObjective` overflows.

    loss = log z − ε / (n + 1) Σ_k (s_k − s⁺) with z = 1 + w Σ_k e^(s_k − s⁺), whose weights are
    w e^(s_k − s⁺) / z − ε / (n + 1): they need whole rows, which are gone over several times.

    Args:
        log_weight: log w, added to the score of every negative.
        smoothing: ε, in [0, 1).
    """

    def __init__(self, log_weight: float, smoothing: float) -> None:
        super().__init__(log_weight)
        self.smoothing = smoothing

    def weigh(
        self, scores: Tensor, counts: Tensor | None, dropped: Tensor | None, scratch: Tensor
    ) -> Tensor | None:
        """Probabilities less the target's share; sums of whole losses."""
        _leave_out(scores, counts, dropped)
        kept = scores != -math.inf
        number = kept.sum(-1, keepdim=True, dtype=scores.dtype)
        share = self.smoothing / (number + 1)
        torch.mul(kept, share, out=scratch)
        gaps = number * self.log_weight - scores.masked_fill(~kept, 0).sum(-1, keepdim=True)
        largest = scores.amax(-1, keepdim=True).clamp_min_(0)
        scores.sub_(largest).exp_()
        total = scores.sum(-1, keepdim=True) + torch.exp(-largest)
        scores.div_(total).sub_(scratch)
        return (largest + total.log() + share * gaps).squeeze(-1)

    def reduce(
        self, positive: Tensor, row_sums: Tensor, losses: Tensor | None, kept: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Nothing is left to divide by; all gradients of a row add up to 0."""
        assert losses is not None
        return losses, torch.ones_like(positive), -row_sums


class AveragedObjective(ABC):
    """A loss whose negatives, each on its own, are averaged for an edge.

    Evenly, or weighted by softmax(temperature · score), detached (self-adversarial sampling; Sun et al.,
    2019). These weights add up to 1, so that no number of negatives is needed; an edge without a kept
    negative has none.

    Args:
        margin: see the subclass.
        temperature: 0 averages evenly.
    """

    exponential = False

    def __init__(self, margin: float, temperature: float = 0.0) -> None:
        self.margin, self.temperature = margin, temperature
        self.averages = temperature == 0

    @abstractmethod
    def shift(self, positive: Tensor) -> Tensor | float:
        """What is added to the scores of an edge's negatives, given positive scores (B,)."""

    @abstractmethod
    def values(self, scores: Tensor, out: Tensor) -> Tensor:
        """Write the loss of each negative, given shifted scores, to `out`, which is returned."""

    @abstractmethod
    def slopes_(self, scores: Tensor) -> Tensor:
        """Replace shifted scores by the derivatives of `values`."""

    @abstractmethod
    def of_positive(self, positive: Tensor, average: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """Loss and gradient of positive scores, given averages of `values` and `slopes_`; all (g, P, 1)."""

    def weigh(
        self, scores: Tensor, counts: Tensor | None, dropped: Tensor | None, scratch: Tensor
    ) -> Tensor | None:
        """Derivatives by what their negatives count; sums of the losses."""
        if not self.averages:
            weights = _softmax(scores, self.temperature, counts, dropped, scratch)
            losses = self.values(scores, torch.empty_like(scores)).mul_(weights).sum(-1)
            self.slopes_(scores).mul_(weights)
            return losses
        for one in (self.values(scores, scratch), self.slopes_(scores)):
            if counts is not None:
                one.mul_(counts)
            if dropped is not None:
                one.view(-1).index_fill_(0, dropped, 0)
        return scratch.sum(-1)

    def reduce(
        self, positive: Tensor, row_sums: Tensor, losses: Tensor | None, kept: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Averages over the kept negatives."""
        assert losses is not None
        factor = torch.ones_like(positive)
        if self.averages:
            assert kept is not None
            factor.mul_(kept)
            factor.masked_fill_(factor == 0, 1).reciprocal_()
        loss, gradient = self.of_positive(positive, losses * factor, row_sums * factor)
        return loss, factor, gradient


class LogisticObjective(AveragedObjective):
    """Binary cross-entropy; the margin is added to every score."""

    def shift(self, positive: Tensor) -> Tensor | float:
        """The margin."""
        return self.margin

    def values(self, scores: Tensor, out: Tensor) -> Tensor:
        """softplus(x) = max(x, 0) + log1p(e^−|x|)."""
        return torch.abs(scores, out=out).neg_().exp_().log1p_().add_(torch.clamp_min(scores, 0))

    def slopes_(self, scores: Tensor) -> Tensor:
        """Sigmoids."""
        return scores.sigmoid_()

    def of_positive(self, positive: Tensor, average: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """Those of −log σ of the positive score besides."""
        shifted = -(positive + self.margin)
        return functional.softplus(shifted) + average, shifted.sigmoid().neg_()


class MarginObjective(AveragedObjective):
    """Margin ranking: max(0, margin − s⁺ + s_k); the margin is the gap wanted."""

    def shift(self, positive: Tensor) -> Tensor | float:
        """The margin less the positive scores."""
        return self.margin - positive

    def values(self, scores: Tensor, out: Tensor) -> Tensor:
        """By how much a negative comes too near."""
        return torch.clamp_min(scores, 0, out=out)

    def slopes_(self, scores: Tensor) -> Tensor:
        """1 where it does, else 0."""
        return scores.copy_(scores > 0)

    def of_positive(self, positive: Tensor, average: Tensor, slopes: Tensor) -> tuple[Tensor, Tensor]:
        """The positive score counts against each negative."""
        return average, -slopes


def _leave_out(scores: Tensor, counts: Tensor | None, dropped: Tensor | None) -> None:
    """Add the logarithm of what negatives count to scores in place: −∞ where they must not."""
    if counts is not None:
        scores.add_(counts.to(scores.dtype).log())
    if dropped is not None:
        scores.view(-1).index_fill_(0, dropped, -math.inf)


def _softmax(
    scores: Tensor, temperature: float, counts: Tensor | None, dropped: Tensor | None, scratch: Tensor
) -> Tensor:
    """Softmax of temperature · scores over the negatives of each edge that count, in `scratch`; else 0."""
    _leave_out(torch.mul(scores, temperature, out=scratch), counts, dropped)
    largest = scratch.amax(-1, keepdim=True).clamp_min_(torch.finfo(scratch.dtype).min)
    weights = scratch.sub_(largest).exp_()
    return weights.div_(weights.sum(-1, keepdim=True).clamp_min_(torch.finfo(scratch.dtype).tiny))


def closed_form(loss: Loss) -> Objective | None:
    """The objective that equals `loss`; None if there is none. Subclasses may compute something else."""
    if type(loss) is SoftmaxLoss and loss.smoothing == 0:
        return SoftmaxObjective(math.log(loss.negative_weight))
    if type(loss) is SoftmaxLoss:
        return SmoothedObjective(math.log(loss.negative_weight), loss.smoothing)
    if type(loss) is LogisticLoss:
        return LogisticObjective(loss.margin, loss.adversarial_temperature)
    if type(loss) is MarginLoss:
        return MarginObjective(loss.margin, loss.adversarial_temperature)
    return None
