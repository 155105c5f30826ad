"""A batch in parts (floor 1): its gradients when its working set does not fit into memory.

In: a batch, and how many parts. Out: the gradients of the whole. Negatives and dropout masks are those of the
whole batch, so the result is the same but for the order of additions. A part is a group of chunks, or a share
of one chunk's edges, which then all meet that chunk's negatives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from marius_py.nn.batch import Batch
from marius_py.nn.decoders.base import Decoder
from marius_py.nn.gradients import Gradients, StepInput, add_penalty
from marius_py.nn.regularizers import Regularizer

_MESSAGES = ("out of memory", "not enough memory", "can't allocate memory", "alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that host or device memory is exhausted."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error).lower() for text in _MESSAGES)


@dataclass(frozen=True, slots=True)
class Part:
    """Edges `edges` of a batch: all of the chunks `chunks`, or the edges `inside` of the only one."""

    chunks: slice
    inside: slice
    edges: slice


def split(num_edges: int, num_chunks: int, parts: int) -> Iterator[Part]:
    """Cut a batch into about `parts` parts, at least one edge each.

    >>> [(part.edges.start, part.edges.stop) for part in split(12, 3, 2)]
    [(0, 4), (4, 12)]
    >>> [(part.edges.start, part.edges.stop) for part in split(12, 2, 4)]
    [(0, 3), (3, 6), (6, 9), (9, 12)]
    """
    size = num_edges // num_chunks
    groups = min(parts, num_chunks)
    shares = min(size, -(-parts // num_chunks))
    for group in range(groups):
        chunks = slice(num_chunks * group // groups, num_chunks * (group + 1) // groups)
        first = chunks.start * size
        if shares == 1:
            yield Part(chunks, slice(0, size), slice(first, chunks.stop * size))
            continue
        for share in range(shares):
            inside = slice(size * share // shares, size * (share + 1) // shares)
            yield Part(chunks, inside, slice(first + inside.start, first + inside.stop))


def accumulate(
    given: Callable[[], StepInput],
    gradients: Callable[[Callable[[], StepInput]], Gradients],
    decoder: Decoder,
    regularizers: Sequence[Regularizer],
    parts: int,
) -> Gradients:
    """Gradients of a batch, part by part.

    Args:
        given: makes the whole batch's input; called for each part, since masks are taken but once.
        gradients: of what a function makes, without regularization.
        decoder: whose rows they are.
        regularizers: applied once, to the whole.
        parts: how many.
    """
    whole = given()
    batch = whole.batch
    d_rows, d_relations = torch.zeros_like(batch.rows), torch.zeros_like(whole.relations)
    total = batch.rows.new_zeros(())
    num_chunks = next(iter(batch.negatives.values())).nodes.shape[0]
    for part in split(len(batch.head), num_chunks, parts):
        share = (part.edges.stop - part.edges.start) / len(batch.head)
        found = gradients(partial(_part_of, given, part))
        d_rows.add_(found.rows, alpha=share)
        d_relations.add_(found.relations, alpha=share)
        total += found.loss * share
    for regularizer in regularizers:
        add_penalty(regularizer, whole, decoder, d_rows, d_relations)
    return Gradients(d_rows, d_relations, total)


def _part_of(make: Callable[[], StepInput], part: Part) -> StepInput:
    given = make()
    batch, masks = given.batch, given.masks
    for side, corruption in batch.negatives.items():
        masks.sides[side].skip(part.edges.start, part.chunks.start * corruption.nodes.shape[1])
    negatives = {
        side: one.part(part.chunks, part.inside, len(batch.head) // len(one.nodes))
        for side, one in batch.negatives.items()
    }
    edges = part.edges
    return StepInput(
        Batch(
            rows=batch.rows,
            state=batch.state,
            head=batch.head[edges],
            relation=batch.relation[edges],
            tail=batch.tail[edges],
            negatives=negatives,
            seed=batch.seed,
        ),
        given.relations,
        {side: index[edges] for side, index in given.relation_index.items()},
        masks,
        given.reciprocal,
    )


def can_split(batch: Batch, parts: int) -> bool:
    """Whether a batch can be cut into `parts` parts: all sides have the same chunks, and edges enough."""
    chunks = {corruption.nodes.shape[0] for corruption in batch.negatives.values()}
    return len(chunks) == 1 and parts <= len(batch.head)
