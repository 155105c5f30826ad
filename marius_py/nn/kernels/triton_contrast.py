"""Queries against shared candidates without ever writing a score to memory (floor 1, Triton).

Two kernels, after FlashAttention (Dao et al., 2022) with the candidates as both keys and values. The
first goes over the candidates of a block of queries once and keeps a running maximum, the sum of
exponentials and the sum of weighted candidates, which at the end are the loss and the gradient of the
query. The second goes over the queries of a block of candidates, makes the scores again and sums the
weighted queries: the gradient of the candidates. Four matrix products in all, and memory for rows only, which
`triton_operands` lays out for them.

In: tensors on a CUDA device, or on the CPU under Triton's interpreter (TRITON_INTERPRET=1). Importing this
module needs Triton; `marius_py.nn.cuda_kernels` is what imports it, and only then.
"""

# No postponed annotations: Triton reads `tl.constexpr` from them.

from collections.abc import Callable
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.runtime.errors import OutOfResources, PTXASError

from marius_py.nn.kernels.triton_blocks import Blocks, Kernel, TooLargeError, default_blocks
from marius_py.nn.kernels.triton_known import leave_out_known
from marius_py.nn.kernels.triton_mask import Way, is_set, leave_out
from marius_py.nn.kernels.triton_operands import operand
from marius_py.nn.known_answers import KnownAnswers

PRECISIONS = ("ieee", "tf32", "tf32x3", "bf16")
"""How products are computed: float32, TensorFloat-32 once or in three parts, bfloat16; sums are float32."""

TURNED = ("tf32", "tf32x3")
"""Those whose second products read rows that lie turned round in memory."""

_LOG2_E = tl.constexpr(1.4426950408889634)

MOST_SPILLED = 512
"""Registers of a thread that may lie in memory instead: a few that do cost little, but where the assembler
gives up, as it does for tf32x3 on an A100, thousands do."""

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
def _are_left_out(flags, block, HAS_DROPPED: tl.constexpr):
    """Whether any of a block's candidates does not count; asked early, since the answer takes its time."""
    if HAS_DROPPED:
        return tl.load(flags + block) != 0
    else:
        return False


