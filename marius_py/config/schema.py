"""The settings of `marius-train` as frozen dataclasses (floor 5): default, unit and range of every key.

In: keyword arguments, or nested plain values through `sections.build`. Out: objects whose every value has
been checked, so that nothing below needs to check it again. No torch, no hydra.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

from marius_py.config import rates
from marius_py.config.fields import MEBIBYTE, Component, section, setting
from marius_py.config.sections import Checked
from marius_py.errors import ConfigError
from marius_py.types import MAX_PARTITIONS, MAX_SEED, MAX_THREADS

EVEN_WIDTH = ("complex", "rotate")
"""Registered decoders whose rows are complex numbers: real parts, then imaginary parts."""

ORDERS = (
    "auto",
    "optimal",
    "cyclic",
    "beta",
    "comet",
    "hilbert",
    "hilbert_symmetric",
    "sequential",
    "random",
)
"""Orderings by name; the same as `marius_py.ordering` knows, listed here so that help imports nothing."""

MOST_OPTIMAL = 16
"""Most partitions for which `marius_py.ordering` holds an optimal order."""

MAX_ROUNDS = 64
"""Most passes of an epoch through the partitions, as `marius_py.ordering` allows."""


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


AUTO = "auto"
"""Of partitions and capacity: what `assembly.planned` replaces by numbers when a run starts."""


@dataclass(frozen=True, kw_only=True)
class StorageConfig(Checked):
    """Partitions on disk and in the buffer."""

    PREFIX: ClassVar[str] = "storage"

    partitions: int | Literal["auto"] | None = setting(
        None,
        "partitions of the node table; null = as the graph was prepared; auto = planned for this machine",
        unit="partitions",
        low=1,
        high=MAX_PARTITIONS,
    )
    capacity: int | Literal["auto"] | None = setting(
        None,
        "partitions in the buffer; = partitions: all in memory; null = as many as fit in half of the "
        "available memory at each start; auto = planned once",
        unit="partitions",
        low=1,
    )
    device: Literal["cpu", "cuda"] = setting("cpu", "where the buffer lives")

    def check(self) -> None:
        """The buffer has to hold both ends of a bucket."""
        if isinstance(self.partitions, int) and isinstance(self.capacity, int):
            check_buffer(self.partitions, self.capacity)


@dataclass(frozen=True, kw_only=True)
class OrderingConfig(Checked):
    """The order in which partitions pass through the buffer."""

    PREFIX: ClassVar[str] = "ordering"

    name: str = setting(
        "auto",
        "order of the buffer's states; auto = random where its loads should hide behind training and rounds "
        "are auto too, else the one with the fewest loads; optimal is known for up to "
        f"{MOST_OPTIMAL} partitions",
        choices=ORDERS,
    )
    policy: Literal["spread", "deadline", "eager", "random"] = setting(
        "spread",
        "which of the steps that hold both ends runs a bucket; spread = all of them share it, evenly loaded",
    )
    rounds: int | Literal["auto"] = setting(
        "auto",
        "times an epoch goes through the partitions, each with a share of every bucket; auto = as many as "
        "should hide behind training",
        low=1,
        high=MAX_ROUNDS,
    )

    def check(self) -> None:
        """Only a bucket that is shared has something to run in every round."""
        if self.policy != "spread" and self.rounds not in (AUTO, 1):
            raise ConfigError(
                f"ordering.rounds={self.rounds} goes with ordering.policy=spread, and not with "
                f"{self.policy}, which runs every bucket whole; allowed here: auto, 1"
            )


@dataclass(frozen=True, kw_only=True)
class PipelineConfig(Checked):
    """Stages, threads and staleness."""

    PREFIX: ClassVar[str] = "pipeline"

    mode: Literal["threaded", "inline"] = setting("threaded", "stages in threads, or one after the other")
    max_in_flight: int | None = setting(
        None,
        "batches between gather and write-back: the bound of staleness; 1 = synchronous; null = 2 to 8, by "
        "cores, and by the size and number of an epoch's batches",
        unit="batches",
        low=1,
    )
    compute_threads: int | None = setting(
        None,
        "threads of the numeric kernels; null = the cores that the process may use, within the quota of its "
        "container",
        unit="threads",
        low=1,
        high=MAX_THREADS,
    )
    compute_workers: int | None = setting(
        None,
        "batches that the CPU computes at once, sharing compute_threads, at most max_in_flight; with one in "
        "flight, threads that share in it; null = one for each thread",
        unit="batches",
        low=1,
        high=MAX_THREADS,
    )
    stall_seconds: float | None = setting(
        300.0,
        "how long a stage may make no progress until the run ends and names it; null = for ever",
        unit="seconds",
        above=0.0,
    )
    kernels: Literal["auto", "triton", "torch"] = setting(
        "auto", "what computes batches on a CUDA device; auto = Triton if it is installed"
    )
    precision: Literal["float32", "tf32", "bfloat16"] = setting(
        "tf32",
        "of the products of scores; sums and rows are float32; the CPU takes tf32 for float32, and "
        "bfloat16 too where it has no units for it",
    )
    trace: bool = setting(
        False,
        "write trace.json, a timeline of stages, batches, swaps, reads and writes, for Perfetto or Chrome",
    )


@dataclass(frozen=True, kw_only=True)
class CheckpointConfig(Checked):
    """Commits inside an epoch, besides the one at its end."""

    PREFIX: ClassVar[str] = "checkpoint"

    every_steps: int | None = setting(
        None,
        "steps of the schedule between commits inside an epoch; null = none for that reason",
        unit="steps",
        low=1,
    )
    every_seconds: float | None = setting(
        600.0,
        "seconds between commits inside an epoch; null = none for that reason",
        unit="seconds",
        above=0.0,
    )
    keep: int = setting(
        0, "snapshots of the last epochs to keep, each a run of its own", unit="epochs", low=0
    )
    best: bool = setting(
        False, "keep a snapshot of the epoch with the best validation MRR, and test it at the end"
    )


@dataclass(frozen=True, kw_only=True)
class ValidationConfig(Checked):
    """What is ranked between epochs; early stopping and the best epoch go by it."""

    PREFIX: ClassVar[str] = "evaluation.valid"

    mode: Literal["auto", "full", "edges", "candidates"] = setting(
        "auto",
        "full: all validation edges against all nodes; edges: a fixed sample of them against all nodes; "
        "candidates: against a sample of the nodes; auto: full where cheap, else edges, else candidates",
    )
    share: float = setting(
        0.1,
        "most work of a validation that auto takes, in that of the training between two; 2^30 scores and 500 "
        "edges are always taken",
        above=0.0,
    )
    max_edges: int | None = setting(None, "edges of the sample; null = by share", unit="edges", low=1)
    gap: bool = setting(
        True,
        "after training, rank all validation edges too (evaluation.max_edges of them) and report how far the "
        "sample was off; with evaluation.mode=full",
    )

    def check(self) -> None:
        """A sample's size belongs to a sample."""
        if self.mode == "full" and self.max_edges is not None:
            raise ConfigError(
                f"evaluation.valid.max_edges={self.max_edges} needs a sample: set evaluation.valid.mode to "
                "edges, candidates or auto, or leave it out"
            )


