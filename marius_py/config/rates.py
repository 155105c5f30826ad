"""Learning rates where none is set (floor 5): optimizer, decoder and batch in, a rate out.

Adagrad and Adam divide by what gradients were, so that their rate is the length of a step whatever the batch.
The steps of SGD are as long as the gradients, those of a mean over the batch: its rate goes with the batch.
"""

from __future__ import annotations

BATCH_SIZE = 1024
"""Edges of a batch by default, and those that the rates of `RATE_FOLLOWS_BATCH` are for."""

RATE = 0.1
RATES = {"adam": 0.01, "sgd": 10.0}
"""Registered optimizer → its rate; the others take `RATE`."""

RATE_FOLLOWS_BATCH = ("sgd",)

TWICE_THE_RATE = ("rotate",)
"""Registered decoders that take twice the rate, of optimizers that divide by what gradients were. At the
usual one the default RotatE had not come far enough after 20 epochs (test MRR at .1 and .2 of Adagrad: umls
.784 and .824, WN18RR .378 and .426, FB15k-237 .302 and .318; benchmarks/RESULTS.md has all)."""

IN_WORDS = (
    f"{RATE}, "
    + ", ".join(f"{rate:g} for {name}" for name, rate in RATES.items())
    + f" and training.batch_size={BATCH_SIZE}, in proportion to that; twice as much for "
    + ", ".join(TWICE_THE_RATE)
    + f", except with {', '.join(RATE_FOLLOWS_BATCH)}"
)
"""The rule, for help."""


def learning_rate(optimizer: str, decoder: str, batch_size: int) -> float:
    """The rate of an optimizer with a decoder, each a registered name or another, in batches of that size.

    >>> learning_rate("adagrad", "complex", 1024), learning_rate("adam", "rotate", 64)
    (0.1, 0.02)
    >>> learning_rate("sgd", "rotate", 512)
    5.0
    """
    own = RATES.get(optimizer, RATE)
    if optimizer in RATE_FOLLOWS_BATCH:
        return own * batch_size / BATCH_SIZE
    return 2 * own if decoder in TWICE_THE_RATE else own