@triton.jit
def _of_those_that_count(
    values,
    OTHERWISE: tl.constexpr,
    words,
    own,
    other,
    is_own,
    num_words,
    are_left_out,
    OTHER: tl.constexpr,
    HAS_DROPPED: tl.constexpr,
):
    """Values of pairs (own, other); `OTHERWISE` where the candidate does not count for the edge."""
    if HAS_DROPPED:  # noqa: SIM102 - known when it is compiled, the other when it runs
        if are_left_out:
            values = tl.where(is_set(words, own, other, is_own, num_words, OTHER), values, OTHERWISE)
    return values


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
    candidates_turned,
    positives,
    words,
    flags,
    group,
    weight,
    d_queries,
    losses,
    slopes,
    stats,
    num_edges,
    num_nodes,
    num_groups,
    padded_edges,
    padded_nodes,
    shift,
    scale,
    DIM: tl.constexpr,
    HAS_DROPPED: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    SOFTMAX: tl.constexpr,
    TURNED: tl.constexpr,
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
    query = tl.load(queries + (chunk * padded_edges + edge)[:, None] * BLOCK_DIM + column[None, :])
    positive = tl.load(positives + row, mask=is_edge, other=0.0)
    candidates += chunk * padded_nodes * BLOCK_DIM
    candidates_turned += chunk * padded_nodes * BLOCK_DIM
    num_words = tl.cdiv(num_nodes, 32)
    words += chunk * num_edges * num_words
    node_blocks = tl.cdiv(num_nodes, BLOCK_NODES)
    flags += (chunk * tl.num_programs(0) + tl.program_id(0)) * node_blocks
    group += chunk * num_nodes
    weight += chunk * num_edges * num_groups

    if HAS_WEIGHT:
        of_edges = _weights_of(weight, edge, is_edge, num_groups, BLOCK_GROUPS)

    true_power = positive * _LOG2_E
    highest = true_power  # of the scores so far as powers of 2, the true edge's included
    total = tl.zeros([BLOCK_EDGES], tl.float32)  # Σ count · 2^(score − highest), or of softplus
    counted = tl.zeros([BLOCK_EDGES], tl.float32)
    pulled = tl.zeros([BLOCK_EDGES, BLOCK_DIM], tl.float32)  # Σ weight · candidate
    for first in range(0, num_nodes, BLOCK_NODES):
        node = first + tl.arange(0, BLOCK_NODES)
        is_node = node < num_nodes
        is_pair = is_edge[:, None] & is_node[None, :]
        are_left_out = _are_left_out(flags, first // BLOCK_NODES, HAS_DROPPED)
        values = tl.load(candidates + node[:, None] * BLOCK_DIM + column[None, :])
        score = _product(query, tl.trans(values), PRECISION)
        if HAS_WEIGHT or not SOFTMAX:
            counts = tl.where(is_pair, 1.0, 0.0)
            counts = _of_those_that_count(
                counts, 0.0, words, edge, node, is_edge, num_words, are_left_out, BLOCK_NODES, HAS_DROPPED
            )
            if HAS_WEIGHT:
                counts *= _product(of_edges, _members(group, node, is_node, BLOCK_GROUPS), LOOK_UP)
        if SOFTMAX:
            score = (score + shift) * _LOG2_E
            if HAS_WEIGHT:
                score = tl.where(counts > 0, score, float("-inf"))
            else:
                score = tl.where(is_node[None, :], score, float("-inf"))
                score = _of_those_that_count(
                    score,
                    float("-inf"),
                    words,
                    edge,
                    node,
                    is_edge,
                    num_words,
                    are_left_out,
                    BLOCK_NODES,
                    HAS_DROPPED,
                )
            higher = tl.maximum(highest, tl.max(score, 1))
            shrink = tl.exp2(highest - higher)
            weights = tl.exp2(score - higher[:, None])
            if HAS_WEIGHT:
                weights *= counts
            total = total * shrink + tl.sum(weights, 1)
            pulled = pulled * shrink[:, None]
            highest = higher
        else:
            shifted = score + shift
            small = tl.exp(-tl.abs(shifted))
            total += tl.sum(counts * (tl.maximum(shifted, 0.0) + tl.log(1.0 + small)), 1)
            counted += tl.sum(counts, 1)
            weights = counts * tl.where(shifted >= 0, 1.0, small) / (1.0 + small)
        if TURNED:
            turned = tl.load(candidates_turned + column[:, None] * padded_nodes + node[None, :])
            pulled += _product(weights, tl.trans(turned), PRECISION)
        else:
            pulled += _product(weights, values, PRECISION)

    if SOFTMAX:
        denominator = tl.exp2(true_power - highest) + total
        stat = highest + tl.log2(denominator)
        # Not from `stat`, in which a large score takes the digits of a small loss; nor by subtracting equals,
        # which a fused multiplication would leave a rest of.
        above = tl.where(highest == true_power, 0.0, highest / _LOG2_E - positive)
        loss = above + tl.log2(denominator) / _LOG2_E
        slope = -total / denominator
        factor = scale / denominator
    else:
        stat = 1.0 / tl.where(counted > 0, counted, 1.0)
        shifted = positive + shift
        small = tl.exp(-tl.abs(shifted))
        loss = tl.maximum(-shifted, 0.0) + tl.log(1.0 + small) + total * stat
        slope = -tl.where(shifted >= 0, small, 1.0) / (1.0 + small)
        factor = scale * stat
    tl.store(losses + row, loss, mask=is_edge)
    tl.store(slopes + row, slope * scale, mask=is_edge)
    tl.store(stats + row, stat, mask=is_edge)
    inside = is_edge[:, None] & (column < DIM)[None, :]
    tl.store(d_queries + row[:, None] * DIM + column[None, :], pulled * factor[:, None], mask=inside)


@triton.jit
def _backward_kernel(
    queries,
    queries_turned,
    candidates,
    words,
    flags,
    group,
    weight,
    stats,
    d_candidates,
    num_edges,
    num_nodes,
    num_groups,
    padded_edges,
    padded_nodes,
    edges_a_part,
    shift,
    scale,
    DIM: tl.constexpr,
    HAS_DROPPED: tl.constexpr,
    HAS_WEIGHT: tl.constexpr,
    SOFTMAX: tl.constexpr,
    TURNED: tl.constexpr,
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
    values = tl.load(candidates + (chunk * padded_nodes + node)[:, None] * BLOCK_DIM + column[None, :])
    queries += chunk * padded_edges * BLOCK_DIM
    queries_turned += chunk * padded_edges * BLOCK_DIM
    stats += chunk * num_edges
    num_words = tl.cdiv(num_edges, 32)
    words += chunk * num_nodes * num_words
    flags += (chunk * tl.num_programs(0) + tl.program_id(0)) * tl.cdiv(num_edges, BLOCK_EDGES)
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
        is_pair = is_node[:, None] & is_edge[None, :]
        are_left_out = _are_left_out(flags, first // BLOCK_EDGES, HAS_DROPPED)
        query = tl.load(queries + edge[:, None] * BLOCK_DIM + column[None, :])
        score = _product(values, tl.trans(query), PRECISION)  # (nodes, edges): its weights need no transpose
        if HAS_WEIGHT or not SOFTMAX:
            counts = tl.where(is_pair, 1.0, 0.0)
            counts = _of_those_that_count(
                counts, 0.0, words, node, edge, is_node, num_words, are_left_out, BLOCK_EDGES, HAS_DROPPED
            )
            if HAS_WEIGHT:
                of_edges = _weights_of(weight, edge, is_edge, num_groups, BLOCK_GROUPS)
                counts *= _product(of_nodes, tl.trans(of_edges), LOOK_UP)
        if SOFTMAX:
            stat = tl.load(stats + edge, mask=is_edge, other=float("inf"))  # no edge: a weight of 0
            power = (score + shift) * _LOG2_E - stat[None, :]
            # A score that does not count may lie above the sum of those that do: never its exponential.
            if HAS_WEIGHT:
                weights = counts * tl.exp2(tl.where(counts > 0, power, float("-inf")))
            else:
                power = _of_those_that_count(
                    power,
                    float("-inf"),
                    words,
                    node,
                    edge,
                    is_node,
                    num_words,
                    are_left_out,
                    BLOCK_EDGES,
                    HAS_DROPPED,
                )
                weights = tl.exp2(power)
        else:
            stat = tl.load(stats + edge, mask=is_edge, other=0.0)
            shifted = score + shift
            small = tl.exp(-tl.abs(shifted))
            weights = counts * (tl.where(shifted >= 0, 1.0, small) / (1.0 + small)) * stat[None, :]
        if TURNED:
            turned = tl.load(queries_turned + column[:, None].to(tl.int64) * padded_edges + edge[None, :])
            pulled += _product(weights, tl.trans(turned), PRECISION)
        else:
            pulled += _product(weights, query, PRECISION)
    inside = is_node[:, None] & (column < DIM)[None, :]
    place = (chunk * num_nodes + node)[:, None] * DIM + column[None, :]
    if ADD:
        tl.atomic_add(d_candidates + place, pulled * scale, mask=inside, sem="relaxed")
    else:
        tl.store(d_candidates + place, pulled * scale, mask=inside)


def _launch(kernel: Kernel, launch: Callable[..., Any], *given: Any, **how: Any) -> None:
    try:
        made = launch(*given, **how)
    except (OutOfResources, PTXASError) as error:  # the assembler counts some of the memory itself
        raise TooLargeError(kernel, str(error)) from error
    spilled = getattr(made, "n_spills", 0)  # under the interpreter nothing is made
    if spilled > MOST_SPILLED:
        raise TooLargeError(kernel, f"{spilled} registers a thread lie in memory")


def contrast(
    queries: Tensor,
    candidates: Tensor,
    positive: Tensor,
    *,
    dropped: Tensor | KnownAnswers | None,
    group: Tensor | None,
    weight: Tensor | None,
    edge_weight: Tensor | None = None,
    softmax: bool,
    shift: float,
    scale: float,
    precision: str,
    blocks: Blocks | None = None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """As `marius_py.nn.cuda_kernels.torch_contrast`, of the same arguments, without scores in memory.

    Args:
        queries, candidates, positive, dropped, group, weight, edge_weight, softmax, shift, scale: as there;
            contiguous, D at most `MAX_DIM`, P · K below 2³¹.
        precision: one of `PRECISIONS`.
        blocks: shape of the blocks; None: `default_blocks`.

    Raises:
        TooLargeError: the blocks do not fit the device, or cannot be assembled for it.
    """
    num_chunks, num_edges, dim = queries.shape
    num_nodes = candidates.shape[1]
    blocks = blocks or default_blocks(dim, precision)
    ahead, back = blocks.forward, blocks.backward
    losses, slopes, stats = (torch.empty_like(positive) for _ in range(3))
    d_queries = torch.empty_like(queries)
    num_groups = 0 if weight is None else weight.shape[2]
    on_device = queries.is_cuda
    half = precision == "bf16" and on_device
    dtype, turned = (torch.bfloat16, False) if half else (torch.float32, precision in TURNED)
    queries, queries_turned = operand(queries, dtype, turned=turned)
    candidates, candidates_turned = operand(candidates, dtype, turned=turned)
    common: dict[str, Any] = {
        "shift": float(shift),
        "scale": float(scale),
        "DIM": dim,
        "HAS_DROPPED": dropped is not None,
        "HAS_WEIGHT": weight is not None,
        "SOFTMAX": softmax,
        "TURNED": turned,
        "PRECISION": "rounded" if precision == "bf16" and not on_device else precision,
        "LOOK_UP": "tf32" if precision == "bf16" else precision,
        "BLOCK_GROUPS": max(16, triton.next_power_of_2(num_groups)),
        "BLOCK_DIM": queries.shape[2],
    }
    unread = positive  # stands for a tensor that there is none of
    weighed = (unread if group is None else group, unread if weight is None else weight)
    forward = backward = Way(unread, unread)
    of_rows, of_columns = (ahead.own, ahead.other), (back.own, back.other)
    if isinstance(dropped, KnownAnswers):
        forward, backward = leave_out_known(dropped, of_rows, of_columns)
    elif dropped is not None:
        forward, backward = leave_out(dropped, (num_chunks, num_edges, num_nodes), of_rows, of_columns)
    sizes = (num_edges, num_nodes, num_groups, queries.shape[1], candidates.shape[1])
    _launch(
        "forward",
        _forward_kernel[(triton.cdiv(num_edges, ahead.own), num_chunks)],
        queries,
        candidates,
        candidates_turned,
        positive,
        *forward,
        *weighed,
        d_queries,
        losses,
        slopes,
        stats,
        *sizes,
        BLOCK_EDGES=ahead.own,
        BLOCK_NODES=ahead.other,
        num_warps=ahead.warps,
        num_stages=ahead.stages,
        **common,
    )
    if edge_weight is not None:
        slopes.mul_(edge_weight)
        d_queries.mul_(edge_weight.unsqueeze(2))
        # The candidates' gradients are sums over edges, whose factors follow from this.
        stats = stats - edge_weight.log2() if softmax else stats * edge_weight
    node_blocks = triton.cdiv(num_nodes, back.own)
    edge_blocks = triton.cdiv(num_edges, back.other)
    parts = max(1, min(edge_blocks, -(-blocks.programs // (node_blocks * num_chunks))))
    edges_a_part = triton.cdiv(edge_blocks, parts) * back.other
    parts = triton.cdiv(num_edges, edges_a_part)
    shape = (num_chunks, num_nodes, dim)
    d_candidates = positive.new_zeros(shape) if parts > 1 else positive.new_empty(shape)
    _launch(
        "backward",
        _backward_kernel[(node_blocks, num_chunks, parts)],
        queries,
        queries_turned,
        candidates,
        *backward,
        *weighed,
        stats,
        d_candidates,
        *sizes,
        edges_a_part,
        ADD=parts > 1,
        BLOCK_EDGES=back.other,
        BLOCK_NODES=back.own,
        num_warps=back.warps,
        num_stages=back.stages,
        **common,
    )
    return losses, slopes, d_queries, d_candidates
