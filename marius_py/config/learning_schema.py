"""Settings of `marius-train` of what is learned and how (floor 5): model, negatives, optimizer, epochs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from marius_py.config import rates
from marius_py.config.fields import Component, section, setting
from marius_py.config.sections import Checked
from marius_py.errors import ConfigError
from marius_py.types import MAX_SEED

EVEN_WIDTH = ("complex", "rotate")
"""Registered decoders whose rows are complex numbers: real parts, then imaginary parts."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig(Checked):
    """The score function and its parameters."""

    PREFIX: ClassVar[str] = "model"

    decoder: Component = setting(
        Component("complex"),
        "score function: dot, distmult, complex, transe, rotate, rescal or a class of yours",
        registry="DECODERS",
    )
    dim: int = setting(
        128, "width of a node's embedding; even for complex and rotate", unit="floats a node", low=1
    )
    reciprocal: bool = setting(True, "learn a second embedding of each relation for ranking heads")
    node_dropout: float | None = setting(
        None,
        "share of a node row's entries zeroed in training; null = 0.3 for complex and distmult with a loss "
        "other than softmax, else 0",
        unit="probability",
        low=0.0,
        below=1.0,
    )
    relation_dropout: float | None = setting(
        None,
        "share of a relation row's entries zeroed in training; null = 0.2 where node_dropout would be 0.3, "
        "else 0",
        unit="probability",
        low=0.0,
        below=1.0,
    )
    init: Component = setting(
        Component("xavier_normal"),
        "initial embeddings: normal, uniform, xavier_normal, xavier_uniform or a class",
        registry="INITIALIZERS",
    )

    def check(self) -> None:
        """Widths that the registered decoders cannot split into real and imaginary parts are refused."""
        if self.decoder.target in EVEN_WIDTH and self.dim % 2:
            raise ConfigError(
                f"model.dim={self.dim} is odd: model.decoder={self.decoder.target} stores real and imaginary "
                f"parts, so model.dim must be even (say {self.dim + 1})"
            )


@dataclass(frozen=True, kw_only=True)
class NegativesConfig(Checked):
    """Negatives: corrupted ends, drawn from the resident nodes and shared by the edges of a chunk."""

    PREFIX: ClassVar[str] = "negatives"

    count: int = setting(500, "negatives of each chunk on each side", unit="nodes", low=1)
    count_head: int | None = setting(None, "negatives that replace heads; null = count", unit="nodes", low=1)
    count_tail: int | None = setting(None, "negatives that replace tails; null = count", unit="nodes", low=1)
    chunks: int = setting(
        1, "chunks of a batch, each with its own negatives; divides training.batch_size", low=1
    )
    degree_fraction: float = setting(
        0.0, "share of negatives drawn by degree instead of uniformly", unit="share", low=0.0, high=1.0
    )
    sampler: Component = setting(
        Component("degree"),
        "degree (by degree_fraction, the rest uniform), uniform, all (resident nodes) or a class",
        registry="SAMPLERS",
    )
    mask_known: bool = setting(
        True,
        "leave out negatives that form a known training edge; where over 16 million lie between the "
        "partitions in the buffer, those of the block of edges at hand only",
    )
    weigh: bool = setting(True, "let resident negatives count so that they stand for the whole graph")
    per_question: bool = setting(
        False,
        "let a known end and relation count once, however many edges answer (K-vs-all); for at most 16 "
        "million edges between the partitions in the buffer",
    )


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig(Checked):
    """How the learning rate changes over the run: a factor of optimizer.lr for each batch."""

    PREFIX: ClassVar[str] = "optimizer.schedule"

    name: Literal["constant", "linear", "cosine", "plateau"] = setting(
        "constant", "shape after the warm-up; plateau = by validation MRR, linear and cosine = by edges seen"
    )
    warmup: float = setting(0.0, "epochs in which the rate rises from 0", unit="epochs", low=0.0)
    floor: float = setting(0.0, "the least factor after the warm-up", unit="factor", low=0.0, high=1.0)
    reduction: float = setting(
        0.5, "plateau: what the rate is multiplied by each time", unit="factor", above=0.0, below=1.0
    )
    patience: int = setting(
        1, "plateau: validations without a new best that are let pass", unit="validations", low=0
    )


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Checked):
    """The row optimizer, whose state is stored and paged with the rows; other keys go to its class."""

    PREFIX: ClassVar[str] = "optimizer"
    SPREAD: ClassVar[str] = "arguments"

    name: str = setting(
        "adagrad",
        "adagrad, adagrad_row, adam, sgd or the dotted path of a class of yours",
        registry="OPTIMIZERS",
    )
    lr: float | None = setting(
        None,
        f"learning rate; null = {rates.IN_WORDS}",
        unit="step size",
        above=0.0,
    )
    schedule: ScheduleConfig = section(ScheduleConfig)
    arguments: Mapping[str, Any] = setting(None, "further arguments of the optimizer's class")

    def __post_init__(self) -> None:
        arguments = dict(self.arguments or {})
        if "_target_" in arguments:
            object.__setattr__(self, "name", arguments.pop("_target_"))
        object.__setattr__(self, "arguments", arguments)
        super().__post_init__()


@dataclass(frozen=True, kw_only=True)
class RegularizerConfig(Checked):
    """Penalties on the rows of a batch, added to the loss with these weights."""

    PREFIX: ClassVar[str] = "training.regularizer"

    n3: float | None = setting(
        None,
        "weight of the cubed absolute values (N3) of node rows; null = 0.1 for complex, distmult and rescal, "
        "1 for dot, with the softmax loss (half with per_question), to twice that in long runs on few edges "
        "a node (but for dot), less in few epochs, unless dropout or l2 is above 0; else 0",
        unit="weight",
        low=0.0,
        float32=True,
    )
    n3_relation: float | None = setting(
        None,
        "the same for relation rows; null = n3, and where that is null, too, less in graphs of over 15,000 "
        "nodes",
        unit="weight",
        low=0.0,
        float32=True,
    )
    l2: float = setting(0.0, "weight of the squares (L2) of node rows", unit="weight", low=0.0, float32=True)
    l2_relation: float | None = setting(
        None, "the same for relation rows; null = l2", unit="weight", low=0.0, float32=True
    )
    weighted: bool = setting(True, "count a row once for each of its edges in the batch, not once a batch")
    n3_automatic: bool = field(default=False)
    """Noted by the program, no setting: n3 was null when the run began, and its number has been filled in."""
    n3_relation_automatic: bool = field(default=False)
    """The same of n3_relation."""


@dataclass(frozen=True, kw_only=True)
class TrainingConfig(Checked):
    """How long and in what portions."""

    PREFIX: ClassVar[str] = "training"

    epochs: int = setting(
        20, "passes over the training edges, in all, resumed ones included", unit="epochs", low=1
    )
    batch_size: int = setting(rates.BATCH_SIZE, "edges of a batch", unit="edges", low=1)
    seed: int = setting(0, "seed of every random draw of the run", low=0, high=MAX_SEED)
    valid_every: int = setting(5, "epochs between validations; 0 = never", unit="epochs", low=0)
    patience: int | None = setting(
        None,
        "validations in a row without a new best MRR after which the run ends; null = never",
        unit="validations",
        low=1,
    )
    clip_norm: float | None = setting(
        None,
        "longest gradient of a row; longer ones are shortened; null = any",
        unit="norm",
        above=0.0,
        float32=True,
    )
    regularizer: RegularizerConfig = section(RegularizerConfig)
