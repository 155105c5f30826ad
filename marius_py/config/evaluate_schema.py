"""The settings of `marius-evaluate` as a frozen dataclass (floor 5): default, unit and range of every key."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from marius_py.config.fields import MEBIBYTE, section, setting
from marius_py.config.prepare_schema import ReadingConfig
from marius_py.config.sections import Checked
from marius_py.errors import ConfigError
from marius_py.types import MAX_SEED, MAX_THREADS


@dataclass(frozen=True, kw_only=True)
class EvaluateConfig(Checked):
    """All settings of `marius-evaluate`, by their keys: `EvaluateConfig(run="runs/mine")`."""

    run: str = setting("???", "folder of a run", path=True)
    compare: tuple[str, ...] = setting(
        (), "folders of further runs, ranked alike and shown beside it", path=True
    )
    graph: str | None = setting(
        None, "the prepared graph, if it has moved since training; null = where it was", path=True
    )
    split: Literal["train", "valid", "test"] = setting("test", "edges to rank")
    edges: str | None = setting(
        None, "file of edges by name (TSV, CSV, Parquet, NumPy) to rank instead of a split", path=True
    )
    among: str | None = setting(
        None, "file of names, one a line, or Parquet: rank only among these nodes; null = all", path=True
    )
    mode: Literal["full", "sampled"] = setting(
        "full", "rank against all nodes (full) or a random sample (sampled)"
    )
    ks: tuple[int, ...] = setting((1, 3, 10), "the k of the Hits@k to report", unit="ranks", low=1)
    candidates: int = setting(1000, "candidates a query when mode=sampled", unit="nodes", low=1)
    max_edges: int | None = setting(
        None, "rank a random sample of so many edges; null = all", unit="edges", low=1
    )
    seed: int = setting(0, "seed of the samples", low=0, high=MAX_SEED)
    details: bool = setting(False, "also figures by relation, category of relation and degree of the answer")
    ranks: str | None = setting(
        None, "file for the rank of every edge and side, .csv or .parquet; null = none", path=True
    )
    memory_bytes: int = setting(
        256 * MEBIBYTE, "bound of the evaluator's working memory", unit="bytes", low=MEBIBYTE
    )
    precision: Literal["float32", "bfloat16"] = setting(
        "float32", "of queries and candidates; bfloat16 is faster where processors have units for it"
    )
    device: Literal["auto", "cpu", "cuda"] = setting("auto", "where scores are computed")
    compute_threads: int | None = setting(
        None,
        "threads of the numeric kernels; null = the cores that the process may use",
        unit="threads",
        low=1,
        high=MAX_THREADS,
    )
    output: str | None = setting(
        None,
        "JSON file for the metrics; null = print only, with -m metrics.json in the folder of each job",
        path=True,
    )
    input: ReadingConfig = section(ReadingConfig)

    def check(self) -> None:
        """A run has to be named; a sample is of all nodes; ranks of several would need several files."""
        if self.run == "???":
            raise ConfigError("run is missing: give run=RUN, the folder that marius-train wrote")
        if self.among is not None and self.mode == "sampled":
            raise ConfigError(
                f"among={self.among} beside mode=sampled, whose sample is of all nodes: leave out one of them"
            )
        if self.compare and self.ranks is not None:
            raise ConfigError(
                f"ranks={self.ranks} is for a single run: leave out compare, or ranks, and ask for each run's"
            )
