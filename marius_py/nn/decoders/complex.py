"""ComplEx: a complex diagonal bilinear form for each relation (floor 1)."""

from __future__ import annotations

import torch
from torch import Tensor

from marius_py.nn.decoders.base import ProductDecoder, require_even
from marius_py.types import Side


class ComplEx(ProductDecoder):
    """score = Re⟨head, relation, conj(tail)⟩ (Trouillon et al., 2016).

    Rows hold the real parts in their first half and the imaginary parts in their second, so that the real
    part of a complex product with a conjugate is a plain dot product of rows.

    Args:
        dim: embedding width in floats, even: dim / 2 complex numbers.
        popularity: of the first real part; see `ProductDecoder`.
    """

    similarity = "dot"
    product = "complex"
    complex_halves = True

    def __init__(self, dim: int, popularity: float = 0.0) -> None:
        super().__init__(dim, popularity)
        require_even(dim, "ComplEx")

    def query(self, node: Tensor, relation: Tensor, side: Side) -> Tensor:
        """head ∘ relation for ranked tails, tail ∘ conj(relation) for ranked heads; (*, D)."""
        re, im = node.chunk(2, -1)
        relation_re, relation_im = relation.chunk(2, -1)
        if side == "head":
            relation_im = -relation_im
        return torch.cat((re * relation_re - im * relation_im, re * relation_im + im * relation_re), -1)

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Dot products, (C, P, K)."""
        return torch.bmm(query, candidates.transpose(1, 2))

    def score(self, query: Tensor, candidate: Tensor) -> Tensor:
        """Dot products of pairs, (*)."""
        return (query * candidate).sum(-1)

    def query_into(self, node: Tensor, relation: Tensor, side: Side, out: Tensor) -> None:
        """Write the complex product without temporaries."""
        re, im = node.chunk(2, -1)
        relation_re, relation_im = relation.chunk(2, -1)
        out_re, out_im = out.chunk(2, -1)
        sign = 1 if side == "tail" else -1
        torch.mul(re, relation_re, out=out_re)
        out_re.addcmul_(im, relation_im, value=-sign)
        torch.mul(im, relation_re, out=out_im)
        out_im.addcmul_(re, relation_im, value=sign)

    def query_backward(
        self, node: Tensor, relation: Tensor, side: Side, gradient: Tensor, d_node: Tensor, d_relation: Tensor
    ) -> None:
        """d_node = gradient ∘ conj(relation), d_relation = gradient ∘ conj(node), conjugated for heads."""
        re, im = node.chunk(2, -1)
        relation_re, relation_im = relation.chunk(2, -1)
        gradient_re, gradient_im = gradient.chunk(2, -1)
        d_re, d_im = d_node.chunk(2, -1)
        d_relation_re, d_relation_im = d_relation.chunk(2, -1)
        sign = 1 if side == "tail" else -1
        d_re.addcmul_(gradient_re, relation_re)
        d_re.addcmul_(gradient_im, relation_im, value=sign)
        d_im.addcmul_(gradient_im, relation_re)
        d_im.addcmul_(gradient_re, relation_im, value=-sign)
        d_relation_re.addcmul_(gradient_re, re)
        d_relation_re.addcmul_(gradient_im, im)
        d_relation_im.addcmul_(gradient_im, re, value=sign)
        d_relation_im.addcmul_(gradient_re, im, value=-sign)
