"""The link-prediction model (floor 1): Batch in, Gradients out; relation rows belong to it (`relation_rows`).

Node rows come with each batch, and the caller takes the optimizer's step of them with what `gradients`
returns; relation rows are few, stay on the model's device and are updated in place before it does.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from weakref import WeakSet

import numpy as np
import torch
from torch import Tensor

from marius_py.arrays import is_float32
from marius_py.errors import ConfigError
from marius_py.nn.batch import Batch
from marius_py.nn.cuda_gradients import device_gradients, takes
from marius_py.nn.cuda_kernels import Kernels, Precision, check_current, choose_kernels
from marius_py.nn.decoders.base import Decoder, queries_of, scores_of
from marius_py.nn.dropout import BatchMasks, check_rate
from marius_py.nn.fused import fused_gradients
from marius_py.nn.fused_compiled import can_compile, compiled_gradients
from marius_py.nn.fused_contrast import find_closed_form
from marius_py.nn.gradients import Gradients, StepInput, autograd_gradients
from marius_py.nn.initializers import Initializer, XavierNormal
from marius_py.nn.kernels.workspace import Workspace
from marius_py.nn.losses import Loss
from marius_py.nn.micro_batches import accumulate, can_split, is_out_of_memory, most_shares
from marius_py.nn.optimizers import SparseOptimizer
from marius_py.nn.regularizers import Regularizer
from marius_py.nn.relation_rows import RelationRows
from marius_py.streams import Purpose, stream
from marius_py.team import ALONE, Team
from marius_py.types import SIDES, Side

log = logging.getLogger(__name__)

INIT_BLOCK = 4096
"""Nodes a random stream: initial rows depend on node ids alone, not on how they are partitioned."""


def clip_rows(gradient: Tensor, longest: float) -> None:
    """Shorten in place the rows of (n, width) gradients whose euclidean norm exceeds `longest`."""
    norms = torch.linalg.vector_norm(gradient, dim=1, keepdim=True)
    gradient.mul_(longest / norms.clamp_min_(longest))


class LinkPredictionModel:
    """A decoder with its relation parameters, loss, sparse optimizer and regularization.

    `gradients` may be called by several threads at once: they are computed side by side, relation rows are
    read and updated one batch at a time.

    Args:
        decoder: scores edges.
        loss: applied to each corrupted side; sides are summed.
        optimizer: of node rows and relation rows.
        num_relations: R, at least 1 (a graph without relations has one).
        reciprocal: keep 2R relation rows; a head is then asked as the tail of relation r + R.
        node_dropout: probability that a coordinate of a node row is dropped, at each use, in [0, 1).
        relation_dropout: likewise for relation rows.
        regularizers: penalties of the rows of a batch's edges.
        clip_norm: longest gradient of a row, node or relation; longer ones are shortened to it. None: any.
        initializer: initial rows of nodes and relations; None: `XavierNormal`.
        device: where relation rows live and batches must lie.
        seed: seed of the initial relation rows.
        fused: compute gradients in closed form where decoder and loss allow; False always uses autograd.
        kernels: "auto", "triton" or "torch", what computes batches on a device (see `choose_kernels`); on the
            cpu, "auto" is the blocked closed form.
        precision: of the products of Triton's kernels: float32, tf32 or bfloat16.
        compiled: use loops compiled with Numba on the CPU where there are any; its optimizer and regularizers
            then do too.

    Raises:
        ConfigError: a setting is out of range, or kernels would run on another device than the model's.
    """

    def __init__(
        self,
        decoder: Decoder,
        loss: Loss,
        optimizer: SparseOptimizer,
        *,
        num_relations: int = 1,
        reciprocal: bool = False,
        node_dropout: float = 0.0,
        relation_dropout: float = 0.0,
        regularizers: Sequence[Regularizer] = (),
        clip_norm: float | None = None,
        initializer: Initializer | None = None,
        device: torch.device | str = "cpu",
        seed: int = 0,
        fused: bool = True,
        kernels: str = "auto",
        precision: Precision = "float32",
        compiled: bool = True,
    ) -> None:
        if num_relations < 1:
            raise ConfigError(f"num_relations is {num_relations}; a graph has at least 1 relation")
        self.decoder = decoder
        self.loss = loss
        self.optimizer = optimizer
        self.num_relations = num_relations
        self.reciprocal = bool(reciprocal)
        self.node_dropout = check_rate("model.node_dropout", node_dropout)
        self.relation_dropout = check_rate("model.relation_dropout", relation_dropout)
        self.regularizers = tuple(regularizers)
        for regularizer in self.regularizers:
            regularizer.compiled = bool(compiled)
        if clip_norm is not None and not (clip_norm > 0 and is_float32(clip_norm)):
            raise ConfigError(
                f"training.clip_norm is {clip_norm!r}; it must be a finite number of float32 above 0"
            )
        self.clip_norm = clip_norm
        self.initializer = XavierNormal() if initializer is None else initializer
        self.device = torch.device(device)
        self.fused = bool(fused)
        self.compiled = bool(compiled)
        self.optimizer.compiled = self.compiled
        on_device = self.device.type != "cpu" or kernels != "auto"
        self.kernels: Kernels | None = (
            choose_kernels(str(self.device), kernels, precision) if on_device else None
        )
        if self.kernels is not None and not self.kernels.waits:
            check_current(self.device)  # kernels are chosen once, and another may be current since
        self._parts = 1
        self._local = threading.local()
        self._workspaces: WeakSet[Workspace] = WeakSet()
        self._workspaces_lock = threading.Lock()
        rows = np.empty((num_relations * (2 if reciprocal else 1), decoder.relation_dim), np.float32)
        rng = stream(seed, Purpose.INIT_RELATIONS)
        decoder.init_relations(rows, rng, self.initializer)
        state = np.empty((len(rows), optimizer.state_dim(rows.shape[1])), np.float32)
        optimizer.init_state(state)
        self._relations = RelationRows(
            rows,
            state,
            optimizer,
            num_relations=num_relations,
            device=self.device,
            takes_all=self.kernels is not None,
            kernels=self.kernels,
        )

    @property
    def dim(self) -> int:
        """Embedding width D."""
        return self.decoder.dim

    @property
    def node_state_dim(self) -> int:
        """Optimizer-state width S of a node row."""
        return self.optimizer.state_dim(self.decoder.dim)

    def init_nodes(self, out: np.ndarray, start_id: int, seed: int) -> None:
        """Fill the initial rows of nodes start_id … start_id + n, the same whatever the ranges asked for.

        Args:
            out: (n, D) float32, filled in place.
            start_id: id of the first node.
            seed: the run's seed.
        """
        stop = start_id + len(out)
        block = np.empty((INIT_BLOCK, self.dim), np.float32)
        for first in range(start_id - start_id % INIT_BLOCK, stop, INIT_BLOCK):
            rng = stream(seed, Purpose.INIT_NODES, first // INIT_BLOCK)
            self.decoder.init_rows(block, rng, self.initializer)
            low, high = max(first, start_id), min(first + INIT_BLOCK, stop)
            out[low - start_id : high - start_id] = block[low - first : high - first]

    def init_node_state(self, out: np.ndarray) -> None:
        """Fill (n, S) float32 with the optimizer state of untrained nodes."""
        self.optimizer.init_state(out)

    def gradients(self, batch: Batch, team: Team = ALONE) -> Gradients:
        """Loss and gradients of one batch; relation rows are updated before it returns.

        Args:
            batch: on the model's device; it is not changed.
            team: whose members share in the batch on the CPU; into how many parts it is cut is all that its
                size changes.

        Returns:
            Those of the node rows, for the caller's step, perhaps in scratch that the thread's next batch
            overwrites. A loss that is not finite says that training diverged; it is not checked here, since
            that would make a device wait.
        """
        with torch.no_grad():
            sides = [side for side in SIDES if side in batch.negatives]
            index, taken = self._relations.index(batch.relation, sides)
            relations = self._relations.take(taken)
            gradients = self._gradients_that_fit(batch, relations, index, team)
            if (longest := self.clip_norm) is not None:
                clip_rows(gradients.relations, longest)
                rows = gradients.rows
                team.share(len(rows), lambda part: clip_rows(rows[part], longest), "compute")
            self._relations.update(taken, gradients.relations, batch.rate, index)
        return gradients

    @property
    def is_recordable(self) -> bool:
        """Whether gradients are asked of a CUDA device by the same launches for all batches of a shape.

        No more once a batch had to be cut in parts, since joining them waits for the device.
        """
        if self.kernels is None or self.kernels.waits or self.device.type != "cuda" or self._parts > 1:
            return False
        form = find_closed_form(self.decoder, self.loss, self.device.type) if self.fused else None
        is_the_same = self.node_dropout == 0 and self.relation_dropout == 0
        return takes(form) and is_the_same and self._relations.takes_all

    @property
    def workspace_bytes(self) -> int:
        """Bytes of the scratch buffers of all threads that have computed batches."""
        with self._workspaces_lock:
            workspaces = list(self._workspaces)
        return sum(workspace.size_bytes for workspace in workspaces)

    def _workspace(self) -> Workspace:
        """Scratch buffers of the calling thread."""
        if not hasattr(self._local, "workspace"):
            self._local.workspace = Workspace(self.device, self.compiled)
            with self._workspaces_lock:
                self._workspaces.add(self._local.workspace)
        workspace: Workspace = self._local.workspace
        return workspace

    def _gradients_that_fit(
        self, batch: Batch, relations: Tensor, index: dict[Side, Tensor], team: Team
    ) -> Gradients:
        """Gradients of the batch at once, or in as many parts as the team and memory ask for.

        What memory asked for once later batches get as well.
        """

        def given() -> StepInput:
            masks = self._masks(batch, self._workspace())
            return StepInput(batch, relations, index, masks, self.reciprocal)

        def of_part(part: Callable[[], StepInput]) -> Gradients:
            with torch.no_grad():  # which is each thread's own affair
                return self._gradients(part, (), self._workspace())

        shares = min(team.size, most_shares(batch))
        while True:
            parts = min(max(self._parts, shares), len(batch.head)) if can_split(batch, 1) else 1
            try:
                if parts == 1:
                    return self._gradients(given, self.regularizers, self._workspace())
                return accumulate(given, of_part, self.decoder, self.regularizers, parts, team)
            except Exception as error:
                more = min(2 * parts, len(batch.head))
                if not is_out_of_memory(error) or more == parts or not can_split(batch, more):
                    raise
                if self.device.type == "cuda" and torch.cuda.is_current_stream_capturing():
                    raise  # neither freeing memory nor computing in parts can be recorded
            # Here, not above: as long as the error lives, so do the tensors of its frames.
            self._free_memory()
            self._halve(more)

    def _halve(self, parts: int) -> None:
        level = logging.WARNING if self._parts == 1 else logging.INFO
        self._parts = max(self._parts, parts)
        log.log(
            level,
            "out of memory: batches are computed in %d parts from here on, with the same result; "
            "a smaller training.batch_size or negatives.count would be faster",
            self._parts,
        )

    def _free_memory(self) -> None:
        self._local.__dict__.pop("workspace", None)
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    def _gradients(
        self, given: Callable[[], StepInput], regularizers: Sequence[Regularizer], workspace: Workspace
    ) -> Gradients:
        """By the closed form if there is one and its numbers are finite, else by autograd."""
        form = find_closed_form(self.decoder, self.loss, self.device.type) if self.fused else None
        inputs = given()
        if form is not None:
            if self.kernels is not None and takes(form):
                return device_gradients(form, regularizers, inputs, self.kernels)
            chunks = {corruption.nodes.shape[0] for corruption in inputs.batch.negatives.values()}
            while form is not None and len(chunks) == 1:
                compiled = can_compile(form, inputs, workspace)
                compute = compiled_gradients if compiled else fused_gradients
                gradients = compute(form, regularizers, inputs, workspace)
                if bool(torch.isfinite(gradients.loss)):
                    return gradients
                form, inputs = form.steadier(), given()  # the masks of the first are used up
        return autograd_gradients(self.decoder, self.loss, regularizers, inputs)

    def _masks(self, batch: Batch, workspace: Workspace) -> BatchMasks:
        return BatchMasks(
            batch.seed,
            len(batch.head),
            {side: corruption.nodes.numel() for side, corruption in batch.negatives.items()},
            (self.decoder.dim, self.decoder.relation_dim),
            (self.node_dropout, self.relation_dropout),
            workspace,
        )

    def queries(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Queries for ranking, without dropout.

        Args:
            anchors: (Q, D) rows of the known ends.
            relations: (Q,) int64 relation ids, below R.
            side: the end to rank.

        Returns:
            (Q, D).
        """
        with torch.no_grad():
            rows, asked = self._relations.of_queries(relations, side)
            return queries_of(self.decoder, anchors, rows, asked)

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Scores (1, Q, K) of queries (1, Q, D) with candidate rows (1, K, D); higher is better."""
        with torch.no_grad():
            return scores_of(self.decoder, query, candidates)

    @property
    def relation_bytes(self) -> int:
        """Bytes of the relation rows and their optimizer state."""
        return self._relations.nbytes

    def state_arrays(self, *, copy: bool = True) -> dict[str, np.ndarray]:
        """The relation rows and their optimizer state, for a checkpoint.

        Args:
            copy: False: on the CPU they may be the model's own memory, for as long as no batch runs.
        """
        return self._relations.arrays(copy=copy)

    def load_state_arrays(self, arrays: Mapping[str, np.ndarray]) -> None:
        """Take over what `state_arrays` returned.

        Raises:
            ConfigError: an array is missing or has another shape than this model's.
        """
        self._relations.load(arrays)
