"""A finished run, opened for use (floor 4): a run folder in; answers, neighbours, metrics and files out.

What it has learnt is read as `RunReader` does; what is asked of it is answered by the modules that do so.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from marius_py.errors import ConfigError
from marius_py.evaluation.evaluator import DEFAULT_MEMORY_BYTES, Evaluator, Mode
from marius_py.evaluation.metrics import DEFAULT_KS, Metrics, check_whole
from marius_py.evaluation.ranking.ranker import MIN_MEMORY_BYTES
from marius_py.export import export
from marius_py.given import check_flags
from marius_py.predict import Metric, Neighbor, NeighborIndex, Prediction, neighbors, predict, score
from marius_py.predict.chosen import chosen_ids
from marius_py.predict.scores import are_names, edge_ids
from marius_py.run_files.given_names import Name, Names
from marius_py.run_files.reader import RunReader, open_run
from marius_py.storage.protocols import Edges
from marius_py.types import Progress


class Run(RunReader):
    """A run folder; made by `load`. One thread at a time. Use it in a `with` block, or `close` it.

    What is read is the commit that was the last one at the opening. A copy, pickled ones included, is opened
    anew where it is made or unpickled: it reads the last commit of that time, and has its own `close`.
    Whatever reads may raise a StorageError: a ReplacedError once training has replaced what was to be read.

    Attributes:
        path: the run folder, absolute.
        graph: the prepared graph it was trained on.
        model: decoder and relations, on the chosen device.
    """

    def to_parquet(self, path: Path | str, *, overwrite: bool = False) -> list[Path]:
        """Write names and embeddings, and beside them the relations, block by block; see `export`.

        Returns:
            The files written.

        Raises:
            ConfigError: a file exists. StorageError: writing failed.
        """
        return export(self, path, "parquet", overwrite=overwrite)

    def evaluate(
        self,
        split: str = "test",
        mode: Mode = "full",
        *,
        edges: Edges | Any | None = None,
        among: Iterable[Name] | None = None,
        ks: Sequence[int] = DEFAULT_KS,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        seed: int = 0,
        details: bool = False,
        max_edges: int | None = None,
        candidates: int = 1000,
        progress: Progress | None = None,
    ) -> Metrics:
        """Link prediction metrics, embeddings streamed from disk; see `Evaluator.evaluate`.

        Args:
            split: "train", "valid" or "test".
            mode: "full", or "sampled" with half of `candidates` uniform and half by degree.
            edges: to rank instead of a split: triples of names in any iterable or data frame, or an integer
                array (E, 3) of ids, as for `score`.
            among: names of the nodes among which answers are ranked, such as all items, in mode "full"; heads
                and tails that are none of them are left out of all figures. None: all nodes.
            ks: of Hits@k.
            memory_bytes: bound of the working memory, at least 1 MiB.
            seed: of the sample.
            details: also figures by category, relation and degree of the answer.
            max_edges: rank a random subset.
            candidates: nodes a query is ranked against in mode "sampled".
            progress: called with (edges done, edges in all).

        Raises:
            ConfigError: no such split or mode, no edges to rank, none with an end in `among`, an unknown
            name, or a number that is none.
        """
        if not isinstance(split, str):
            raise ConfigError(
                f"split is of type {type(split).__name__}; allowed: train, valid, test; edges of yours are "
                "given as edges="
            )
        if edges is not None and are_names(edges):
            edges = edge_ids(self, edges, what="edges")
        check_flags(details=details)
        check_whole("candidates", candidates, 1)
        check_whole("memory_bytes", memory_bytes, MIN_MEMORY_BYTES)
        check_whole("seed", seed)
        if max_edges is not None:
            check_whole("max_edges", max_edges, 1)
        if edges is not None and not np.asarray(edges).size:
            raise ConfigError(
                "edges is empty: give the edges to rank, as triples of names or as ids (E, 3), or leave it "
                "out for a split"
            )
        ids = None if among is None else chosen_ids(self, among)
        with self.graph.edges() as store:
            evaluator = Evaluator(
                self.model,
                self.nodes,
                store,
                self.num_nodes,
                self.graph.num_relations,
                dim=self.dim,
                memory_bytes=memory_bytes,
                ks=ks,
                seed=seed,
            )
            return evaluator.evaluate(
                split,
                mode,
                edges=edges,
                among=ids,
                max_edges=max_edges,
                num_uniform=candidates - candidates // 2,
                num_by_degree=candidates // 2,
                details=details,
                degrees=store if details else None,
                progress=progress,
            )

    def predict(
        self,
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
    ) -> list[Prediction]:
        """Complete edges by name, best first: the one of head, relation and tail that is left out.

        All three given: the score of that edge.

        See `marius_py.predict.predict`, which takes a memory bound and reports progress too.

        Args:
            head: name, or names of several queries.
            relation: likewise.
            tail: likewise.
            k: answers a query.
            among: names of the nodes that may be answers; None: all.
            filter_known: leave out answers that are edges of the graph already.
            allow_self: whether a query's own node may be its answer; None: yes, unless the graph has neither
                relations nor self-loops.
            probabilities: also softmax over all answers that compete, at `temperature`.
            temperature: of `probabilities`, above 0; None fits it to the validation edges.

        Raises:
            ConfigError: an unknown name (similar ones are offered), a query that leaves out more than one
            part, or none with `probabilities`, or a temperature without these or not above 0, or a wrong k.
        """
        return predict(
            self,
            head,
            relation,
            tail,
            k=k,
            among=among,
            filter_known=filter_known,
            allow_self=allow_self,
            probabilities=probabilities,
            temperature=temperature,
        )

    def neighbors(
        self,
        nodes: Name | Iterable[Name],
        *,
        k: int = 10,
        metric: Metric = "cosine",
        among: Iterable[Name] | None = None,
        index: NeighborIndex | None = None,
    ) -> list[Neighbor]:
        """The k nodes nearest to each of `nodes`, by "cosine", "dot" or "l2", of those in `among`, if given.

        Exact, or approximate by an `index` of `marius_py.predict.open_index(run, metric)`.

        Raises:
            ConfigError: an unknown name or metric, an index of another metric, run or commit, or one beside
            `among`, or a wrong k.
        """
        return neighbors(self, nodes, k=k, metric=metric, among=among, index=index)

    def score(self, triples: Iterable[Sequence[Name | None]] | NDArray[np.integer]) -> NDArray[np.float64]:
        """Scores (n,) float64 of edges given as names (head, relation, tail), or as ids (n, 3).

        Triples of names come in any iterable: a list, a set, a pandas Series. A data frame (pandas, polars,
        Arrow) holds names, numbers among them; its columns are told apart as where a graph is prepared from
        one.

        Raises:
            ConfigError: an unknown name, another shape, or what holds no triples.
        """
        return score(self, triples)


def load(path: Path | str, *, graph: Path | str | None = None, device: str = "cpu") -> Run:
    """Open a run folder for use; nothing large is read.

    Args:
        path: folder that `marius-train` wrote.
        graph: the prepared graph, if it has moved since training.
        device: where scores are computed: "cpu", "cuda", or "auto", CUDA where there is one.

    Raises:
        MissingPathError (a StorageError): no such run, or no graph at `graph`.
        StorageError: nothing was committed in it, or its graph is gone.
        ConfigError: the graph is another one, or there is no such device. FormatError: a file is damaged.

    >>> import tempfile, marius_py
    >>> edges = [(f"city {i}", "lies_in", f"land {i % 4}") for i in range(40)]
    >>> small = {"model.dim": 8, "training.epochs": 3, "training.valid_every": 0}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     marius_py.train(edges, f"{folder}/run", small).close()
    ...     with load(f"{folder}/run") as run:
    ...         run.embedding("city 1").shape, run.relation("lies_in").shape, run.to_torch().shape
    ...         [one.tail for one in run.predict(head="city 1", relation="lies_in", k=44)].count("land 1")
    ...         len(run.neighbors("city 1", k=5)), run.score([("city 1", "lies_in", "land 1")]).shape
    ...         sorted(run.evaluate("test", ks=(1, 5)).to_json())[:4]
    ((8,), (8,), torch.Size([44, 8]))
    1
    (5, (1,))
    ['amr', 'amri', 'count', 'head']
    """
    return open_run(Run, path, graph, device)
