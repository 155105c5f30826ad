"""Distances between queries and candidates (floor 1): (C, P, D) and (C, K, D) in, (C, P, K) out.

Plain broadcasting would make a (C, P, K, D) tensor. The euclidean distance is one batched matrix product by
expanded squares; the sum of moduli has no such form and is computed in blocks, forward and backward.
"""

from __future__ import annotations

from types import ModuleType
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


class _Moduli(torch.autograd.Function):
    """Sum over coordinates of |q_j − k_j| for complex rows, recomputed block by block in backward."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, candidates: Tensor) -> Tensor:
        query, candidates = query.contiguous(), candidates.contiguous()
        ctx.save_for_backward(query, candidates)
        distance = query.new_empty(query.shape[0], query.shape[1], candidates.shape[1])
        compiled = _compiled_for(query)
        if compiled is not None:
            compiled.moduli(query.numpy(), candidates.numpy(), query.shape[2], distance.numpy())
            return distance
        for chunk, start, stop in _blocks(query, candidates):
            moduli = _differences(query[chunk], candidates[chunk, start:stop])[2]
            distance[chunk, :, start:stop] = moduli.sum(-1)
        return distance

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        query, candidates = ctx.saved_tensors
        (gradient,) = gradients
        d_query, d_candidates = torch.zeros_like(query), torch.zeros_like(candidates)
        compiled = _compiled_for(query)
        if compiled is not None:
            given = (one.numpy() for one in (gradient.contiguous(), query, candidates))
            even = query.new_ones(query.shape[:2])
            compiled.moduli_backward(
                *given, query.shape[2], even.numpy(), d_query.numpy(), d_candidates.numpy()
            )
            return d_query, d_candidates
        for chunk, start, stop in _blocks(query, candidates):
            re, im, modulus = _differences(query[chunk], candidates[chunk, start:stop])
            weight = gradient[chunk, :, start:stop].unsqueeze(-1) / modulus.clamp_min_(SQUARE_FLOOR)
            flow = torch.cat((re * weight, im * weight), -1)
            d_query[chunk] += flow.sum(1)
            d_candidates[chunk, start:stop] -= flow.sum(0)
        return d_query, d_candidates


def _compiled_for(query: Tensor) -> ModuleType | None:
    on_host = query.device.type == "cpu" and query.dtype in (torch.float32, torch.float64)
    return compiled_distance() if on_host else None


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
    distance: Tensor = _Moduli.apply(query, candidates)  # type: ignore[no-untyped-call]
    return distance
