"""Hypothesis strategies for sizes, orders and skewed bucket counts."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from marius_py.ordering import ORDER_NAMES


@st.composite
def sizes(draw: DrawFn, max_p: int = 64) -> tuple[int, int]:
    """(p, c) with 2 ≤ c ≤ p ≤ max_p."""
    p = draw(st.integers(2, max_p))
    return p, draw(st.integers(2, p))


@st.composite
def orders(draw: DrawFn, max_p: int = 64) -> tuple[int, int, str]:
    """(p, c, order) that can be built."""
    order = draw(st.sampled_from(ORDER_NAMES))
    if order == "optimal":
        max_p = min(max_p, 16)
    elif order not in {"auto", "beta", "cyclic"}:
        max_p = min(max_p, 20)  # the baselines need thousands of steps beyond
    return *draw(sizes(max_p)), order


@st.composite
def rmat_counts(draw: DrawFn, p: int, max_edges: int = 3000) -> list[list[int]]:
    """Edge counts of p × p buckets of a recursive-matrix graph (Chakrabarti et al., 2004), heavily skewed."""
    a, b, c = draw(st.sampled_from([(0.57, 0.19, 0.19), (0.45, 0.22, 0.22), (0.7, 0.1, 0.1)]))
    rng = draw(st.randoms(use_true_random=False))
    counts = [[0] * p for _ in range(p)]
    for _ in range(draw(st.integers(0, max_edges))):
        head = tail = 0
        for _ in range((p - 1).bit_length()):
            u = rng.random()
            head = 2 * head + (u >= a + b)
            tail = 2 * tail + (a <= u < a + b or u >= a + b + c)
        counts[head % p][tail % p] += 1
    return counts
