"""Exact filtered ranking by streaming (floor 4): queries and a row reader in, better and equal counts out."""

from marius_py.evaluation.ranking.candidates import (
    AllNodes,
    CandidateSource,
    ChosenNodes,
    NodeReader,
    SampledNodes,
)
from marius_py.evaluation.ranking.known import KnownAnswers, KnownFinder, QueryBlock, group_queries
from marius_py.evaluation.ranking.ranker import Counts, Ranker
from marius_py.evaluation.ranking.scorer import ModelScorer, RankedModel, Scorer

__all__ = [
    "AllNodes",
    "CandidateSource",
    "ChosenNodes",
    "Counts",
    "KnownAnswers",
    "KnownFinder",
    "ModelScorer",
    "NodeReader",
    "QueryBlock",
    "RankedModel",
    "Ranker",
    "SampledNodes",
    "Scorer",
    "group_queries",
]
