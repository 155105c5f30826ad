"""Words of sweeps: several values a key, and those of one job."""

from __future__ import annotations

import pytest

from marius_py.config import (
    TrainConfig,
)
from marius_py.config.overrides import job_words, prepare_overrides
from marius_py.errors import ConfigError


def test_sweeps_leave_lists_of_values_alone() -> None:
    words = ["graph=g", "model.dim=64,128", "loss=softmax,margin", "output=a,b"]
    assert prepare_overrides(TrainConfig, words, sweep=True) == words


@pytest.mark.parametrize(
    ("value", "mappings"),
    [
        ("rotate,transe", "{_target_:rotate},{_target_:transe}"),
        ("rotate, 'transe'", "{_target_:rotate},{_target_:transe}"),
        ("choice(rotate,transe)", "choice({_target_:rotate},{_target_:transe})"),
        ("rotate,{_target_:transe,norm:l1}", "{_target_:rotate},{_target_:transe,norm:l1}"),
        ('"rotate"', "{_target_:rotate}"),
    ],
)
def test_sweeps_of_a_class_take_its_arguments(value: str, mappings: str) -> None:
    words = ["graph=g", "model.decoder.norm=l2", f"model.decoder={value}"]
    assert prepare_overrides(TrainConfig, words, sweep=True) == [
        "~model.decoder",
        f"+model.decoder={mappings}",
        "graph=g",
        "++model.decoder.norm=l2",
    ]


@pytest.mark.parametrize("value", ["softmax,margn", "softmax,null", "choice(softmax,mypkg.MyLoss)"])
def test_sweeps_of_what_no_file_is_are_refused_before_a_job(value: str) -> None:
    with pytest.raises(ConfigError, match=r"loss=.* takes one of .*loss=custom loss\._target_=mypkg"):
        prepare_overrides(TrainConfig, ["graph=g", f"loss={value}"], sweep=True)


def test_words_of_a_job_are_those_of_its_user() -> None:
    given = [
        "graph=g h,g i",
        "model.decoder=rotate,transe",
        "model.decoder.norm=l2",
        "loss=mypkg.MyLoss",
        "hydra/launcher=basic",
    ]
    prepared = prepare_overrides(TrainConfig, given, sweep=True)
    job = ["graph=g\\ i", "~model.decoder=null", "+model.decoder={_target_:transe}", "optimizer.lr=0.5"]
    assert job_words(TrainConfig, given, prepared, {"graph", "model.decoder"}, job) == [
        "graph=g i",
        "model.decoder=transe",
        "model.decoder.norm=l2",
        "loss=mypkg.MyLoss",
        "optimizer.lr=0.5",
    ]
