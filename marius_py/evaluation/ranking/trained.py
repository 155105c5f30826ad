"""A trained model, rebuilt from a checkpoint for ranking (floor 4): settings and relations in, scores out.

No loss, optimizer or sampler is needed for it, so it opens wherever the decoder's class can be imported.
"""

from __future__ import annotations

import importlib
import os
import sys
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from marius_py.errors import ConfigError
from marius_py.nn.decoders.base import Decoder, queries_of, scores_of
from marius_py.nn.registry import DECODERS
from marius_py.types import Side


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """The part of a model that ranking needs; fulfils `ranking.RankedModel`.

    Attributes:
        decoder: as trained.
        relations: (R, Dr) float32, or (2R, Dr) if the run is reciprocal: the inverses in the second half.
        reciprocal: heads are asked as tails of the inverse relation.
    """

    decoder: Decoder
    relations: Tensor
    reciprocal: bool

    @property
    def device(self) -> torch.device:
        """Where the relations lie and rows are compared."""
        return self.relations.device

    def queries(self, anchors: Tensor, relations: Tensor, side: Side) -> Tensor:
        """Queries (Q, D) of known nodes' rows (Q, D) and relation ids (Q,) for the ranked `side`."""
        with torch.no_grad():
            if self.reciprocal and side == "head":
                relations, side = relations + self.relations.shape[0] // 2, "tail"
            return queries_of(self.decoder, anchors, self.relations[relations], side)

    def compare(self, query: Tensor, candidates: Tensor) -> Tensor:
        """Scores (C, P, K) of queries (C, P, D) with candidate rows (C, K, D)."""
        with torch.no_grad():
            return scores_of(self.decoder, query, candidates)


def make_decoder(description: Any, dim: int) -> Decoder:
    """Make the decoder that a run's settings describe.

    Args:
        description: {"_target_": registered name or dotted path, …its own arguments}.
        dim: embedding width D.

    Raises:
        ConfigError: the class cannot be imported, is no decoder, or refuses its arguments.
    """
    arguments = dict(description) if not isinstance(description, str) else {"_target_": description}
    target = str(arguments.pop("_target_"))
    kind: Any = DECODERS.get(target)
    if kind is None:
        kind = _import(target)
    if not (isinstance(kind, type) and issubclass(kind, Decoder)):
        raise ConfigError(f"the run's decoder {target} is no class derived from {Decoder.__module__}.Decoder")
    try:
        return kind(dim, **arguments)
    except (Exception, SystemExit) as error:  # whatever a user's class raises
        raise ConfigError(
            f"the run's decoder {target} refuses its arguments {arguments}: {type(error).__name__}: {error}"
        ) from error


def _import(target: str) -> Any:
    # As in training, a module in the current folder is found, after installed ones.
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.append(here)
    module, _, name = target.rpartition(":" if ":" in target else ".")
    try:
        return getattr(importlib.import_module(module), name)
    except (Exception, SystemExit) as error:  # whatever a user's module raises
        way_out = "install it, or work in its folder"
        if module == "__main__":
            way_out = "it was defined in the program that trained the run, where alone it can be used"
        raise ConfigError(
            f"the run's decoder {target} cannot be imported ({type(error).__name__}: {error}); {way_out}"
        ) from error
