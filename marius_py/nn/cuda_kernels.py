"""The heavy steps of a batch on a device (floor 1): taking rows, contrast with the negatives, Adagrad.

Each is there twice: in plain PyTorch, which runs anywhere and is the reference, and as Triton kernels, which
write no score to memory and step over each row once. `choose_kernels` picks one set.
"""

from __future__ import annotations

import logging
import math
import os
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from marius_py.errors import ConfigError
from marius_py.nn.batch import mask_without
from marius_py.nn.known_answers import KnownAnswers
from marius_py.nn.optimizers import Adagrad, AdagradRow, SparseOptimizer

log = logging.getLogger(__name__)

Precision = Literal["float32", "tf32", "bfloat16"]

_IN_TRITON: dict[Precision, str] = {"float32": "tf32x3", "tf32": "tf32", "bfloat16": "bf16"}
_MOST_PLACES = 1 << 31
"""Scores or floats of a chunk from which 32-bit offsets within it overflow."""
_MOST_CHUNKS = 65_535
"""Chunks that a launch can have, one in each row of its grid."""
_WITH_TF32 = (8, 0)
"""Compute capability from which devices have units for the products of a contrast."""
_LEAST_EDGES = 16
"""Edges of a chunk below which its padding to whole blocks costs more than scores in memory do."""


