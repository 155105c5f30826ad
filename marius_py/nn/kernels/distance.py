"""Distances between queries and candidates (floor 1): (C, P, D) and (C, K, D) in, (C, P, K) out.

Plain broadcasting would make a (C, P, K, D) tensor. The euclidean distance is one batched matrix product by
expanded squares; sums over coordinates have no such form and are computed in blocks, forward and backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from marius_py.nn.kernels.host import compiled_distance

SQUARE_FLOOR = 1e-12
"""Squared distances below this count as zero, without gradient.

Rounding hides larger ones, too: the expansion's noise is some 1e-7 of ‖q‖² + ‖k‖², so that of candidates
nearer than a thousandth of the rows' norms neither distance nor the size of the gradient, 1 where it is exact
and up to 3 here, can be relied on. Pairs of a query and its own answer are computed from differences."""

_BLOCK_FLOATS = 1 << 20
"""Floats of a block's differences on the CPU: they stay in its cache."""
_DEVICE_BLOCK_FLOATS = 1 << 25
"""On a device: launching the work takes less time than doing it."""


def pairwise_l2(query: Tensor, candidates: Tensor) -> Tensor:
    """Euclidean distances ‖q − k‖ = √(‖q‖² + ‖k‖² − 2 q·k), (C, P, K), by one batched matrix product."""
    norms = query.square().sum(-1, keepdim=True) + candidates.square().sum(-1).unsqueeze(1)
    squares = torch.baddbmm(norms, query, candidates.transpose(1, 2), alpha=-2)
    return squares.clamp_min(SQUARE_FLOOR).sqrt()


def _differences(query: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Real and imaginary differences and their moduli, each (P, k, D/2)."""
    difference = query.unsqueeze(1) - candidates.unsqueeze(0)
    re, im = difference.chunk(2, -1)
    return re, im, torch.hypot(re, im)


class _Sum(torch.autograd.Function):
    """Sum over coordinates of |q_j − k_j|, real or complex, in loops compiled for the host."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, candidates: Tensor, is_complex: bool) -> Tensor:
        query, candidates = query.contiguous(), candidates.contiguous()
        ctx.save_for_backward(query, candidates)
        ctx.is_complex = is_complex
        distance = query.new_empty(query.shape[0], query.shape[1], candidates.shape[1])
        compiled = compiled_distance()
        assert compiled is not None
        compiled.distances(query.numpy(), candidates.numpy(), query.shape[2], is_complex, distance.numpy())
        return distance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        query, candidates = ctx.saved_tensors
        compiled = compiled_distance()
        assert compiled is not None
        d_query, d_candidates = torch.zeros_like(query), torch.zeros_like(candidates)
        given = (one.numpy() for one in (gradients[0].contiguous(), query, candidates))
        even = query.new_ones(query.shape[:2]).numpy()
        sums = d_query.numpy(), d_candidates.numpy()
        compiled.distances_backward(*given, query.shape[2], ctx.is_complex, even, *sums)
        return d_query, d_candidates, None


class _Moduli(torch.autograd.Function):
    """Sum over coordinates of |q_j − k_j| for complex rows, recomputed block by block in backward."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, candidates: Tensor) -> Tensor:
        query, candidates = query.contiguous(), candidates.contiguous()
        ctx.save_for_backward(query, candidates)
        distance = query.new_empty(query.shape[0], query.shape[1], candidates.shape[1])
        for chunk, start, stop in _blocks(query, candidates):
            moduli = _differences(query[chunk], candidates[chunk, start:stop])[2]
            distance[chunk, :, start:stop] = moduli.sum(-1)
        return distance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        query, candidates = ctx.saved_tensors
        (gradient,) = gradients
        d_query, d_candidates = torch.zeros_like(query), torch.zeros_like(candidates)
        for chunk, start, stop in _blocks(query, candidates):
            re, im, modulus = _differences(query[chunk], candidates[chunk, start:stop])
            weight = gradient[chunk, :, start:stop].unsqueeze(-1) / modulus.clamp_min_(SQUARE_FLOOR)
            flow = torch.cat((re * weight, im * weight), -1)
            d_query[chunk] += flow.sum(1)
            d_candidates[chunk, start:stop] -= flow.sum(0)
        return d_query, d_candidates


def _is_compiled_for(query: Tensor) -> bool:
    on_host = query.device.type == "cpu" and query.dtype in (torch.float32, torch.float64)
    return on_host and compiled_distance() is not None


def _blocks(query: Tensor, candidates: Tensor) -> list[tuple[int, int, int]]:
    """(chunk, start, stop) blocks of candidates whose differences stay around 4 MiB, 128 on a device."""
    num_chunks, num_edges, dim = query.shape
    most = _BLOCK_FLOATS if query.device.type == "cpu" else _DEVICE_BLOCK_FLOATS
    size = max(1, most // max(1, num_edges * dim))
    count = candidates.shape[1]
    return [
        (chunk, start, min(start + size, count))
        for chunk in range(num_chunks)
        for start in range(0, count, size)
    ]


def pairwise_moduli(query: Tensor, candidates: Tensor) -> Tensor:
    """Σ_j |q_j − k_j| over complex coordinates (real half, imaginary half), (C, P, K), in bounded memory."""
    if _is_compiled_for(query):
        return _sum(query, candidates, is_complex=True)
    distance: Tensor = _Moduli.apply(query, candidates)  # type: ignore[no-untyped-call]
    return distance


def pairwise_l1(query: Tensor, candidates: Tensor) -> Tensor:
    """Σ_d |q_d − k_d|, (C, P, K).

    Where a coordinate of both is the same, the gradient is that of one side on the host, and zero elsewhere.
    """
    if _is_compiled_for(query):
        return _sum(query, candidates, is_complex=False)
    return torch.cdist(query, candidates, p=1.0)


def _sum(query: Tensor, candidates: Tensor, *, is_complex: bool) -> Tensor:
    distance: Tensor = _Sum.apply(query, candidates, is_complex)  # type: ignore[no-untyped-call]
    return distance
