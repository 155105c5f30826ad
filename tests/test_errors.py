"""Errors come through a pool of processes as they are."""

from __future__ import annotations

import inspect
import pickle

import pytest

from marius_py import errors
from marius_py.errors import MariusError, PipelineError

CLASSES = [one for _, one in inspect.getmembers(errors, inspect.isclass) if issubclass(one, MariusError)]


@pytest.mark.parametrize("kind", CLASSES)
def test_every_error_is_unpickled_with_all_its_fields(kind: type[MariusError]) -> None:
    fields = {"stage": "compute"} if issubclass(kind, PipelineError) else {}
    error = kind("what was wrong", **fields)
    error.add_note("and where")
    found = pickle.loads(pickle.dumps(error))
    assert type(found) is kind
    assert str(found) == "what was wrong"
    assert vars(found) == {**fields, "__notes__": ["and where"]}
