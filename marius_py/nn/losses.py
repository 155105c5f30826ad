"""Losses (floor 1): scores of B edges and of their K shared negatives in, one number out."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import torch
from torch import Tensor
from torch.nn import functional

from marius_py.arrays import is_float32
from marius_py.errors import ConfigError


class Loss(ABC):
    """Mean loss of the edges of one corrupted side; the model adds the sides."""

    @abstractmethod
    def __call__(self, positive: Tensor, negative: Tensor, keep: Tensor | None) -> Tensor:
        """Mean loss an edge.

        Args:
            positive: (B,) scores of true edges.
            negative: (B, K) scores of their corruptions.
            keep: (B, K) bool, False for corruptions that must not count; None counts all.

        Returns:
            () mean over the B edges, differentiable in both scores.
        """

    def weighted(self, positive: Tensor, negative: Tensor, keep: Tensor | None, weight: Tensor) -> Tensor:
        """Mean loss an edge where negative k of edge b counts like weight_bk negatives.

        Called instead of the loss itself where `negatives.weigh` weighs negatives: out of core, with three
        partitions in the buffer or more. Here the gradient of every negative's score is multiplied by its
        weight, while the value stays that of a call: right for sums and averages over negatives. A loss in
        which negatives share one denominator, like `SoftmaxLoss`, overrides it.

        Args:
            positive, negative, keep: as for a call.
            weight: (B, K), positive, 1 on average.

        Returns:
            () mean over the B edges, differentiable in both scores.
        """
        still = negative.detach()
        return self(positive, still + weight * (negative - still), keep)


class SoftmaxLoss(Loss):
    """Cross-entropy of the true answer among [true answer, negatives]: the contrastive loss.

    loss = −log( e^positive / (e^positive + w Σ_k e^negative_k) )

    Args:
        smoothing: share of the target, in [0, 1), that goes to the true answer and the kept negatives alike
            instead of the true answer alone (label smoothing; Szegedy et al., 2016). Above 0 a step goes
            over its scores several times and is slower.
        negative_weight: w, how many candidates a negative stands for. The number of nodes over that of
            negatives makes the sampled denominator an unbiased estimate of that over all nodes (Bengio and
            Senécal, 2008); 1 contrasts with the sample alone. Weights far above 1 may want known edges among
            the negatives (`negatives.mask_known=false`) or not: on FB15k-237 ComplEx (weight 14.5) has a test
            MRR of .350 with them and .305 without, RotatE (29) .334 and .340, TransE (29) .320 and .329.
    """

    def __init__(self, smoothing: float = 0.0, negative_weight: float = 1.0) -> None:
        if not 0 <= smoothing < 1:
            raise ConfigError(f"loss.smoothing is {smoothing!r}; it must lie in [0, 1)")
        if not (negative_weight > 0 and is_float32(negative_weight)):
            raise ConfigError(
                f"loss.negative_weight is {negative_weight!r}; it must be a finite number above 0, of float32"
            )
        self.smoothing = float(smoothing)
        self.negative_weight = float(negative_weight)

    def __call__(self, positive: Tensor, negative: Tensor, keep: Tensor | None) -> Tensor:
        """Mean cross-entropy, ()."""
        counted = negative if keep is None else negative.masked_fill(~keep, -math.inf)
        loss = functional.softplus(torch.logsumexp(counted, 1) + math.log(self.negative_weight) - positive)
        if self.smoothing:
            gaps = positive.unsqueeze(1) - negative
            kept = (
                torch.full_like(positive, negative.shape[1])
                if keep is None
                else keep.sum(1, dtype=positive.dtype)
            )
            total = gaps.sum(1) if keep is None else (gaps * keep).sum(1)
            loss = loss + total * (self.smoothing / (kept + 1))
        return loss.mean()

    def weighted(self, positive: Tensor, negative: Tensor, keep: Tensor | None, weight: Tensor) -> Tensor:
        """Mean cross-entropy, (), with log weight added to negatives' scores (Bengio and Senécal, 2008)."""
        return self(positive, negative + weight.log(), keep)