@dataclass(frozen=True, kw_only=True)
class EvaluationConfig(Checked):
    """Link-prediction metrics."""

    PREFIX: ClassVar[str] = "evaluation"

    ks: tuple[int, ...] = setting((1, 3, 10), "the k of the Hits@k to report", unit="ranks", low=1)
    mode: Literal["full", "sampled"] = setting(
        "full", "rank against all nodes (full) or a random sample (sampled)"
    )
    candidates: int = setting(1000, "candidates a query when mode=sampled", unit="nodes", low=1)
    max_edges: int | None = setting(
        None,
        "rank a random sample of so many test edges after training, and of validation edges for the gap; "
        "null = all",
        unit="edges",
        low=1,
    )
    memory_bytes: int = setting(
        256 * MEBIBYTE, "bound of the evaluator's working memory", unit="bytes", low=MEBIBYTE
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32", "of queries and candidates; bfloat16 is faster where processors have units for it"
    )
    valid: ValidationConfig = section(ValidationConfig)


@dataclass(frozen=True, kw_only=True)
class TrainConfig(Checked):
    """All settings of `marius-train`."""

    graph: str | None = setting(None, "folder of a prepared graph; null = the built-in demo graph", path=True)
    output: str | None = setting(
        None, "folder of the run, new or empty; null = runs/ and the date and time", path=True
    )
    resume: bool = setting(False, "go on with the run in output; settings not given are those of that run")
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where batches are computed")
    trackers: tuple[str, ...] = setting(
        (), "who is told of each epoch: csv, tensorboard, mlflow, wandb or classes of yours"
    )
    model: ModelConfig = section(ModelConfig)
    loss: Component = setting(
        Component("softmax"), "softmax, logistic, margin or a class of yours", registry="LOSSES"
    )
    negatives: NegativesConfig = section(NegativesConfig)
    optimizer: OptimizerConfig = section(OptimizerConfig)
    training: TrainingConfig = section(TrainingConfig)
    storage: StorageConfig = section(StorageConfig)
    ordering: OrderingConfig = section(OrderingConfig)
    pipeline: PipelineConfig = section(PipelineConfig)
    checkpoint: CheckpointConfig = section(CheckpointConfig)
    evaluation: EvaluationConfig = section(EvaluationConfig)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.optimizer.lr is None:
            rate = rates.learning_rate(
                self.optimizer.name, self.model.decoder.target, self.training.batch_size
            )
            object.__setattr__(self, "optimizer", replace(self.optimizer, lr=rate))

    @property
    def by_validation(self) -> list[str]:
        """The settings that go by validation MRR, as key=value."""
        found = {
            f"training.patience={self.training.patience}": self.training.patience is not None,
            "optimizer.schedule.name=plateau": self.optimizer.schedule.name == "plateau",
            "checkpoint.best=true": self.checkpoint.best,
        }
        return [key for key, wanted in found.items() if wanted]

    def check(self) -> None:
        """Sections that do not fit together are refused."""
        if self.training.batch_size % self.negatives.chunks:
            raise ConfigError(
                f"negatives.chunks={self.negatives.chunks} does not divide training.batch_size="
                f"{self.training.batch_size}: a batch is cut into equal chunks; take a divisor "
                f"from 1 to {self.training.batch_size}"
            )
        if self.by_validation and not self.training.valid_every:
            raise ConfigError(
                f"{self.by_validation[0]} goes by validation MRR, but training.valid_every=0 turns "
                "validation off: set training.valid_every, in epochs"
            )
        if self.negatives.per_question and self.storage.device == "cuda":
            raise ConfigError(
                "negatives.per_question=true counts answers on the host, not with storage.device=cuda: "
                "set storage.device=cpu, or negatives.per_question=false"
            )
        if self.device == "cpu" and self.storage.device == "cuda":
            raise ConfigError(
                "storage.device=cuda needs the batches there too: set device=cuda (or auto), "
                "or storage.device=cpu"
            )
        partitions, capacity = self.storage.partitions, self.storage.capacity
        if isinstance(partitions, int) and isinstance(capacity, int):
            check_order(self.ordering.name, partitions, capacity)
        if self.resume and self.output is None:
            raise ConfigError("resume=true needs output=RUN, the folder of the run to go on with")