class Kernels(Protocol):
    """One set of kernels.

    Attributes:
        name: what the log calls it.
        waits: whether a step makes the host wait for the device.
    """

    name: str
    waits: bool

    def take(self, table: Tensor, index: Tensor) -> Tensor:
        """As `torch_take`."""

    def contrast(
        self,
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
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `torch_contrast`."""

    def adagrad(
        self,
        rows: Tensor,
        state: Tensor,
        index: Tensor,
        gradients: Tensor,
        *,
        count: Tensor | None,
        lr: float,
        eps: float,
        rate: float | Tensor,
    ) -> None:
        """As `torch_adagrad`."""


def torch_take(table: Tensor, index: Tensor) -> Tensor:
    """Copy (n, D) of the rows of a table (N, D), float32, at places (n,) int64."""
    return table.index_select(0, index)


def torch_contrast(
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
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Loss and gradients of queries that are contrasted with the candidates of their chunk, by dot products.

    Args:
        queries: (C, P, D).
        candidates: (C, K, D).
        positive: (C, P) scores of the true answers.
        dropped: (M,) int64, positions in the flattened (C, P, K) of candidates that must not count, some of
            them perhaps twice; or what finds them; None: all do.
        group: (C, K) integers in [0, G), the group of each candidate; None without `weight`.
        weight: (C, P, G), what a candidate of each group counts for an edge, positive; None: 1.
        edge_weight: (C, P), factors of the gradients of each edge's loss, from 0; None: 1.
        softmax: whether the loss is log(1 + Σ_k n_k e^(s_k + shift − s⁺)); otherwise it is logistic,
            softplus(−s⁺ − shift) + Σ_k n_k softplus(s_k + shift) / Σ_k n_k, its second part 0 where nothing
            counts. n_k are the counts.
        shift: see there.
        scale: factor of all gradients.

    Returns:
        Losses (C, P), and scaled gradients of the positive scores (C, P), of the queries (C, P, D) and of the
        candidates (C, K, D). The softmax overflows for no finite scores.
    """
    scores = torch.bmm(queries, candidates.transpose(1, 2))
    keep = None if dropped is None else mask_without(dropped, (*queries.shape[:2], candidates.shape[1]))
    counts: Tensor | None = None
    if weight is not None and group is not None:
        at = group.to(torch.int64).unsqueeze(1).expand(-1, queries.shape[1], -1)
        counts = torch.gather(weight, 2, at)
    if keep is not None:
        counts = keep.to(scores.dtype) if counts is None else counts * keep
    shifted = scores.add_(shift) if shift else scores
    if softmax:
        if keep is not None:
            scores.masked_fill_(~keep, -math.inf)
        highest = torch.maximum(scores.amax(2), positive)
        weights = scores.sub_(highest.unsqueeze(2)).exp_()
        if counts is not None:
            weights.mul_(counts)
        total = weights.sum(2)
        denominator = torch.exp(positive - highest) + total
        losses = highest - positive + torch.log(denominator)
        slopes = -total / denominator
        factor = scale / denominator
    else:
        each = functional.softplus(shifted)
        weights = shifted.sigmoid_()
        if counts is not None:
            each, weights = each.mul_(counts), weights.mul_(counts)
        counted = positive.new_full((), scores.shape[2]) if counts is None else counts.sum(2)
        share = 1 / counted.masked_fill(counted == 0, 1)
        losses = functional.softplus(-positive - shift) + each.sum(2) * share
        slopes = -torch.sigmoid(-positive - shift)
        factor = (scale * share).expand_as(positive)
    if edge_weight is not None:
        slopes, factor = slopes * edge_weight, factor * edge_weight
    d_queries = torch.bmm(weights, candidates).mul_(factor.unsqueeze(2))
    d_candidates = torch.bmm(weights.transpose(1, 2), queries * factor.unsqueeze(2))
    return losses, slopes.mul_(scale), d_queries, d_candidates


def torch_adagrad(
    rows: Tensor,
    state: Tensor,
    index: Tensor,
    gradients: Tensor,
    *,
    count: Tensor | None,
    lr: float,
    eps: float,
    rate: float | Tensor,
) -> None:
    """One step of Adagrad on some rows of a table, in place.

    Args:
        rows: (N, D) float32.
        state: (N, D) sums of squares, or (N, 1) sums of mean squares, float32.
        index: (n,) int64, rows to change, the first `count` of them distinct.
        gradients: (n, D) float32.
        count: () integer, how many of `index` and `gradients` count; None: all.
        lr: learning rate. eps: added to the root. rate: factor of the learning rate, or () float32 with it.
    """
    if count is not None:
        index, gradients = index[: int(count)], gradients[: int(count)]
    optimizer = (Adagrad if state.shape[1] == rows.shape[1] else AdagradRow)(lr, eps)
    torch_step(optimizer, rows, state, index, gradients, rate)


def torch_step(
    optimizer: SparseOptimizer,
    rows: Tensor,
    state: Tensor,
    index: Tensor,
    gradients: Tensor,
    rate: float | Tensor,
) -> None:
    """One step of any optimizer on the distinct rows `index` of a table, in place."""
    d_rows, d_state = optimizer.delta(rows[index], state[index], gradients)
    rows.index_add_(0, index, d_rows * rate)
    if state.shape[1]:
        state.index_add_(0, index, d_state)


def step_rows(
    kernels: Kernels,
    optimizer: SparseOptimizer,
    rows: Tensor,
    state: Tensor,
    index: Tensor,
    gradients: Tensor,
    *,
    count: Tensor | None = None,
    rate: float | Tensor = 1.0,
) -> None:
    """One step of an optimizer on some rows of a table, in place; arguments as for `torch_adagrad`.

    Adagrad goes through the kernels. Others gather, compute and scatter, and wait for the device if `count`
    has to be read.
    """
    if type(optimizer) in (Adagrad, AdagradRow):
        options = {"lr": optimizer.lr, "eps": optimizer.eps, "rate": rate}  # type: ignore[attr-defined]
        kernels.adagrad(rows, state, index, gradients, count=count, **options)
        return
    if count is not None:
        index, gradients = index[: int(count)], gradients[: int(count)]
    torch_step(optimizer, rows, state, index, gradients, rate)


class TorchKernels:
    """The plain path."""

    name = "PyTorch"
    waits = True
    take = staticmethod(torch_take)
    contrast = staticmethod(torch_contrast)
    adagrad = staticmethod(torch_adagrad)


class TritonKernels:
    """The Triton path; what it does not take on goes the plain way.

    Args:
        precision: of the products of a contrast: float32 (three TensorFloat-32 products on a device, which
            come close to it), tf32 or bfloat16; sums are float32.

    Attributes:
        widest: floats of a row at most that its contrast takes on.

    Raises:
        ImportError: there is no Triton.
    """

    waits = False

    def __init__(self, precision: Precision = "float32") -> None:
        from marius_py.nn.kernels import (
            triton_adagrad,
            triton_contrast,
            triton_edges,
            triton_penalties,
            triton_rows,
        )

        self.name = f"Triton ({precision})"
        self.adagrad = triton_adagrad.adagrad
        self.make_queries = triton_edges.make_queries
        self.queries_backward = triton_edges.queries_backward
        self.add_n3 = triton_penalties.add_n3
        self.take = triton_rows.take
        self.widest = triton_contrast.MAX_DIM
        self._contrast = triton_contrast
        self._precision = _IN_TRITON[precision]
        self._blocks: dict[int, Any] = {}

    def contrast(
        self,
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
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """As `torch_contrast`, without scores in memory."""
        from marius_py.nn.kernels.triton_blocks import TooLargeError, default_blocks

        module, (num_chunks, num_edges, dim) = self._contrast, queries.shape
        given: dict[str, Any] = {"dropped": dropped, "group": group, "weight": weight, "scale": scale}
        given |= {"softmax": softmax, "shift": shift, "edge_weight": edge_weight}
        if dim not in self._blocks:
            fits = dim <= self.widest
            self._blocks[dim] = default_blocks(dim, self._precision) if fits else None
        blocks = self._blocks[dim]
        while blocks is not None and _fits_a_launch(num_chunks, num_edges, dim, candidates.shape[1]):
            try:
                found: tuple[Tensor, Tensor, Tensor, Tensor] = module.contrast(
                    queries,
                    candidates,
                    positive,
                    **given,
                    precision=self._precision,
                    blocks=blocks,
                )
                return found
            except TooLargeError as error:
                blocks = self._blocks[dim] = blocks.smaller(error.kernel)
                if blocks is None:
                    log.warning("the contrast goes the slower way through PyTorch: %s", error)
                else:
                    log.info("contrast kernel: %s; trying %s", error, blocks)
        return torch_contrast(queries, candidates, positive, **given)


def _fits_a_launch(num_chunks: int, num_edges: int, dim: int, num_nodes: int) -> bool:
    """Whether the contrast kernels can take and pay for a batch.

    >>> _fits_a_launch(10, 5000, 100, 1000), _fits_a_launch(50_000, 1, 100, 10)
    (True, False)
    >>> _fits_a_launch(1, 64, 200, 8_400_000)
    False
    """
    # Rows are padded to blocks of at most 128, their floats to at most twice as many.
    edges, nodes = num_edges + 127, num_nodes + 127
    places = max(edges * nodes, 2 * dim * max(edges, nodes))
    return num_chunks <= _MOST_CHUNKS and num_edges >= _LEAST_EDGES and places < _MOST_PLACES


@cache
def choose_kernels(device: str, wanted: str = "auto", precision: Precision = "float32") -> Kernels:
    """The kernels for a device.

    Args:
        device: its type, perhaps with a number: "cuda:0", "cuda" or "cpu".
        wanted: "auto" (Triton on CUDA where it is installed and one of its kernels has run on the device,
            else PyTorch; before compute capability 8.0 with PyTorch's products), "triton" or "torch".
        precision: see `TritonKernels`; the plain path multiplies as PyTorch is set to.

    Raises:
        ConfigError: Triton is asked for and cannot be used, or its device is not the current one.
        torch.OutOfMemoryError: the device is full.
    """
    on_device = torch.device(device).type == "cuda"
    if wanted == "triton" and not on_device and os.environ.get("TRITON_INTERPRET") != "1":
        raise ConfigError(
            "pipeline.kernels=triton needs a CUDA device; take pipeline.kernels=auto, or set device=cuda"
        )
    if wanted == "torch" or (wanted == "auto" and not on_device):
        return TorchKernels()
    if wanted == "auto" and find_spec("triton") is None:
        log.warning("Triton is not installed: batches go the slower way through PyTorch")
        return TorchKernels()
    try:
        kernels = TritonKernels(precision)
    except ImportError as error:
        trouble: str | None = f"Triton cannot be imported ({error}); install the extra marius_py[kernels]"
    else:
        if on_device:
            check_current(torch.device(device))
        trouble = _trouble(kernels, device) if on_device else None
    if trouble is not None and wanted == "triton":
        raise ConfigError(f"pipeline.kernels=triton, but {trouble}, or take pipeline.kernels=auto")
    if trouble is not None:
        log.warning("batches go the slower way through PyTorch: %s", trouble)
        return TorchKernels()
    if wanted == "auto" and on_device and torch.cuda.get_device_capability(device) < _WITH_TF32:
        kernels.widest = 0  # its products would be those of plain cores
    return kernels


def check_current(device: torch.device) -> None:
    """Refuse a device that is not the current one: Triton launches there, with memory of another."""
    if device.index is None or not torch.cuda.is_available():
        return
    if device.index != (current := torch.cuda.current_device()):
        raise ConfigError(
            f"device is {device}, but kernels run on the current device, cuda:{current}: call "
            f"torch.cuda.set_device({device.index}) first"
        )


def _trouble(kernels: TritonKernels, device: str) -> str | None:
    """Why Triton's kernels do not run on a device, found by running one of them; None: they do.

    Triton compiles what launches a kernel with the machine's C compiler, which need not be there.
    """
    if torch.version.hip is not None:
        return "its kernels were not made for this ROCm build of PyTorch: set device=cpu"
    try:
        rows = torch.ones(1, 16, device=device)
        runs = torch.equal(kernels.take(rows, torch.zeros(1, dtype=torch.int64, device=device)), rows)
    except torch.OutOfMemoryError:
        raise  # of this moment; what is found here holds for the whole process
    except Exception as error:  # of Triton, a compiler, a linker or a driver
        said = (str(error).strip().splitlines() or [""])[0]
        return f"its kernels do not run on {device} ({type(error).__name__}: {said}): mend that"
    return None if runs else f"its kernels compute something else on {device}: set device=cpu"