def _check_finite(key: str, value: float, low: float = -math.inf) -> float:
    if not is_float32(value) or value < low:
        least = f", at least {low:g}" if math.isfinite(low) else ""
        raise ConfigError(f"loss.{key} is {value!r}; it must be a finite number of float32{least}")
    return float(value)


def _average(
    values: Tensor, scores: Tensor, keep: Tensor | None, weight: Tensor | None, temperature: float
) -> Tensor:
    """Average (B, K) values over the kept negatives of each edge, by weight · softmax(temperature · scores).

    An edge none of whose negatives is kept averages to 0. No gradient flows through the weights.
    """
    if temperature > 0:
        logits = scores.detach() * temperature
        if weight is not None:
            logits = logits + weight.log()
        if keep is not None:
            logits = logits.masked_fill(~keep, -math.inf)
        weights = torch.softmax(logits, 1)
        if keep is not None:
            weights = weights.masked_fill(~keep.any(1, keepdim=True), 0.0)  # of none it is NaN
        return (weights * values).sum(1)
    if keep is not None:
        weight = keep if weight is None else weight * keep
    if weight is None:
        return values.mean(1)
    total = weight.sum(1)
    return (values * weight).sum(1) / total.masked_fill(total == 0, 1)


class LogisticLoss(Loss):
    """Binary cross-entropy, −log σ(positive + margin) − average_k log σ(−negative_k − margin).

    Args:
        margin: added to every score; distances need it (γ of RotatE), since they are never above 0.
        adversarial_temperature: 0 averages negatives evenly; above 0 weights them by softmax(temperature ·
            score), detached (self-adversarial sampling; Sun et al., 2019).
    """

    def __init__(self, margin: float = 0.0, adversarial_temperature: float = 0.0) -> None:
        self.margin = _check_finite("margin", margin)
        self.adversarial_temperature = _check_finite("adversarial_temperature", adversarial_temperature, 0)

    def __call__(self, positive: Tensor, negative: Tensor, keep: Tensor | None) -> Tensor:
        """Mean binary cross-entropy, ()."""
        return self._mean(positive, negative, keep, None)

    def weighted(self, positive: Tensor, negative: Tensor, keep: Tensor | None, weight: Tensor) -> Tensor:
        """Mean binary cross-entropy with weighted negatives, ()."""
        return self._mean(positive, negative, keep, weight)

    def _mean(self, positive: Tensor, negative: Tensor, keep: Tensor | None, weight: Tensor | None) -> Tensor:
        values = functional.softplus(negative + self.margin)
        average = _average(values, negative, keep, weight, self.adversarial_temperature)
        return (functional.softplus(-positive - self.margin) + average).mean()


class MarginLoss(Loss):
    """Margin ranking, average_k max(0, margin − positive + negative_k).

    Args:
        margin: gap wanted between a true edge and its corruptions, at least 0.
        adversarial_temperature: as for `LogisticLoss`.
    """

    def __init__(self, margin: float = 1.0, adversarial_temperature: float = 0.0) -> None:
        self.margin = _check_finite("margin", margin, 0)
        self.adversarial_temperature = _check_finite("adversarial_temperature", adversarial_temperature, 0)

    def __call__(self, positive: Tensor, negative: Tensor, keep: Tensor | None) -> Tensor:
        """Mean hinge, ()."""
        return self._mean(positive, negative, keep, None)

    def weighted(self, positive: Tensor, negative: Tensor, keep: Tensor | None, weight: Tensor) -> Tensor:
        """Mean hinge with weighted negatives, ()."""
        return self._mean(positive, negative, keep, weight)

    def _mean(self, positive: Tensor, negative: Tensor, keep: Tensor | None, weight: Tensor | None) -> Tensor:
        values = torch.relu(negative - positive.unsqueeze(1) + self.margin)
        return _average(values, negative, keep, weight, self.adversarial_temperature).mean()
