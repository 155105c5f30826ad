"""Queries against shared candidates without ever writing a score to memory (floor 1, Triton).

Two kernels, after FlashAttention (Dao et al., 2022) with the candidates as both keys and values. The
first goes over the candidates of a block of queries once and keeps a running maximum, the sum of
exponentials and the sum of weighted candidates, which at the end are the loss and the gradient of the
query. The second goes over the queries of a block of candidates, makes the scores again and sums the
weighted queries: the gradient of the candidates. Four matrix products in all, and memory for rows only.

In: tensors on a CUDA device, or on the CPU under Triton's interpreter (TRITON_INTERPRET=1). Importing this
module needs Triton; `marius_py.nn.cuda_kernels` is what imports it, and only then.
"""

# No postponed annotations: Triton reads `tl.constexpr` from them.

from dataclasses import dataclass, replace
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16")
"""How products are computed: float32, TensorFloat-32 once or in three parts, bfloat16; sums are float32."""

MAX_DIM = 256
"""Widest rows: a block of them has to fit in the registers and the shared memory of a multiprocessor."""


@triton.jit
def _product(left, right, PRECISION: tl.constexpr):
    if PRECISION == "bf16":
        return tl.dot(left.to(tl.bfloat16), right.to(tl.bfloat16))
    elif PRECISION == "rounded":  # the same numbers where the interpreter has no product of bfloat16
        return tl.dot(left.to(tl.bfloat16).to(tl.float32), right.to(tl.bfloat16).to(tl.float32))
    else:
        return tl.dot(left, right, input_precision=PRECISION)


@triton.jit
def _kept(keep, edge, node, num_nodes, inside, HAS_KEEP: tl.constexpr):
    """1 where a score counts, 0 elsewhere; `edge` and `node` broadcast to the shape of the scores."""
    kept = tl.where(inside, 1.0, 0.0)
    if HAS_KEEP:
        kept *= tl.load(keep + edge * num_nodes + node, mask=inside, other=0).to(tl.float32)
    return kept


@triton.jit
def _weights_of(weight, edge, is_edge, num_groups, BLOCK_GROUPS: tl.constexpr):
    """(edges, groups): what a candidate of each group counts for each edge."""
    member = tl.arange(0, BLOCK_GROUPS)
    inside = is_edge[:, None] & (member < num_groups)[None, :]
    return tl.load(weight + edge[:, None] * num_groups + member[None, :], mask=inside, other=0.0)


@triton.jit
def _members(group, node, is_node, BLOCK_GROUPS: tl.constexpr):
    """(groups, nodes): 1 where a candidate belongs to a group, so that a product looks its weight up."""
    member = tl.load(group + node, mask=is_node, other=-1).to(tl.int32)
    return tl.where(tl.arange(0, BLOCK_GROUPS)[:, None] == member[None, :], 1.0, 0.0)


