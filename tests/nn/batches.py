"""Small random batches and models for the tests of the model floor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from marius_py.nn import (
    SGD,
    Batch,
    Corruption,
    Decoder,
    Importance,
    LinkPredictionModel,
    Loss,
    Regularizer,
    SparseOptimizer,
)
from marius_py.types import Side

SIDES: tuple[Side, ...] = ("head", "tail")
NUM_RELATIONS = 3


def random_batch(
    dim: int,
    *,
    nodes: int = 20,
    chunks: int = 3,
    chunk_edges: int = 4,
    count: int = 5,
    drop: bool = False,
    groups: int = 0,
    weighted: bool = False,
    scale: float = 1.0,
    sides: Sequence[Side] = SIDES,
    seed: int = 0,
) -> Batch:
    """A batch of chunks · chunk_edges edges over `nodes` rows; negatives of `groups` groups if above 0.

    `drop`: two fifths of the pairs of an edge and a negative do not count. `weighted`: the losses of its
    edges count differently.
    """
    rng = np.random.default_rng(seed)
    edges = chunks * chunk_edges
    negatives: dict[Side, Corruption] = {}
    for side in sides:
        kept = torch.from_numpy(rng.random((chunks, chunk_edges, count)) < 0.6) if drop else None
        importance = None
        if groups:
            group = torch.from_numpy(rng.integers(0, groups, (chunks, count)))
            weight = rng.uniform(0.3, 3.0, (chunks, chunk_edges, groups)).astype(np.float32)
            importance = Importance(group, torch.from_numpy(weight))
        drawn = torch.from_numpy(rng.integers(0, nodes, (chunks, count)))
        dropped = None if kept is None else torch.nonzero(~kept.view(-1)).view(-1)
        edge_weight = torch.from_numpy(rng.uniform(0.1, 2, edges).astype(np.float32)) if weighted else None
        negatives[side] = Corruption(drawn, importance, dropped, edge_weight)
    return Batch(
        rows=torch.from_numpy((scale * rng.standard_normal((nodes, dim))).astype(np.float32)),
        head=torch.from_numpy(rng.integers(0, nodes, edges)),
        relation=torch.from_numpy(rng.integers(0, NUM_RELATIONS, edges)),
        tail=torch.from_numpy(rng.integers(0, nodes, edges)),
        negatives=negatives,
        seed=7,
    )


def make_model(
    decoder: Decoder,
    loss: Loss,
    *,
    optimizer: SparseOptimizer | None = None,
    reciprocal: bool = False,
    dropout: bool = False,
    relation_dropout: float = 0.2,
    regularizers: Sequence[Regularizer] = (),
    clip_norm: float | None = None,
    fused: bool = True,
    compiled: bool = True,
) -> LinkPredictionModel:
    """A model on the cpu; its optimizer is SGD with rate 1 unless given, so that deltas are gradients."""
    return LinkPredictionModel(
        decoder,
        loss,
        SGD(1.0) if optimizer is None else optimizer,
        num_relations=NUM_RELATIONS,
        reciprocal=reciprocal,
        node_dropout=0.3 if dropout else 0.0,
        relation_dropout=relation_dropout if dropout else 0.0,
        regularizers=regularizers,
        clip_norm=clip_norm,
        fused=fused,
        compiled=compiled,
    )


@dataclass(frozen=True, slots=True)
class Update:
    """New minus old rows (U, D) and state (U, S), and the loss."""

    d_rows: Tensor
    d_state: Tensor
    loss: Tensor


def untrained(model: LinkPredictionModel, batch: Batch) -> Tensor:
    """Optimizer state (U, S) of the batch's rows before their first step."""
    state = np.empty((len(batch.rows), model.node_state_dim), np.float32)
    model.init_node_state(state)
    return torch.from_numpy(state).to(batch.rows.device)


def step(model: LinkPredictionModel, batch: Batch, state: Tensor | None = None) -> Update:
    """A batch's gradients, and the optimizer's step of its rows, from untrained state unless it is given."""
    found = model.gradients(batch)
    state = untrained(model, batch) if state is None else state
    d_rows, d_state = model.optimizer.delta(batch.rows, state, found.rows)
    return Update(d_rows * batch.rate, d_state, found.loss)


def gradients(model: LinkPredictionModel, batch: Batch) -> tuple[np.ndarray, np.ndarray, float]:
    """Node gradients, relation gradients and loss of one step of a model with SGD of rate 1."""
    before = model.state_arrays()["relations"]
    found = model.gradients(batch)
    return found.rows.numpy().copy(), before - model.state_arrays()["relations"], float(found.loss)
