"""Queries of a batch's edges and the way back to their rows, one launch each (floor 1, Triton).

For decoders whose query is a product of node and relation, real (DistMult) or complex (ComplEx, real parts in
a row's first half): rows are read where they lie, and gradients are added to their rows at once. By single
operations the same takes some twenty launches and as many passes over memory.

In: tensors on a CUDA device, or on the CPU under Triton's interpreter. Importing this module needs Triton;
`marius_py.nn.cuda_kernels` is what imports it, and only then.
"""

# No postponed annotations: Triton reads `tl.constexpr` from them.

import triton
import triton.language as tl
from torch import Tensor

_BLOCK_FLOATS = 1024


@triton.jit
def _query_kernel(
    rows,
    relations,
    known,
    answer,
    relation,
    queries,
    positives,
    num_edges,
    SIGN: tl.constexpr,
    HALF: tl.constexpr,
    COMPLEX: tl.constexpr,
    BLOCK_EDGES: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    WIDTH: tl.constexpr = 2 * HALF if COMPLEX else HALF
    edge = tl.program_id(0) * BLOCK_EDGES + tl.arange(0, BLOCK_EDGES)
    column = tl.arange(0, BLOCK_HALF)[None, :]
    is_edge = edge < num_edges
    inside = is_edge[:, None] & (column < HALF)
    of_node = tl.load(known + edge, mask=is_edge, other=0)[:, None] * WIDTH + column
    of_answer = tl.load(answer + edge, mask=is_edge, other=0)[:, None] * WIDTH + column
    of_relation = tl.load(relation + edge, mask=is_edge, other=0)[:, None] * WIDTH + column
    place = edge.to(tl.int64)[:, None] * WIDTH + column
    node = tl.load(rows + of_node, mask=inside, other=0.0)
    weight = tl.load(relations + of_relation, mask=inside, other=0.0)
    query = node * weight
    if COMPLEX:
        node_im = tl.load(rows + of_node + HALF, mask=inside, other=0.0)
        weight_im = tl.load(relations + of_relation + HALF, mask=inside, other=0.0)
        query -= SIGN * node_im * weight_im
        query_im = node_im * weight + SIGN * node * weight_im
        tl.store(queries + place + HALF, query_im, mask=inside)
    tl.store(queries + place, query, mask=inside)
    positive = tl.sum(query * tl.load(rows + of_answer, mask=inside, other=0.0), 1)
    if COMPLEX:
        positive += tl.sum(query_im * tl.load(rows + of_answer + HALF, mask=inside, other=0.0), 1)
    tl.store(positives + edge, positive, mask=is_edge)


@triton.jit
def _query_backward_kernel(
    rows,
    relations,
    known,
    answer,
    relation,
    queries,
    d_queries,
    slopes,
    d_rows,
    d_relations,
    num_edges,
    SIGN: tl.constexpr,
    HALF: tl.constexpr,
    COMPLEX: tl.constexpr,
    BLOCK_EDGES: tl.constexpr,
    BLOCK_HALF: tl.constexpr,
):
    WIDTH: tl.constexpr = 2 * HALF if COMPLEX else HALF
    edge = tl.program_id(0) * BLOCK_EDGES + tl.arange(0, BLOCK_EDGES)
    column = tl.arange(0, BLOCK_HALF)[None, :]
    is_edge = edge < num_edges
    inside = is_edge[:, None] & (column < HALF)
    of_node = tl.load(known + edge, mask=is_edge, other=0)[:, None] * WIDTH + column
    of_answer = tl.load(answer + edge, mask=is_edge, other=0)[:, None] * WIDTH + column
    of_relation = tl.load(relation + edge, mask=is_edge, other=0)[:, None] * WIDTH + column
    place = edge.to(tl.int64)[:, None] * WIDTH + column
    slope = tl.load(slopes + edge, mask=is_edge, other=0.0)[:, None]
    node = tl.load(rows + of_node, mask=inside, other=0.0)
    weight = tl.load(relations + of_relation, mask=inside, other=0.0)
    gradient = tl.load(d_queries + place, mask=inside, other=0.0)
    gradient += slope * tl.load(rows + of_answer, mask=inside, other=0.0)
    d_node = gradient * weight
    d_weight = gradient * node
    if COMPLEX:
        node_im = tl.load(rows + of_node + HALF, mask=inside, other=0.0)
        weight_im = tl.load(relations + of_relation + HALF, mask=inside, other=0.0)
        gradient_im = tl.load(d_queries + place + HALF, mask=inside, other=0.0)
        gradient_im += slope * tl.load(rows + of_answer + HALF, mask=inside, other=0.0)
        d_node += SIGN * gradient_im * weight_im
        d_weight += gradient_im * node_im
        d_node_im = gradient_im * weight - SIGN * gradient * weight_im
        tl.atomic_add(d_rows + of_node + HALF, d_node_im, mask=inside, sem="relaxed")
        d_weight_im = SIGN * (gradient_im * node - gradient * node_im)
        tl.atomic_add(d_relations + of_relation + HALF, d_weight_im, mask=inside, sem="relaxed")
        query_im = tl.load(queries + place + HALF, mask=inside, other=0.0)
        tl.atomic_add(d_rows + of_answer + HALF, slope * query_im, mask=inside, sem="relaxed")
    tl.atomic_add(d_rows + of_node, d_node, mask=inside, sem="relaxed")
    tl.atomic_add(d_relations + of_relation, d_weight, mask=inside, sem="relaxed")
    query = tl.load(queries + place, mask=inside, other=0.0)
    tl.atomic_add(d_rows + of_answer, slope * query, mask=inside, sem="relaxed")


def _shape(dim: int, is_complex: bool, sign: int, num_edges: int) -> tuple[tuple[int], dict[str, int]]:
    half = dim // 2 if is_complex else dim
    block_half = triton.next_power_of_2(half)
    block_edges = max(1, _BLOCK_FLOATS // block_half)
    options = {"SIGN": sign, "HALF": half, "COMPLEX": is_complex}
    options |= {"BLOCK_EDGES": block_edges, "BLOCK_HALF": block_half}
    return (triton.cdiv(num_edges, block_edges),), options


def make_queries(
    rows: Tensor,
    relations: Tensor,
    known: Tensor,
    answer: Tensor,
    relation: Tensor,
    *,
    is_complex: bool,
    sign: int,
) -> tuple[Tensor, Tensor]:
    """Queries (B, D) and the scores (B,) of their own answers.

    Args:
        rows: (U, D). relations: (V, D).
        known, answer, relation: (B,) int64 indices into them.
        is_complex: whether rows are complex.
        sign: 1 where tails are asked for; −1 where heads are: the relation is then conjugated.
    """
    num_edges, dim = len(known), rows.shape[1]
    queries = rows.new_empty(num_edges, dim)
    positives = rows.new_empty(num_edges)
    grid, options = _shape(dim, is_complex, sign, num_edges)
    _query_kernel[grid](rows, relations, known, answer, relation, queries, positives, num_edges, **options)
    return queries, positives


def queries_backward(
    rows: Tensor,
    relations: Tensor,
    known: Tensor,
    answer: Tensor,
    relation: Tensor,
    queries: Tensor,
    d_queries: Tensor,
    slopes: Tensor,
    d_rows: Tensor,
    d_relations: Tensor,
    *,
    is_complex: bool,
    sign: int,
) -> None:
    """Add to the gradients of the rows that `make_queries` read.

    Args:
        rows, relations, known, answer, relation, is_complex, sign: as there.
        queries: what it made. d_queries: (B, D) its gradient, that by the answer's score left out.
        slopes: (B,) gradient of the answers' scores.
        d_rows: (U, D). d_relations: (V, D).
    """
    num_edges, dim = queries.shape
    grid, options = _shape(dim, is_complex, sign, num_edges)
    _query_backward_kernel[grid](
        rows,
        relations,
        known,
        answer,
        relation,
        queries,
        d_queries,
        slopes,
        d_rows,
        d_relations,
        num_edges,
        **options,
    )
