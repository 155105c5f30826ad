"""Predictions by name (floor 4): names with one left out in, ranked answers with names out."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from marius_py.errors import ConfigError
from marius_py.evaluation.evaluator import DEFAULT_MEMORY_BYTES
from marius_py.evaluation.ranking.candidates import Ids
from marius_py.evaluation.ranking.scorer import similarity_of
from marius_py.given import check_flags
from marius_py.predict.calibration import fit_temperature
from marius_py.predict.chosen import Competitors, competitors
from marius_py.predict.completion import (
    check_k,
    check_memory,
    complete_nodes,
    has_self,
    score_edges,
)
from marius_py.predict.finite import not_finite, odd_relations, tell_left_out
from marius_py.predict.queries import Place, Queries, names_of, numbered
from marius_py.predict.relations import complete_relations
from marius_py.predict.topk import TopK
from marius_py.run_files.given_names import Name, Names
from marius_py.run_files.reader import RunReader, check_open
from marius_py.types import Progress

logger = logging.getLogger(__name__)

_ANSWER_BYTES = 512
"""What an answer takes at most, with its names and as a line of a file."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One answer to a query.

    Attributes:
        query: number of the query, from 0.
        head, relation, tail: names; the one that was asked for is the answer.
        rank: place among the answers, from 1; of a given triple 1.
        score: the model's score, higher is better.
        probability: softmax over all competing answers; None unless asked for.
    """

    query: int
    head: str
    relation: str
    tail: str
    rank: int
    score: float
    probability: float | None = None


def predict(
    run: RunReader,
    head: Names = None,
    relation: Names = None,
    tail: Names = None,
    *,
    k: int = 10,
    among: Iterable[Name] | None = None,
    filter_known: bool = False,
    allow_self: bool | None = None,
    probabilities: bool = False,
    temperature: float | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
) -> list[Prediction]:
    """Complete edges: of head, relation and tail the one left out is predicted, exact over all candidates.

    Several queries are asked at once by lists; they may leave out different parts, and share passes over the
    embeddings. A query that leaves out nothing gets its score. In a graph without relations the relation is
    never asked for.

    Args:
        run: an open run.
        head: name or names of heads.
        relation: name or names of relations.
        tail: name or names of tails.
        k: answers a query.
        among: names of the nodes that may be answers, as all of one type; None: all.
        filter_known: leave out answers that make an edge of the train, valid or test split.
        allow_self: whether the node of a query may be its answer. None: yes, unless the graph has neither
            relations nor self-loops; a dot product would offer the node itself first there.
        probabilities: also softmax over all answers that compete: with `filter_known` without the known ones.
        temperature: of that softmax, above 0; None: fitted to validation edges, or 1 if there are none.
        memory_bytes: bound of the working memory, at least 16 MiB; the answers themselves are beside it.
        progress: called with (work done, work in all).

    Returns:
        Answers by query and rank; fewer than k where there are no more candidates, and none to a query whose
        node or relation has an embedding that is not finite (logged).

    Raises:
        ConfigError: an unknown name (similar ones are offered), a query that leaves out more than one part,
        or none with `probabilities`, or asks for no node with `among`, a temperature without `probabilities`
        or not above 0, or a wrong k or bound.
        StorageError: reading failed.
    """
    options: dict[str, Any] = {
        "k": k,
        "among": among,
        "filter_known": filter_known,
        "allow_self": allow_self,
        "probabilities": probabilities,
        "temperature": temperature,
        "memory_bytes": memory_bytes,
        "progress": progress,
    }
    return list(chain.from_iterable(predict_in_blocks(run, head, relation, tail, **options)))


def predict_in_blocks(
    run: RunReader,
    head: Names = None,
    relation: Names = None,
    tail: Names = None,
    *,
    k: int = 10,
    among: Iterable[Name] | None = None,
    filter_known: bool = False,
    allow_self: bool | None = None,
    probabilities: bool = False,
    temperature: float | None = None,
    memory_bytes: int = DEFAULT_MEMORY_BYTES,
    progress: Progress | None = None,
    block: int | None = None,
    place: Place = numbered,
) -> Iterator[list[Prediction]]:
    """As `predict`, the answers to at most `block` queries at a time (None: all), and to fewer where
    `memory_bytes` would not hold them.

    Names and options are checked before a temperature is fitted and before the first block is answered.
    `place` says what messages call a query.
    """
    check_open(run)
    check_flags(filter_known=filter_known, probabilities=probabilities)
    if allow_self is not None:
        check_flags(allow_self=allow_self)
    queries = Queries(run, head, relation, tail, place)
    check_k(k)
    check_memory(memory_bytes)
    source = competitors(run, among)
    others = np.flatnonzero((queries.asked != 0) & (queries.asked != 2))
    if among is not None and others.size:
        raise ConfigError(
            f"{place(int(others[0]))} asks for no node, and among says which nodes may be answers; leave out "
            "among, or that query"
        )
    allow_self = has_self(run) if allow_self is None else allow_self
    if temperature is not None:
        temperature = _checked_temperature(temperature, probabilities)
    beta = None
    if probabilities:
        whole = queries.asks("nothing")
        if whole.size:
            raise ConfigError(
                f"{place(int(whole[0]))} leaves out nothing, and probabilities compare answers; leave head, "
                "relation or tail out of each query"
            )
        if temperature is None:
            temperature = _fitted(run, filter_known, allow_self, memory_bytes)
        beta = 1 / temperature
    count = len(queries.names)
    if block is not None:
        most = min(k, max(run.num_nodes, run.graph.num_relations))
        block = max(1, min(block, memory_bytes // (_ANSWER_BYTES * most)))
    odd: list[int] = []
    undefined: list[int] = []
    for start in range(0, count, block or max(count, 1)):
        stop = count if block is None else min(start + block, count)
        found = _best(
            run,
            queries,
            range(start, stop),
            k,
            source=source,
            filter_known=filter_known,
            allow_self=allow_self,
            beta=beta,
            memory_bytes=memory_bytes,
            progress=progress,
        )
        without = _without_numbers(run, queries, found)
        odd += without
        if similarity_of(run.model.decoder) is None:  # else a node without numbers is meant
            nan = {one for numbers, best in found for one in numbers[best.undefined].tolist()}
            undefined += sorted(nan.difference(without))
        yield _named(run, queries, found)
    if odd:
        logger.warning(
            "%s%s: the embedding of a given name is not finite, and so no answer has a score",
            place(min(odd)),
            f" and {len(odd) - 1} more" if len(odd) > 1 else "",
        )
    if undefined:
        logger.warning(
            "%s%s: some scores are NaN, which are no answers: look for roots, logarithms and divisions in "
            "model.decoder",
            place(undefined[0]),
            f" and {len(undefined) - 1} more" if len(undefined) > 1 else "",
        )


def _checked_temperature(temperature: float, probabilities: bool) -> float:
    """The temperature as a float; ConfigError if it is no number above 0, or if nothing would use it."""
    is_number = isinstance(temperature, (int, float, np.integer, np.floating))
    try:
        value = math.nan if not is_number or isinstance(temperature, bool) else float(temperature)
    except OverflowError:  # an integer beyond all floats
        value = math.inf
    if not 0 < value < math.inf:
        raise ConfigError(f"temperature is {temperature!r}; allowed: a number above 0 that a float can hold")
    if not probabilities:
        raise ConfigError(
            f"temperature is {temperature!r}, but is of probabilities only: give probabilities=True too, "
            "or leave it out"
        )
    return value


def _best(
    run: RunReader,
    queries: Queries,
    block: range,
    k: int,
    *,
    source: Competitors,
    filter_known: bool,
    allow_self: bool,
    beta: float | None,
    memory_bytes: int,
    progress: Progress | None,
) -> list[tuple[Ids, TopK]]:
    """Numbers of the queries of a block and their best answers, in groups by what is asked for."""
    ids, found = queries.ids, []
    nodes = np.sort(np.concatenate([queries.asks(part, block) for part in ("head", "tail")]))
    if nodes.size:
        is_head = queries.asked[nodes] == 0
        best = complete_nodes(
            run,
            np.where(is_head, ids[nodes, 2], ids[nodes, 0]),
            ids[nodes, 1],
            is_head,
            k,
            source=source,
            filter_known=filter_known,
            allow_self=allow_self,
            beta=beta,
            memory_bytes=memory_bytes,
            progress=progress,
        )
        found.append((nodes, best))
    pairs = queries.asks("relation", block)
    if pairs.size:
        best = complete_relations(
            run,
            ids[pairs, 0],
            ids[pairs, 2],
            k,
            filter_known=filter_known,
            beta=beta,
            memory_bytes=memory_bytes,
        )
        found.append((pairs, best))
        odd = odd_relations(run)[: run.graph.num_relations]
        if odd.any():
            first = run.relation_names[int(odd.int().argmax())]
            tell_left_out(run, "relations", int(odd.sum()), odd.numel(), first)
    given = queries.asks("nothing", block)
    if given.size:
        scores = score_edges(run, ids[given], memory_bytes=memory_bytes)
        best = TopK(np.zeros((given.size, 1), np.int64), scores[:, None], None, np.isnan(scores))
        found.append((given, best))
    return found


def _named(run: RunReader, queries: Queries, found: list[tuple[Ids, TopK]]) -> list[Prediction]:
    """Answers as names, by query and rank."""
    asks_relation = any((queries.asked[numbers] == 1).any() for numbers, _ in found)
    relations = run.relation_names if asks_relation else []
    asks_node = [best.ids[queries.asked[numbers] != 1].reshape(-1) for numbers, best in found]
    nodes = names_of(run, np.concatenate(asks_node)) if asks_node else {}
    answers = []
    for numbers, best in found:
        for row, number in enumerate(numbers.tolist()):
            asked = int(queries.asked[number])
            for rank, (answer, value) in enumerate(
                zip(best.ids[row].tolist(), best.scores[row].tolist(), strict=True), 1
            ):
                if answer < 0:
                    break
                names = list(queries.names[number])
                if asked >= 0:
                    names[asked] = relations[answer] if asked == 1 else nodes[answer]
                share = None if best.probabilities is None else float(best.probabilities[row, rank - 1])
                answers.append(Prediction(number, *map(str, names), rank, value, share))  # type: ignore[call-arg, arg-type]
    return sorted(answers, key=lambda one: (one.query, one.rank))


def _without_numbers(run: RunReader, queries: Queries, found: list[tuple[Ids, TopK]]) -> list[int]:
    """Queries without a finite score for a node or relation whose embedding is not finite."""
    odd: list[int] = []
    for numbers, best in found:
        suspects = numbers[~np.isfinite(best.scores[:, 0])]
        nodes, relations = queries.ids[suspects, ::2], queries.ids[suspects, 1]
        wrong = not_finite(run, nodes.reshape(-1)).reshape(nodes.shape).any(1)
        rows = run.model.relations
        if suspects.size and rows.shape[0]:
            # A reciprocal run has a second row for each relation, in the second half.
            unfit = odd_relations(run).reshape(1 + run.model.reciprocal, -1).any(0).numpy()
            wrong |= (relations >= 0) & unfit[relations]
        odd += suspects[wrong].tolist()
    return odd


def _fitted(run: RunReader, filter_known: bool, allow_self: bool, memory_bytes: int) -> float:
    if not run.graph.num_edges.get("valid"):
        logger.warning("the graph has no valid edges to fit a temperature to: probabilities are of T = 1")
        return 1.0
    return fit_temperature(
        run, filter_known=filter_known, allow_self=allow_self, memory_bytes=memory_bytes
    ).temperature