@triton.jit
def _forward_kernel(
    queries,
    candidates,
    positives,
    keep,
    group,
    weight,
    d_queries,
    losses,
    slopes,
    stats,
    num_edges,
    num_nodes,
    num_groups,
    shift,
    scale,
    DIM: tl.constexpr,
    HAS_KEEP: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    SOFTMAX: tl.constexpr,
    PRECISION: tl.constexpr,
    LOOK_UP: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    BLOCK_EDGES: tl.constexpr,
    BLOCK_NODES: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    chunk = tl.program_id(1).to(tl.int64)
    edge = tl.program_id(0) * BLOCK_EDGES + tl.arange(0, BLOCK_EDGES)
    column = tl.arange(0, BLOCK_DIM)
    is_edge = edge < num_edges
    row = chunk * num_edges + edge
    inside = is_edge[:, None] & (column < DIM)[None, :]
    place = row[:, None] * DIM + column[None, :]
    query = tl.load(queries + place, mask=inside, other=0.0)
    positive = tl.load(positives + row, mask=is_edge, other=0.0)
    candidates += chunk * num_nodes * DIM
    keep += chunk * num_edges * num_nodes
    group += chunk * num_nodes
    weight += chunk * num_edges * num_groups

    if HAS_WEIGHT:
        of_edges = _weights_of(weight, edge, is_edge, num_groups, BLOCK_GROUPS)

    highest = positive  # of the scores so far, the true edge's included
    total = tl.zeros([BLOCK_EDGES], tl.float32)  # Σ count · e^(score − highest), or of softplus
    counted = tl.zeros([BLOCK_EDGES], tl.float32)
    pulled = tl.zeros([BLOCK_EDGES, BLOCK_DIM], tl.float32)  # Σ weight · candidate
    for first in range(0, num_nodes, BLOCK_NODES):
        node = first + tl.arange(0, BLOCK_NODES)
        is_node = node < num_nodes
        values = tl.load(
            candidates + node[:, None] * DIM + column[None, :],
            mask=is_node[:, None] & (column < DIM)[None, :],
            other=0.0,
        )
        score = _product(query, tl.trans(values), PRECISION)
        is_pair = is_edge[:, None] & is_node[None, :]
        counts = _kept(keep, edge[:, None], node[None, :], num_nodes, is_pair, HAS_KEEP)
        if HAS_WEIGHT:
            counts *= _product(of_edges, _members(group, node, is_node, BLOCK_GROUPS), LOOK_UP)
        if SOFTMAX:
            score = tl.where(counts > 0, score + shift, float("-inf"))
            higher = tl.maximum(highest, tl.max(score, 1))
            shrink = tl.exp(highest - higher)
            weights = counts * tl.exp(score - higher[:, None])
            total = total * shrink + tl.sum(weights, 1)
            pulled = pulled * shrink[:, None]
            highest = higher
        else:
            shifted = score + shift
            small = tl.exp(-tl.abs(shifted))
            total += tl.sum(counts * (tl.maximum(shifted, 0.0) + tl.log(1.0 + small)), 1)
            counted += tl.sum(counts, 1)
            weights = counts * tl.where(shifted >= 0, 1.0, small) / (1.0 + small)
        pulled += _product(weights, values, PRECISION)

    if SOFTMAX:
        denominator = tl.exp(positive - highest) + total
        loss = highest - positive + tl.log(denominator)
        slope = -total / denominator
        factor = scale / denominator
        stat = highest + tl.log(denominator)
    else:
        stat = 1.0 / tl.maximum(counted, 1.0)
        shifted = positive + shift
        small = tl.exp(-tl.abs(shifted))
        loss = tl.maximum(-shifted, 0.0) + tl.log(1.0 + small) + total * stat
        slope = -tl.where(shifted >= 0, small, 1.0) / (1.0 + small)
        factor = scale * stat
    tl.store(losses + row, loss, mask=is_edge)
    tl.store(slopes + row, slope * scale, mask=is_edge)
    tl.store(stats + row, stat, mask=is_edge)
    tl.store(d_queries + place, pulled * factor[:, None], mask=inside)


@triton.jit
def _backward_kernel(
    queries,
    candidates,
    keep,
    group,
    weight,
    stats,
    d_candidates,
    num_edges,
    num_nodes,
    num_groups,
    edges_a_part,
    shift,
    scale,
    DIM: tl.constexpr,
    HAS_KEEP: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    SOFTMAX: tl.constexpr,
    PRECISION: tl.constexpr,
    LOOK_UP: tl.constexpr,
    BLOCK_GROUPS: tl.constexpr,
    ADD: tl.constexpr,
    BLOCK_EDGES: tl.constexpr,
    BLOCK_NODES: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
):
    chunk = tl.program_id(1).to(tl.int64)
    node = tl.program_id(0) * BLOCK_NODES + tl.arange(0, BLOCK_NODES)
    column = tl.arange(0, BLOCK_DIM)
    is_node = node < num_nodes
    inside = is_node[:, None] & (column < DIM)[None, :]
    place = (chunk * num_nodes + node)[:, None] * DIM + column[None, :]
    values = tl.load(candidates + place, mask=inside, other=0.0)
    queries += chunk * num_edges * DIM
    stats += chunk * num_edges
    keep += chunk * num_edges * num_nodes
    group += chunk * num_nodes
    weight += chunk * num_edges * num_groups

    if HAS_WEIGHT:
        of_nodes = tl.trans(_members(group, node, is_node, BLOCK_GROUPS))

    pulled = tl.zeros([BLOCK_NODES, BLOCK_DIM], tl.float32)
    begin = tl.program_id(2) * edges_a_part
    end = tl.minimum(begin + edges_a_part, num_edges)
    for first in range(begin, end, BLOCK_EDGES):
        edge = first + tl.arange(0, BLOCK_EDGES)
        is_edge = edge < end
        query = tl.load(
            queries + edge[:, None].to(tl.int64) * DIM + column[None, :],
            mask=is_edge[:, None] & (column < DIM)[None, :],
            other=0.0,
        )
        stat = tl.load(stats + edge, mask=is_edge, other=0.0)
        score = _product(values, tl.trans(query), PRECISION)  # (nodes, edges): its weights need no transpose
        is_pair = is_node[:, None] & is_edge[None, :]
        counts = _kept(keep, edge[None, :], node[:, None], num_nodes, is_pair, HAS_KEEP)
        if HAS_WEIGHT:
            of_edges = _weights_of(weight, edge, is_edge, num_groups, BLOCK_GROUPS)
            counts *= _product(of_nodes, tl.trans(of_edges), LOOK_UP)
        if SOFTMAX:
            # A score that does not count may lie above the sum of those that do: never its exponential.
            weights = counts * tl.exp(tl.where(counts > 0, score + shift - stat[None, :], float("-inf")))
        else:
            shifted = score + shift
            small = tl.exp(-tl.abs(shifted))
            weights = counts * (tl.where(shifted >= 0, 1.0, small) / (1.0 + small)) * stat[None, :]
        pulled += _product(weights, query, PRECISION)
    if ADD:
        tl.atomic_add(d_candidates + place, pulled * scale, mask=inside)
    else:
        tl.store(d_candidates + place, pulled * scale, mask=inside)


@dataclass(frozen=True, slots=True)
class Blocks:
    """Shape of the kernels' blocks; the best depends on the device and the width of rows.

    Attributes:
        own: rows whose sums a block keeps: queries forward, candidates backward; a power of 2, at least 16.
        other: rows that a block goes over at a time, likewise.
        warps: warps a block. stages: blocks that are loaded ahead.
        programs: blocks that the backward kernel is cut into at least, by sharing out the edges of a chunk.
    """

    own: int = 64
    other: int = 32
    warps: int = 4
    stages: int = 2
    programs: int = 512


def default_blocks(dim: int) -> Blocks:
    """Blocks that fit the registers and the shared memory of a Hopper multiprocessor.

    >>> default_blocks(100)
    Blocks(own=64, other=32, warps=4, stages=2, programs=512)
    """
    return Blocks() if dim <= 128 else Blocks(warps=8, stages=1)


def smaller(blocks: Blocks) -> Blocks | None:
    """The next smaller blocks, for a device whose shared memory these do not fit; None: there are none.

    >>> smaller(Blocks(own=16, other=16, stages=1)) is None
    True
    """
    if blocks.stages > 1:
        return replace(blocks, stages=1)
    if max(blocks.own, blocks.other) > 16:
        return replace(blocks, own=max(16, blocks.own // 2), other=max(16, blocks.other // 2))
    return None


def contrast(
    queries: Tensor,
    candidates: Tensor,
    positive: Tensor,
    *,
    keep: Tensor | None,
    group: Tensor | None,
    weight: Tensor | None,
    softmax: bool,
    shift: float,
    scale: float,
    precision: str,
    blocks: Blocks | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `marius_py.nn.cuda_kernels.torch_contrast`, of the same arguments, without scores in memory.

    Args:
        queries, candidates, positive, keep, group, weight, softmax, shift, scale: as there; contiguous, D at
            most `MAX_DIM`, P · K below 2³¹.
        precision: one of `PRECISIONS`.
        blocks: shape of the blocks; None: `default_blocks`.

    Raises:
        triton.runtime.errors.OutOfResources: the blocks do not fit the device.
    """
    num_chunks, num_edges, dim = queries.shape
    num_nodes = candidates.shape[1]
    blocks = blocks or default_blocks(dim)
    losses, slopes, stats = (torch.empty_like(positive) for _ in range(3))
    d_queries = torch.empty_like(queries)
    num_groups = 0 if weight is None else weight.shape[2]
    common: dict[str, Any] = {
        "shift": float(shift),
        "scale": float(scale),
        "DIM": dim,
        "HAS_KEEP": keep is not None,
        "HAS_WEIGHT": weight is not None,
        "SOFTMAX": softmax,
        "PRECISION": "rounded" if precision == "bf16" and not queries.is_cuda else precision,
        "LOOK_UP": "tf32" if precision == "bf16" else precision,
        "BLOCK_GROUPS": max(16, triton.next_power_of_2(num_groups)),
        "BLOCK_DIM": max(16, triton.next_power_of_2(dim)),
        "num_warps": blocks.warps,
        "num_stages": blocks.stages,
    }
    unread = positive  # stands for a tensor that there is none of
    counting = (
        unread if keep is None else keep.view(torch.int8),
        unread if group is None else group,
        unread if weight is None else weight,
    )
    sizes = (num_edges, num_nodes, num_groups)
    _forward_kernel[(triton.cdiv(num_edges, blocks.own), num_chunks)](
        queries,
        candidates,
        positive,
        *counting,
        d_queries,
        losses,
        slopes,
        stats,
        *sizes,
        BLOCK_EDGES=blocks.own,
        BLOCK_NODES=blocks.other,
        **common,
    )
    node_blocks = triton.cdiv(num_nodes, blocks.own)
    edge_blocks = triton.cdiv(num_edges, blocks.other)
    parts = max(1, min(edge_blocks, -(-blocks.programs // (node_blocks * num_chunks))))
    edges_a_part = triton.cdiv(edge_blocks, parts) * blocks.other
    parts = triton.cdiv(num_edges, edges_a_part)
    d_candidates = torch.zeros_like(candidates) if parts > 1 else torch.empty_like(candidates)
    _backward_kernel[(node_blocks, num_chunks, parts)](
        queries,
        candidates,
        *counting,
        stats,
        d_candidates,
        *sizes,
        edges_a_part,
        ADD=parts > 1,
        BLOCK_EDGES=blocks.other,
        BLOCK_NODES=blocks.own,
        **common,
    )
    return losses, slopes, d_queries, d_candidates
