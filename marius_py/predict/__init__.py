"""What a trained model says (floor 4): a run and names in; completions, scores and neighbours out."""

from marius_py.predict.answers import Prediction, predict
from marius_py.predict.calibration import Calibration, fit_temperature
from marius_py.predict.completion import complete_nodes, score_edges
from marius_py.predict.index import NeighborIndex, open_index
from marius_py.predict.metric import METRICS, Metric
from marius_py.predict.neighbors import Neighbor, find_neighbors, neighbors
from marius_py.predict.relations import complete_relations
from marius_py.predict.scores import score
from marius_py.predict.topk import TopK, top_k

__all__ = [
    "METRICS",
    "Calibration",
    "Metric",
    "Neighbor",
    "NeighborIndex",
    "Prediction",
    "TopK",
    "complete_nodes",
    "complete_relations",
    "find_neighbors",
    "fit_temperature",
    "neighbors",
    "open_index",
    "predict",
    "score",
    "score_edges",
    "top_k",
]
