"""A batch in parts (floor 1): its gradients when its working set does not fit, or when threads share in it.

In: a batch, and how many parts. Out: the gradients of the whole. Negatives and dropout masks are those of the
whole batch, so the result is the same but for the order of additions. A part is a group of chunks, or a share
of one chunk's edges, which then all meet that chunk's negatives.
"""

from __future__ import annotations

import errno
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from marius_py.nn.batch import Batch
from marius_py.nn.decoders.base import Decoder
from marius_py.nn.gradients import Gradients, StepInput, add_penalty
from marius_py.nn.regularizers import Regularizer
from marius_py.team import Team

_JOINED_ROWS = 1024
"""Rows a block that is joined: they stay in cache from one part to the next."""

_MESSAGES = ("out of memory", "not enough memory", "can't allocate memory", "alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that host or device memory is exhausted."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, OSError):
        return error.errno == errno.ENOMEM
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
    team: Team,
) -> Gradients:
    """Gradients of a batch, from those of its parts.

    Args:
        given: makes the whole batch's input; called for each part, since masks are taken but once.
        gradients: of what a function makes, without regularization; in tensors that it may use again for the
            next of the calling thread.
        decoder: whose rows they are.
        regularizers: applied once, to the whole.
        parts: how many.
        team: threads that share in them.
    """
    whole = given()
    batch = whole.batch
    num_chunks = next(iter(batch.negatives.values())).nodes.shape[0]
    all_parts = list(split(len(batch.head), num_chunks, parts))
    members = min(team.size, len(all_parts))
    edges = len(batch.head)

    def sum_of(mine: Sequence[Part]) -> tuple[Gradients, float]:
        """Gradients of some parts, and what they are to be multiplied by."""
        if len(mine) == 1:
            return gradients(partial(_part_of, given, mine[0])), _share(mine[0], edges)
        with torch.no_grad():
            total = Gradients(
                torch.zeros_like(batch.rows), torch.zeros_like(whole.relations), batch.rows.new_zeros(())
            )
            for part in mine:
                _add(total, gradients(partial(_part_of, given, part)), _share(part, edges))
        return total, 1.0

    found = team.run([partial(sum_of, all_parts[first::members]) for first in range(members)], "compute")
    (total, share), others = found[0], found[1:]

    def join(rows: slice) -> None:
        for first in range(rows.start, rows.stop, _JOINED_ROWS):
            block = slice(first, min(first + _JOINED_ROWS, rows.stop))
            mine = total.rows[block]
            if share != 1:
                mine.mul_(share)
            for other, its_share in others:
                mine.add_(other.rows[block], alpha=its_share)

    team.share(len(batch.rows), join, "compute")
    relations, loss = total.relations.mul_(share), total.loss * share
    for other, its_share in others:
        relations.add_(other.relations, alpha=its_share)
        loss = loss + other.loss * its_share
    for regularizer in regularizers:
        add_penalty(regularizer, whole, decoder, total.rows, relations, partial(team.share, name="compute"))
    return Gradients(total.rows, relations, loss)


def _share(part: Part, edges: int) -> float:
    return float((part.edges.stop - part.edges.start) / edges)


def _add(total: Gradients, found: Gradients, share: float) -> None:
    total.rows.add_(found.rows, alpha=share)
    total.relations.add_(found.relations, alpha=share)
    total.loss.add_(found.loss, alpha=share)


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


def most_shares(batch: Batch) -> int:
    """Into how many parts threads do best to cut a batch, at most.

    Each part has gradients of all U rows, which are to be zeroed and added up. If a score costs s and a row
    there r, n threads take S s / n + U r n for S scores, which is least at n = √(S s / U r). A score of a
    dot product costs about what a row of the same dim does.
    """
    scores = len(batch.head) * sum(one.nodes.shape[1] for one in batch.negatives.values())
    return max(1, round(math.sqrt(scores / max(1, len(batch.rows)))))
