"""The settings of `marius-train` as frozen dataclasses (floor 5): default, unit and range of every key.

In: keyword arguments, or nested plain values through `sections.build`. Out: objects whose every value has
been checked, so that nothing below needs to check it again. No torch, no hydra.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from marius_py.config import rates
from marius_py.config.fields import MEBIBYTE, Component, section, setting
from marius_py.config.learning_schema import ModelConfig, NegativesConfig, OptimizerConfig, TrainingConfig
from marius_py.config.machine_schema import OrderingConfig, PipelineConfig, StorageConfig, check_order
from marius_py.config.sections import Checked
from marius_py.errors import ConfigError


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
    """All settings of `marius-train`: what `load_config` makes and `dataclasses.replace` changes."""

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
