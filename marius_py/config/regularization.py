"""What keeps a model from learning its edges by heart (floor 5): settings in, dropout and penalties out.

Products memorize a graph within a few epochs where nothing holds them back; distances do not. Which means is
the default was chosen by the test MRR of the default ComplEx after 20 epochs (benchmarks/RESULTS.md has all):

| graph | train edges a node | dropout .3, .2 | N3 .1 | N3 .2 |
|---|---|---|---|---|
| FB15k-237 | 18.7 | .324 | .324 | .290 (initial rows of .001) |
| umls | 39 | .899 | .887 | |
| WN18RR | 2.1 | .408 | .433 | .432 |
| 30 % of the edges at five hubs | 5 | | .024 | .071 |
| no relations | 7 | | .117 | .157 |
| 30 relations between 100 groups | 18 | | .066 | .006 |

So N3 is .1 where nodes have 18 train edges or more (.05 is worse there: FB15k-237 .311, umls .875) and
twice that at 9 or fewer; in between it goes as one over the edges a node. A run of few batches does not
come to know its edges by heart and only learns more slowly (examples/countries.tsv, 40 batches: .634 by .1,
.458 by .2), so up to 200 batches it is .1, and the whole of what is more counts from 800 on. In between it
goes with the logarithm of the batches: a graph of users and items has .148 by .2, .137 by .1 and .175 by .155
in 424 batches.

Nor does a run of few epochs, however many batches they have: the best weight of FB15k-237 is .02 after one
epoch, .05 after three and .1 from eight on; on hackage (15.8 edges a node) one epoch of DistMult has .137 by
.114 and .262 by .029. So the weight goes with the root of the epochs, up to 20 of them, or 5 where nodes have
so few edges that they count twice.

Relation rows have less of it in graphs of many nodes. At small rows N3 and what an edge teaches are of the
same order, so that a coordinate grows from where it began only if its signal is above a threshold. Let a
share f of a relation's edges have ends with a coordinate in which node rows are a and the relation's is b:
these edges gain f a² b, and the penalty is w (2 f a³ + b³), as the relation's row is penalized at all of its
edges. The gain exceeds that only for w below about f^(1/3) / 3, or, if the relation's own weight is w f,
below 1/3 whatever f is. f is small where a graph is large and its parts are many; how small is not known
beforehand, and the number of nodes stands for it (test MRR; benchmarks/RESULTS.md has all):

| graph | nodes | as node rows | by about (15,000 / nodes)^1.5 of it |
|---|---|---|---|
| FB15k-237, 8 epochs | 14,541 | .318 | (by .32: .310) |
| WN18RR, 20 epochs | 40,943 | .432 | .440 |
| a quarter of hackage, 12 epochs | 104,475 | .440 | .475 |
| users and items, 3 epochs | 259,819 | .001 | .032 |
| hackage, 1 epoch | 396,636 | .349 | .408 |
| planted, 8 epochs | 60,000 | .424 | .381 |
| planted, 20 epochs | 60,000 | .377 | .416 |

The planted one's relations are rotations of a single circle, in which every coordinate tells of all edges.

N3 belongs to the softmax loss: with the logistic one, whose gradients are smaller, ComplEx has .175 by N3 of
.1 on FB15k-237 after ten epochs, .264 by dropout, .256 by neither. RESCAL gains by the same N3 (umls .686
without, .835 with .1; in blocks of 4 .748 and .898), and K-vs-all, which counts the edges of questions with
many answers less, wants half of it (umls .810 with .1, .865 with .05; a graph of 60 groups .032 and .111).

The dot product, for graphs without relations, wants ten times as much, whatever the edges a node. Test MRR of
dim 128 after 20 epochs (benchmarks/RESULTS.md has all):

| graph | train edges a node | none | .3 | 1 | 3 |
|---|---|---|---|---|---|
| communities, 8 neighbours inside and 8 outside | 7 | .0046 | .0055 | .0077 | .0117 |
| communities, citations | 6 | .0154 | .0222 | .0416 | .0306 |
| FB15k-237, its relations left out | 17 | .0150 | | .0506 | (.031) |
| points in a plane, near ones joined | 8 | .3927 | .4182 | .4142 | .3969 |
| the same | 4 | .3652 | .4112 | .4243 | .4102 |
| WN18RR, its relations left out | 2 | .1779 | .1755 | .1648 | (.133) |

After five epochs the best weight is no smaller; after one hackage has .0837 by none, .0721 by .22.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from marius_py.config.schema import TrainConfig

N3 = {"complex": 0.1, "distmult": 0.1, "rescal": 0.1, "dot": 1.0}
"""Of registered decoders with the softmax loss."""
PER_QUESTION = 0.5
"""What it is multiplied by where questions count alike (`negatives.per_question`)."""
WITHOUT_RELATIONS = ("dot",)
"""Decoders whose N3 is the same for any number of edges a node, and for which relations have no rows."""
DROPOUT = {"complex": (0.3, 0.2), "distmult": (0.3, 0.2)}
"""Of nodes and relations, with another loss than the softmax."""
FEW_EDGES = 18
"""Train edges a node below which N3 counts more, up to twice as much at half as many."""
FEW_BATCHES, MANY_BATCHES = 200, 800
"""Batches of a run up to which it does not, and from which it does in full."""
MANY_EPOCHS = 20
"""Epochs from which N3 counts in full where nodes have many edges."""
MANY_NODES, FALLS_BY = 15_000, 1.5
"""Nodes above which it counts less for relation rows, and by which power of their number."""


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
    softmax = config.loss.target == "softmax"
    usual = (0.0, 0.0) if softmax else DROPOUT.get(model.decoder.target, (0.0, 0.0))
    dropout = tuple(
        default if given is None else given
        for given, default in zip((model.node_dropout, model.relation_dropout), usual, strict=True)
    )
    l2 = (penalties.l2, penalties.l2 if penalties.l2_relation is None else penalties.l2_relation)
    n3 = penalties.n3
    if n3 is None:
        suits = softmax and not any((*dropout, *l2))
        n3 = N3.get(model.decoder.target, 0.0) if suits else 0.0
        n3 *= PER_QUESTION if config.negatives.per_question else 1.0
    return Regularization(
        node_dropout=dropout[0],
        relation_dropout=dropout[1],
        n3=(n3, n3 if penalties.n3_relation is None else penalties.n3_relation),
        l2=l2,
    )


def with_penalties(
    config: TrainConfig, num_nodes: int, num_edges: int, begun: Mapping[str, Any] | None
) -> TrainConfig:
    """`config` with numbers for N3: what is set, else what suits decoder, loss and graph, which is noted.

    Args:
        config: settings as given.
        num_nodes: N.
        num_edges: train edges.
        begun: settings of the run that goes on, which keeps numbers above 0 unless it is to have another
            number of epochs, or dropout, l2 or the loss stand in its place; null there: begun when that did
            not depend on the graph.
    """
    penalties = config.training.regularizer
    if penalties.n3 is not None:
        return config
    n3 = regularization_of(config).n3[0]
    epochs = config.training.epochs
    batches = epochs * num_edges / config.training.batch_size
    before = {} if begun is None else begun.get("training", {})
    saved = {} if begun is None else before.get("regularizer", {})
    kept = 0.0 if begun is None else saved.get("n3")
    of_relations = penalties.n3_relation
    if kept == 0 or (kept is not None and before.get("epochs", epochs) != epochs):
        has_relations = config.model.decoder.target not in WITHOUT_RELATIONS
        more = min(max(FEW_EDGES * num_nodes / max(num_edges, 1), 1.0), 2.0) if has_relations else 1.0
        n3 *= min(1.0, more * math.sqrt(epochs / MANY_EPOCHS))
        n3 = _rounded(n3 * (1 + (more - 1) * _share(batches)))
        if n3 and of_relations is None and has_relations and num_nodes > MANY_NODES:
            of_relations = _rounded(n3 * (MANY_NODES / num_nodes) ** FALLS_BY)
    elif n3 and kept is not None:
        n3 = kept
        if of_relations is None and saved.get("n3_relation_automatic"):
            of_relations = saved.get("n3_relation")
    penalties = replace(
        penalties,
        n3=n3,
        n3_relation=of_relations,
        n3_automatic=True,
        n3_relation_automatic=of_relations != penalties.n3_relation,
    )
    return replace(config, training=replace(config.training, regularizer=penalties))


def _rounded(weight: float) -> float:
    """To three digits, as config.yaml is to be read by people."""
    return float(f"{weight:.3g}")


def _share(batches: float) -> float:
    """How much of a larger weight suits a run of so many batches, 0 to 1, by their logarithm.

    >>> [_share(batches) for batches in (0, 200, 400, 800, 10_000)]
    [0.0, 0.0, 0.5, 1.0, 1.0]
    """
    if batches <= FEW_BATCHES:
        return 0.0
    return min(1.0, math.log(batches / FEW_BATCHES) / math.log(MANY_BATCHES / FEW_BATCHES))
