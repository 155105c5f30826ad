"""Losses against their definitions, with masks and extremes."""

from __future__ import annotations

import math

import pytest
import torch

from marius_py.errors import ConfigError
from marius_py.nn import LogisticLoss, Loss, MarginLoss, SoftmaxLoss
from marius_py.nn.registry import LOSSES

POSITIVE = torch.tensor([1.0, -2.0, 0.5])
NEGATIVE = torch.tensor([[0.0, 2.0], [1.0, -1.0], [3.0, 0.2]])
KEEP = torch.tensor([[True, False], [True, True], [False, False]])

CASES: list[Loss] = [
    SoftmaxLoss(),
    SoftmaxLoss(smoothing=0.3),
    SoftmaxLoss(negative_weight=3.0),
    LogisticLoss(),
    LogisticLoss(margin=1.5),
    LogisticLoss(margin=1.5, adversarial_temperature=0.7),
    MarginLoss(margin=2.0),
    MarginLoss(margin=2.0, adversarial_temperature=0.7),
]


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x))


def one_edge(loss: Loss, positive: float, negatives: list[float]) -> float:
    """The loss of an edge by its definition."""
    if isinstance(loss, SoftmaxLoss):
        scores = [positive, *(score + math.log(loss.negative_weight) for score in negatives)]
        logs = [score - math.log(sum(map(math.exp, scores))) for score in scores]
        return -(1 - loss.smoothing) * logs[0] - loss.smoothing * sum(logs) / len(logs)
    assert isinstance(loss, LogisticLoss | MarginLoss)
    weights = [math.exp(loss.adversarial_temperature * score) for score in negatives]
    weights = [weight / sum(weights) for weight in weights]
    if isinstance(loss, MarginLoss):
        hinges = [max(0.0, loss.margin - positive + score) for score in negatives]
        return sum(weight * hinge for weight, hinge in zip(weights, hinges, strict=True))
    parts = [
        -weight * log_sigmoid(-score - loss.margin) for weight, score in zip(weights, negatives, strict=True)
    ]
    return -log_sigmoid(positive + loss.margin) + sum(parts)


def test_every_registered_loss_is_tested() -> None:
    assert {type(loss) for loss in CASES} == set(LOSSES.values())


def test_defaults() -> None:
    assert (SoftmaxLoss().smoothing, SoftmaxLoss().negative_weight) == (0, 1)
    assert (LogisticLoss().margin, LogisticLoss().adversarial_temperature) == (0, 0)
    assert (MarginLoss().margin, MarginLoss().adversarial_temperature) == (1, 0)