def check_buffer(partitions: int, capacity: int) -> None:
    """Refuse a buffer of `capacity` slots for `partitions` partitions that no schedule exists for.

    Raises:
        ConfigError: capacity > partitions, or capacity < 2 while something has to be swapped.
    """
    if capacity > partitions:
        raise ConfigError(
            f"storage.capacity={capacity} is out of range: it takes at most storage.partitions={partitions} "
            "(then everything is in memory)"
        )
    if capacity < 2 and partitions > capacity:
        raise ConfigError(
            f"storage.capacity={capacity} is out of range: an edge needs the partitions of both its ends, "
            f"so it takes from 2 to storage.partitions={partitions}"
        )


def check_order(name: str, partitions: int, capacity: int) -> None:
    """Refuse an order of that name that is not known for `partitions` partitions, `capacity` in the buffer.

    Raises:
        ConfigError: `ordering.name` is optimal, more than `MOST_OPTIMAL` partitions are swapped.
    """
    if name == "optimal" and capacity < partitions and partitions > MOST_OPTIMAL:
        raise ConfigError(
            f"ordering.name=optimal is known for storage.partitions of up to {MOST_OPTIMAL}, and not for "
            f"{partitions} with storage.capacity={capacity}: set ordering.name=auto, or fewer "
            "storage.partitions"
        )
