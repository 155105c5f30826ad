"""Figures of link prediction (floor 4): counts of better and equal candidates in, metrics out.

Ranks follow from counts: optimistic g + 1, pessimistic g + q, realistic (the default) the mean of the two,
with g strictly better candidates and q equal ones including the true one.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError
from marius_py.evaluation.rank_files import Names, write_ranks
from marius_py.evaluation.ranking.ranker import Counts
from marius_py.given import check_flags
from marius_py.types import SIDES
from marius_py.whole import MAX_INT64, is_whole

PROTOCOL = "filtered, all entities, realistic ties"
SAMPLED = "sampled"
"""First word of the protocol of every figure that does not come from all edges and all candidates."""
DEFAULT_KS = (1, 3, 10)
CATEGORIES = ("1-1", "1-N", "N-1", "N-N")
CATEGORY_THRESHOLD = 1.5


@dataclass(frozen=True, slots=True)
class Figures:
    """Metrics of a set of ranks; equal to others if all of them are, NaN to NaN.

    Attributes:
        mrr: mean 1/rank, realistic ties.
        hits: k → share of realistic ranks ≤ k.
        mean_rank: mean realistic rank.
        amr: adjusted mean rank, Σ rank / Σ (n + 1)/2; 1 for random scores, below for better.
        amri: adjusted mean rank index, 1 − (MR − 1)/(E[MR] − 1): 0 for random scores, 1 for all ranks 1;
            NaN if every answer is its only candidate.
        optimistic_mrr: MRR if the true answer came first among equals.
        pessimistic_mrr: MRR if it came last among equals.
        count: number of ranks.
        head, tail: the same of the ranks of one side, for groups of edges; None where not asked for.
    """

    mrr: float
    hits: Mapping[int, float]
    mean_rank: float
    amr: float
    amri: float
    optimistic_mrr: float
    pessimistic_mrr: float
    count: int
    head: Figures | None = None
    tail: Figures | None = None

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Figures):
            return NotImplemented
        return self.to_json() == other.to_json()  # which has None for NaN

    def to_json(self) -> dict[str, Any]:
        """Flat dictionary: "mrr", "hits@k", "mean_rank", "count", … ; NaN becomes None."""
        values: dict[str, Any] = {"mrr": self.mrr}
        values.update({f"hits@{k}": share for k, share in self.hits.items()})
        values.update(
            mean_rank=self.mean_rank,
            count=self.count,
            amr=self.amr,
            amri=self.amri,
            optimistic_mrr=self.optimistic_mrr,
            pessimistic_mrr=self.pessimistic_mrr,
        )
        values = {
            key: None if isinstance(value, float) and math.isnan(value) else value
            for key, value in values.items()
        }
        for side, part in (("head", self.head), ("tail", self.tail)):
            if part is not None:
                values[side] = part.to_json()
        return values


def figures(counts: Counts, columns: Sequence[int] = (0, 1), ks: Sequence[int] = DEFAULT_KS) -> Figures:
    """Figures of what was ranked of columns (0: heads, 1: tails) of counts (E, 2); NaN if nothing was."""
    chosen = list(columns)
    ranked = counts.ranked[:, chosen]
    better, equal, candidates = (
        values[:, chosen][ranked].astype(np.float64)
        for values in (counts.better, counts.equal, counts.candidates)
    )
    if not better.size:
        nan = math.nan
        return Figures(nan, dict.fromkeys(ks, nan), nan, nan, nan, nan, nan, 0)
    rank = counts.ranks[:, chosen][ranked]
    expected = (candidates + 1) / 2
    excess = float(expected.mean()) - 1
    return Figures(
        mrr=float((1 / rank).mean()),
        hits={k: float((rank <= k).mean()) for k in ks},
        mean_rank=float(rank.mean()),
        amr=float(rank.sum() / expected.sum()),
        amri=1 - (float(rank.mean()) - 1) / excess if excess > 0 else math.nan,
        optimistic_mrr=float((1 / (better + 1)).mean()),
        pessimistic_mrr=float((1 / (better + equal)).mean()),
        count=int(rank.size),
    )


def figures_with_sides(counts: Counts, ks: Sequence[int] = DEFAULT_KS) -> Figures:
    """Figures of counts (E, 2), those of heads and tails within."""
    both, head, tail = side_figures(counts, ks)
    return replace(both, head=head, tail=tail)


@dataclass(frozen=True)
class Metrics:
    """The result of an evaluation; equal to another if all figures are, NaN to NaN.

    Attributes:
        both: figures of both sides together.
        head: figures of ranked heads.
        tail: figures of ranked tails.
        protocol: how candidates were chosen, filtered and ties broken; says "sampled" if it was.
        among: number of the nodes among which alone answers were ranked; None: among all, or a sample.
        categories: "1-1", "1-N", "N-1", "N-N" → figures of the edges of such relations, sides within.
        relations: relation id → figures of its edges, sides within.
        category_of: relation id → its category, "" if train has no edge of it.
        bands: lower bound of degree → figures of answers whose train degree lies in [bound, next bound),
            sides within.
        edges: (E, 3) ranked edges, in order.
        counts: better, equal and filtered candidates of every edge and side, from which ranks follow.
        seconds: wall time.
    """

    both: Figures
    head: Figures
    tail: Figures
    protocol: str
    categories: Mapping[str, Figures] = field(default_factory=dict)
    relations: Mapping[int, Figures] = field(default_factory=dict)
    category_of: Mapping[int, str] = field(default_factory=dict)
    bands: Mapping[int, Figures] = field(default_factory=dict)
    edges: NDArray[np.integer] = field(
        default_factory=lambda: np.zeros((0, 3), dtype=np.int64), repr=False, compare=False
    )
    counts: Counts = field(default_factory=lambda: Counts.empty(0), repr=False, compare=False)
    seconds: float = field(default=0.0, compare=False)
    among: int | None = None

    @property
    def mrr(self) -> float:
        """Mean reciprocal rank of both sides, realistic ties."""
        return self.both.mrr

    @property
    def sampled(self) -> bool:
        """Whether edges or candidates are a sample; the protocol says which."""
        return self.protocol.startswith(SAMPLED)

    @property
    def ranks(self) -> NDArray[np.float64]:
        """Realistic ranks (E, 2); column 0 of the head, column 1 of the tail; NaN for those left out."""
        return self.counts.ranks

    @property
    def left_out(self) -> dict[str, int]:
        """How many heads and tails were not ranked, as they are none of the nodes of `among`."""
        return dict(zip(SIDES, (~self.counts.ranked).sum(axis=0).tolist(), strict=True))

    def to_json(
        self, *, details: bool = False, relation_names: Sequence[str] | None = None
    ) -> dict[str, Any]:
        """Dictionary of a run's result.

        Args:
            details: add the figures by category, relation and degree band.
            relation_names: (R,) names by id, under which the relations stand; None: their ids.
        """
        check_flags(details=details)
        result = self.both.to_json()
        result.update(head=self.head.to_json(), tail=self.tail.to_json(), protocol=self.protocol)
        result["sampled"] = self.sampled
        if self.among is not None:
            result["among"] = {"nodes": self.among, "left_out": self.left_out}
        result["seconds"] = self.seconds
        if details:
            result["categories"] = {name: part.to_json() for name, part in self.categories.items()}
            result["relations"] = {
                str(relation) if relation_names is None else relation_names[relation]: {
                    "category": self.category_of.get(relation),
                    **part.to_json(),
                }
                for relation, part in self.relations.items()
            }
            result["degree_bands"] = {str(bound): part.to_json() for bound, part in self.bands.items()}
        return result

    def write_ranks(
        self,
        path: Path | str,
        *,
        node_names: Names | None = None,
        relation_names: Names | None = None,
        overwrite: bool = False,
    ) -> None:
        """Write a row for every rank: edge, side, rank by each rule for ties, candidates, whether sampled.

        Args:
            path: file to write, .csv or .parquet by its ending; it appears whole or not at all.
            node_names: ids (n,) → their n names; None writes ids.
            relation_names: likewise for relations.
            overwrite: replace it if it exists.

        Raises:
            ConfigError: the file exists, or its name has another ending. StorageError: writing failed.
        """
        write_ranks(
            path,
            self.edges,
            self.counts,
            sampled=self.sampled,
            node_names=node_names,
            relation_names=relation_names,
            overwrite=overwrite,
        )

    def __str__(self) -> str:
        hits = "  ".join(f"hits@{k} {share:.4f}" for k, share in self.both.hits.items())
        return (
            f"MRR {self.both.mrr:.4f}  {hits}  MR {self.both.mean_rank:.1f}  AMRI {self.both.amri:.4f}  "
            f"({self.both.count} ranks; {self.protocol})"
        )


def check_whole(name: str, value: object, low: int = 0) -> int:
    """The argument `name` as int; ConfigError unless it is a whole number from `low` that int64 holds."""
    if not is_whole(value, low):
        raise ConfigError(f"{name} is {value!r}; allowed: a whole number from {low}")
    if value > MAX_INT64:  # a number that may have more digits than Python prints
        raise ConfigError(f"{name} is 2^63 or more; allowed: a whole number from {low} to 2^63 - 1")
    return int(value)


def check_ks(ks: Iterable[int]) -> tuple[int, ...]:
    """Ascending distinct ks of Hits@k; ConfigError unless they are positive integers."""
    values = list(ks) if isinstance(ks, Iterable) else []
    if not values or not all(is_whole(k, 1) for k in values):
        raise ConfigError(f"ks is {values or ks!r}; allowed: whole numbers of at least 1, such as [1, 3, 10]")
    return tuple(sorted({int(k) for k in values}))


def categorize(tails_per_head: NDArray[np.float64], heads_per_tail: NDArray[np.float64]) -> NDArray[np.int64]:
    """Category of each relation as an index into `CATEGORIES`, −1 if it has no train edge.

    Args:
        tails_per_head: (R,) mean tails of a (head, relation) in train; NaN without train edges.
        heads_per_tail: (R,) mean heads of a (relation, tail) in train; NaN without train edges.

    Returns:
        (R,) 0 for 1-1, 1 for 1-N (one head, many tails), 2 for N-1, 3 for N-N.
    """
    category = (tails_per_head >= CATEGORY_THRESHOLD) + 2 * (heads_per_tail >= CATEGORY_THRESHOLD)
    return np.where(np.isnan(tails_per_head) | np.isnan(heads_per_tail), -1, category).astype(np.int64)


def by_category(
    counts: Counts, relations: NDArray[np.integer], category: NDArray[np.int64], ks: Sequence[int]
) -> dict[str, Figures]:
    """Figures by category of the edge's relation; relations unseen in train are in none.

    Args:
        counts: counts of E edges.
        relations: (E,) relation of each edge.
        category: (R,) of `categorize`.
        ks: of Hits@k.
    """
    of_edge = category[relations]
    return {name: figures_with_sides(counts.of(of_edge == i), ks) for i, name in enumerate(CATEGORIES)}


def by_relation(
    counts: Counts, relations: NDArray[np.integer], ks: Sequence[int] = DEFAULT_KS
) -> dict[int, Figures]:
    """Figures by relation (E,), for relations of whose edges an end was ranked."""
    order = np.argsort(relations, kind="stable")
    distinct, starts = np.unique(relations[order], return_index=True)
    groups = np.split(order, starts[1:])
    return {
        int(relation): figures_with_sides(counts.of(group), ks)
        for relation, group in zip(distinct.tolist(), groups, strict=True)
        if counts.ranked[group].any()
    }


def by_degree(
    counts: Counts, degrees: NDArray[np.int64], ks: Sequence[int] = DEFAULT_KS
) -> dict[int, Figures]:
    """Figures by the train degree of the answer, in bands 0, 1, 2–3, 4–7, 8–15, …

    Args:
        counts: counts of E edges.
        degrees: (E, 2) train degree of head and tail; column s belongs to the rank of column s.
        ks: of Hits@k.

    Returns:
        Lower bound of the band → figures, sides within, ascending, bands without answers left out.
    """

    def of(answers: NDArray[np.bool_]) -> Figures:
        parts = (values[answers][:, None] for values in (counts.better, counts.equal, counts.candidates))
        return figures(Counts(*parts), columns=(0,), ks=ks)

    band = np.where(degrees > 0, 1 << np.frexp(np.maximum(degrees, 1))[1].astype(np.int64) - 1, 0)
    result = {}
    for bound in np.unique(band[counts.ranked]).tolist():
        inside = (band == bound) & counts.ranked
        head, tail = (of(inside & side) for side in np.eye(len(SIDES), dtype=bool))
        result[int(bound)] = replace(of(inside), head=head, tail=tail)
    return result


def side_figures(counts: Counts, ks: Sequence[int]) -> tuple[Figures, Figures, Figures]:
    """Figures of both sides together, of heads, of tails."""
    head, tail = (figures(counts, (column,), ks) for column in range(len(SIDES)))
    return figures(counts, ks=ks), head, tail