@pytest.mark.parametrize("loss", CASES, ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("masked", [False, True])
def test_definition(loss: Loss, masked: bool) -> None:
    expected = 0.0
    for edge in range(3):
        scores = NEGATIVE[edge][KEEP[edge]] if masked else NEGATIVE[edge]
        expected += one_edge(loss, float(POSITIVE[edge]), scores.tolist()) / 3
    assert float(loss(POSITIVE, NEGATIVE, KEEP if masked else None)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("loss", CASES, ids=lambda loss: type(loss).__name__)
def test_gradients_are_finite_where_everything_is_masked_or_large(loss: Loss) -> None:
    positive = (POSITIVE * 200).requires_grad_()
    negative = (NEGATIVE * 200).requires_grad_()
    value = loss(positive, negative, KEEP)
    for gradient in torch.autograd.grad(value, (positive, negative)):
        assert torch.isfinite(gradient).all()
    assert torch.isfinite(value)


@pytest.mark.parametrize(
    "make",
    [
        lambda: SoftmaxLoss(smoothing=1.0),
        lambda: SoftmaxLoss(smoothing=-0.1),
        lambda: LogisticLoss(margin=math.nan),
        lambda: LogisticLoss(adversarial_temperature=-1.0),
        lambda: MarginLoss(margin=-1.0),
    ],
)
def test_refused_settings(make: object) -> None:
    with pytest.raises(ConfigError, match=r"loss\.(smoothing|margin|adversarial_temperature)"):
        make()  # type: ignore[operator]


@pytest.mark.parametrize(
    "loss",
    [case for case in CASES if not getattr(case, "smoothing", 0)],
    ids=lambda loss: type(loss).__name__,
)
def test_a_whole_weight_counts_like_so_many_negatives(loss: Loss) -> None:
    negative = torch.tensor([[0.0, 2.0, 0.7], [1.0, -1.0, 0.1], [3.0, 0.2, -0.4]])
    weight = torch.tensor([[2.0, 1.0, 3.0]]).expand(3, 3)
    keep = torch.tensor([[True, False, True], [True, True, True], [False, True, True]])
    several = torch.tensor([0, 0, 1, 2, 2, 2])
    for kept in (None, keep):
        expected = loss(POSITIVE, negative[:, several], None if kept is None else kept[:, several])
        torch.testing.assert_close(loss.weighted(POSITIVE, negative, kept, weight), expected)


@pytest.mark.parametrize("loss", [LogisticLoss(), MarginLoss()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("weight", [0.01, 0.5, 3.0])
def test_an_average_does_not_depend_on_how_large_the_weights_are(loss: Loss, weight: float) -> None:
    for kept in (None, KEEP):
        weights = torch.full_like(NEGATIVE, weight)
        expected = loss(POSITIVE, NEGATIVE, kept)
        torch.testing.assert_close(loss.weighted(POSITIVE, NEGATIVE, kept, weights), expected)


class Squared(Loss):
    def __call__(
        self, positive: torch.Tensor, negative: torch.Tensor, keep: torch.Tensor | None
    ) -> torch.Tensor:
        wrong = (negative + 1) ** 2
        if keep is not None:
            wrong = wrong * keep
        return ((positive - 1) ** 2 + wrong.mean(dim=1)).mean()


class Exponential(Loss):
    def __call__(
        self, positive: torch.Tensor, negative: torch.Tensor, keep: torch.Tensor | None
    ) -> torch.Tensor:
        powers = negative.exp() if keep is None else negative.exp() * keep
        return (powers.mean(1) / positive.exp()).mean()


@pytest.mark.parametrize("loss", [Squared(), Exponential()], ids=lambda loss: type(loss).__name__)
@pytest.mark.parametrize("keep", [None, KEEP], ids=["all", "some"])
def test_weights_count_in_the_gradients_of_a_loss_of_ones_own(loss: Loss, keep: torch.Tensor | None) -> None:
    weight = torch.tensor([[0.5, 1.5], [1.5, 0.5], [1.0, 1.0]])
    one, another, third, fourth = (
        each.clone().requires_grad_() for each in (POSITIVE, NEGATIVE, POSITIVE, NEGATIVE)
    )
    weighed, plain = loss.weighted(one, another, keep, weight), loss(third, fourth, keep)
    torch.testing.assert_close(weighed, plain)
    found = torch.autograd.grad(weighed, (one, another))
    expected = torch.autograd.grad(plain, (third, fourth))
    torch.testing.assert_close(found, (expected[0], expected[1] * weight))


@pytest.mark.parametrize("weight", [0.0, -1.0, math.inf, math.nan])
def test_negatives_stand_for_a_finite_number_of_candidates(weight: float) -> None:
    with pytest.raises(ConfigError, match="negative_weight"):
        SoftmaxLoss(negative_weight=weight)


@pytest.mark.parametrize("kind", [LogisticLoss, MarginLoss])
def test_a_temperature_that_scores_overflow_with_is_not_taken_for_negatives_that_do_not_count(
    kind: type[LogisticLoss | MarginLoss],
) -> None:
    positive, negative = torch.ones(2), torch.tensor([[3.0, 2.0], [4.0, 1.0]])
    assert torch.isnan(kind(adversarial_temperature=3e38)(positive, negative, None))
    keep = torch.tensor([[False, False], [True, True]])
    alone = kind(adversarial_temperature=1.0)(positive[:1], negative[:1], keep[:1])
    of_positive = (
        torch.nn.functional.softplus(torch.tensor(-1.0)) if kind is LogisticLoss else torch.tensor(0.0)
    )
    torch.testing.assert_close(alone, of_positive)
