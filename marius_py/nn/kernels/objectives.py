"""Losses in closed form on blocks of scores (floor 1): scores become weights in place.

An objective's gradient with respect to the score of negative k of edge b is factor_b · weight_bk. Whatever
depends on the whole row (the softmax's denominator) is kept in the factor, which later enters the small
operand of a matrix product, so that the (P, K) block is touched once.
"""

from __future__ import annotations

import math
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

    loss = log z − ε / (n + 1) Σ_k (s_k − s⁺) with z = 1 + w Σ_k e^(s_k − s⁺), whose weights are
    w e^(s_k − s⁺) / z − ε / (n + 1): they need whole rows, which are gone over several times.

    Args:
        log_weight: log w, added to the score of every negative.
        smoothing: ε, in (0, 1).
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
        number = kept.sum(-1, keepdim=True)
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


class LogisticObjective:
    """Binary cross-entropy with a margin, negatives averaged.

    Args:
        margin: added to every score.
    """

    averages = True
    exponential = False

    def __init__(self, margin: float) -> None:
        self.margin = margin

    def shift(self, positive: Tensor) -> Tensor | float:
        """The margin."""
        return self.margin

    def weigh(
        self, scores: Tensor, counts: Tensor | None, dropped: Tensor | None, scratch: Tensor
    ) -> Tensor | None:
        """Sigmoids; softplus(x) = max(x, 0) + log1p(e^−|x|) is summed on the way."""
        torch.abs(scores, out=scratch).neg_().exp_().log1p_().add_(torch.clamp_min(scores, 0))
        scores.sigmoid_()
        if counts is not None:
            scratch.mul_(counts)
            scores.mul_(counts)
        if dropped is not None:
            scratch.view(-1).index_fill_(0, dropped, 0)
            scores.view(-1).index_fill_(0, dropped, 0)
        return scratch.sum(-1)

    def reduce(
        self, positive: Tensor, row_sums: Tensor, losses: Tensor | None, kept: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Averages over the kept negatives."""
        shifted = -(positive + self.margin)
        loss = functional.softplus(shifted)
        factor = torch.zeros_like(positive)
        if losses is not None and kept is not None:
            factor = factor.add_(kept)
            factor.masked_fill_(factor == 0, 1).reciprocal_()
            loss = loss.addcmul_(losses, factor)
        return loss, factor, shifted.sigmoid_().neg_()


class AdversarialObjective(LogisticObjective):
    """Binary cross-entropy with a margin, negatives weighted by softmax(temperature · score), detached.

    The average needs no number of negatives, since the weights of each row add up to 1; none of a row without
    a kept negative count (self-adversarial sampling; Sun et al., 2019).

    Args:
        margin: added to every score.
        temperature: above 0.
    """

    averages = False

    def __init__(self, margin: float, temperature: float) -> None:
        super().__init__(margin)
        self.temperature = temperature

    def weigh(
        self, scores: Tensor, counts: Tensor | None, dropped: Tensor | None, scratch: Tensor
    ) -> Tensor | None:
        """Sigmoids by the softmax; the losses that they are of, softplus(x) = x − log σ(x), are summed."""
        weights = _softmax(scores, self.temperature, counts, dropped, scratch)
        losses = (functional.softplus(scores) * weights).sum(-1)
        scores.sigmoid_().mul_(weights)
        return losses

    def reduce(
        self, positive: Tensor, row_sums: Tensor, losses: Tensor | None, kept: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Nothing is left to divide by."""
        shifted = -(positive + self.margin)
        loss = functional.softplus(shifted)
        if losses is not None:
            loss += losses
        return loss, torch.ones_like(positive), shifted.sigmoid_().neg_()


class MarginObjective:
    """Margin ranking, negatives averaged: loss = average_k max(0, margin − s⁺ + s_k).

    Args:
        margin: gap wanted.
    """

    averages = True
    exponential = False

    def __init__(self, margin: float) -> None:
        self.margin = margin

    def shift(self, positive: Tensor) -> Tensor | float:
        """The margin less the positive scores."""
        return self.margin - positive

    def weigh(
        self, scores: Tensor, counts: Tensor | None, dropped: Tensor | None, scratch: Tensor
    ) -> Tensor | None:
        """What a negative counts where it comes too near, 0 elsewhere; sums of by how much."""
        torch.clamp_min(scores, 0, out=scratch)
        scores.copy_(scores > 0)
        if counts is not None:
            scratch.mul_(counts)
            scores.mul_(counts)
        if dropped is not None:
            scratch.view(-1).index_fill_(0, dropped, 0)
            scores.view(-1).index_fill_(0, dropped, 0)
        return scratch.sum(-1)

    def reduce(
        self, positive: Tensor, row_sums: Tensor, losses: Tensor | None, kept: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Averages over the kept negatives."""
        assert losses is not None
        assert kept is not None
        factor = torch.zeros_like(positive).add_(kept)
        factor.masked_fill_(factor == 0, 1).reciprocal_()
        return losses * factor, factor, -row_sums * factor


class AdversarialMarginObjective(MarginObjective):
    """Margin ranking, negatives weighted as in `AdversarialObjective`.

    Args:
        margin: gap wanted.
        temperature: above 0.
    """

    averages = False

    def __init__(self, margin: float, temperature: float) -> None:
        super().__init__(margin)
        self.temperature = temperature

    def weigh(
        self, scores: Tensor, counts: Tensor | None, dropped: Tensor | None, scratch: Tensor
    ) -> Tensor | None:
        """The softmax's weight where a negative comes too near, 0 elsewhere; sums of by how much."""
        weights = _softmax(scores, self.temperature, counts, dropped, scratch)
        losses = (scores.clamp_min(0) * weights).sum(-1)
        scores.copy_(scores > 0).mul_(weights)
        return losses

    def reduce(
        self, positive: Tensor, row_sums: Tensor, losses: Tensor | None, kept: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Nothing is left to divide by."""
        assert losses is not None
        return losses, torch.ones_like(positive), -row_sums


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
    if type(loss) is MarginLoss and loss.adversarial_temperature == 0:
        return MarginObjective(loss.margin)
    if type(loss) is MarginLoss:
        return AdversarialMarginObjective(loss.margin, loss.adversarial_temperature)
    if type(loss) is LogisticLoss and loss.adversarial_temperature == 0:
        return LogisticObjective(loss.margin)
    if type(loss) is LogisticLoss:
        return AdversarialObjective(loss.margin, loss.adversarial_temperature)
    return None
