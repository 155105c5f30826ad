"""What is refused, by its key, its value and what is allowed."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marius_py.config import (
    EvaluateConfig,
    PrepareConfig,
    TrainConfig,
    build,
    check_buffer,
    load_config,
    make_components,
)
from marius_py.config.fields import keys_of
from marius_py.errors import ConfigError
from tests.config.composing import error_of

BAD: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("model.dimm=3",), ("model.dimm", "did you mean model.dim?")),
    (("batch_size=3",), ("batch_size", "did you mean training.batch_size?")),
    (("modl.dim=3",), ("modl.dim", "did you mean model.dim?")),
    (("zzz=3",), ("zzz", "graph")),
    (("+model.extra=3",), ("model.extra",)),
    (("model.dim=abc",), ("model.dim='abc'", "integer")),
    (("model.dim=1.5",), ("model.dim=1.5", "integer")),
    (("model.dim=true",), ("model.dim=True", "integer")),
    (("model.dim=null",), ("model.dim=null", "integer")),
    (("model.dim=[1]",), ("model.dim",)),
    (("model.dim=0",), ("model.dim=0", "at least 1")),
    (("model.dim=63",), ("model.dim=63", "even")),
    (("model=rotate", "model.dim=7"), ("model.dim=7", "even")),
    (("model.reciprocal=yes",), ("model.reciprocal='yes'", "true or false")),
    (("model.reciprocal=1",), ("model.reciprocal=1", "true or false")),
    (("model.node_dropout=1",), ("model.node_dropout=1", "below 1")),
    (("model.node_dropout=-0.1",), ("model.node_dropout=-0.1", "at least 0")),
    (("model.decoder=[1]",), ("model.decoder",)),
    (("model.decoder={a: 1}",), ("model.decoder", "_target_")),
    (("training.batch_size=0",), ("training.batch_size=0", "at least 1")),
    (("training.batch_size=-1",), ("training.batch_size=-1", "at least 1")),
    (("training.epochs=0",), ("training.epochs=0",)),
    (("training.seed=-1",), ("training.seed=-1", "from 0")),
    (("training=3",), ("training",)),
    (("storage.partitions=8", "storage.capacity=9"), ("storage.capacity=9", "8")),
    (("storage.partitions=8", "storage.capacity=1"), ("storage.capacity=1", "from 2")),
    (("storage.capacity=0",), ("storage.capacity=0", "at least 1")),
    (("storage.device=tpu",), ("storage.device=tpu", "cpu, cuda")),
    (("storage.device=cuda", "device=cpu"), ("storage.device=cuda", "device=cuda")),
    (("negatives.chunks=3",), ("negatives.chunks=3", "1024")),
    (("negatives.chunks=2048",), ("negatives.chunks=2048", "1024")),
    (("negatives.count=0",), ("negatives.count=0",)),
    (("negatives.degree_fraction=1.1",), ("negatives.degree_fraction=1.1", "to 1")),
    (("optimizer.lr=0",), ("optimizer.lr=0", "above 0")),
    (("optimizer.lr=nan",), ("optimizer.lr=nan",)),
    (("optimizer.lr=inf",), ("optimizer.lr=inf",)),
    (("training.clip_norm=1e39",), ("training.clip_norm=1e+39", "above 0 that float32 holds")),
    (("training.clip_norm=1e-46",), ("training.clip_norm=1e-46", "above 0 that float32 holds")),
    (("training.regularizer.n3=1e39",), ("training.regularizer.n3=1e+39", "at least 0 that float32 holds")),
    (("training.regularizer.n3_relation=1e39",), ("training.regularizer.n3_relation=1e+39",)),
    (("training.regularizer.l2=1e39",), ("training.regularizer.l2=1e+39",)),
    (("training.regularizer.l2_relation=1e39",), ("training.regularizer.l2_relation=1e+39",)),
    (("ordering.name=bta",), ("ordering.name=bta", "did you mean beta?")),
    (("pipeline.mode=thread",), ("pipeline.mode=thread", "did you mean threaded?")),
    (("pipeline.max_in_flight=0",), ("pipeline.max_in_flight=0",)),
    (("pipeline.compute_threads=1025",), ("pipeline.compute_threads=1025", "from 1 to 1024")),
    (("pipeline.compute_workers=1025",), ("pipeline.compute_workers=1025", "from 1 to 1024")),
    (("checkpoint.every_seconds=0",), ("checkpoint.every_seconds=0",)),
    (("evaluation.ks=[1,0]",), ("evaluation.ks=[1, 0]", "at least 1")),
    (("evaluation.ks=[]",), ("evaluation.ks",)),
    (("device=tpu",), ("device=tpu", "auto, cpu, cuda")),
    (("loss=margn",), ("loss=margn", "did you mean margin?")),
    (("model=complx",), ("model=complx", "did you mean complex?")),
    (("experiment=nope",), ("experiment=nope", "demo")),
    (("loss={_target_:a.B}",), ("loss", "loss.argument")),
    (("loss=null",), ("loss=null", "logistic, margin, softmax")),
    (("training=null",), ("training=null", "default")),
    (("loss=[1]",), ("loss=[1]", "one of logistic, margin, softmax; a class")),
    (("loss=[softmax]",), ("loss=[softmax]", "one of logistic, margin, softmax; did")),
    (("loss=",), ("loss= ", "one of logistic, margin, softmax; a class")),
    (("loss=''",), ("loss= ", "one of logistic, margin, softmax; a class")),
    (("loss=???",), ("loss=???", "one of logistic, margin, softmax; a class")),
    (("optimizer=[]",), ("optimizer=[]", "one of adagrad, adagrad_row, adam, sgd; a class")),
    (("storage={partitions: 4}",), ("storage={partitions: 4}", "one of cuda, default")),
    (("training=marius_py.nn:Adam",), ("training=marius_py.nn:Adam", "one of default")),
    (("experiment=[]",), ("experiment=[]", "demo")),
    (("experiment=[demo,nope]",), ("experiment=nope", "demo")),
    (("model.dim",), ("model.dim", "key=value")),
    (("=3",), ("=3", "key=value")),
    (("model.dim={",), ("model.dim",)),
    (("graph=${nosuch}",), ("nosuch",)),
    (("graph=",), ("graph",)),
]


@pytest.mark.parametrize(("words", "parts_of_message"), BAD, ids=[" ".join(words) for words, _ in BAD])
def test_bad_settings_are_refused_by_name(words: tuple[str, ...], parts_of_message: tuple[str, ...]) -> None:
    given_graph = () if any(word.startswith("graph=") for word in words) else ("graph=g",)
    message = error_of(*given_graph, *words)
    for part in parts_of_message:
        assert part in message


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "input.train"),
        (("input.train=f",), "output"),
        (("dataset=fb15k_237", "input.train=f", "output=o"), "dataset"),
        (("dataset=fb15k_237", "input.valid=f", "output=o"), "input.valid=f"),
        (("dataset=fb15k_237", "input.test=f", "output=o"), "input.test=f"),
        (("dataset=fb15k_237", "input.format=csv", "output=o"), "input.format=csv"),
        (("dataset=fb15k_237", "input.split=[0.8,0.1,0.1]", "output=o"), "input.split=[0.8, 0.1, 0.1]"),
        (("dataset=fb15k_237", "input.undirected=true", "output=o"), "input.undirected=True"),
        (("dataset=fb15k",), "did you mean fb15k_237?"),
        (("input.train=f", "output=o", "partitions=0"), "partitions=0"),
        (("input.train=f", "output=o", "input.columns=[a,b,c,d]"), "input.columns"),
        (("input.train=f", "output=o", "input.columns=[a,a]"), "twice"),
        (("input.train=f", "output=o", "input.delimiter=ab"), "one character"),
        (("input.train=f", "output=o", "input.split=[0.5,0.4]"), "input.split"),
        (("input.train=f", "output=o", "input.split=[0.5,0.4,0.2]"), "add up to 1"),
        (("input.train=f", "input.test=g", "output=o", "input.split=[0.8,0.1,0.1]"), "input.test"),
        (("input.train=f", "output=o", "input.format=xls"), "input.format=xls"),
        (("input.train=f", "output=o", "input.trian=g"), "did you mean input.train?"),
        (("dataset.name=fb15k_237", "output=o"), "dataset.name=fb15k_237 lacks dataset.url, dataset.archive"),
        (("dataset.name=fb15k_237", "output=o"), "chosen by its file, dataset=fb15k_237"),
        (("dataset=wn18rr", "dataset.sha256=null", "output=o"), "lacks dataset.sha256: "),
        (
            ("dataset=wn18rr", "dataset.sha256=[a]", "output=o"),
            "dataset.sha256 has 1 entries: it takes three",
        ),
    ],
)
def test_bad_inputs_are_refused(words: tuple[str, ...], part: str) -> None:
    assert part in error_of(*words, kind=PrepareConfig)


@pytest.mark.parametrize(
    ("kind", "word", "told"),
    [
        (TrainConfig, "optimiser=adam", "; did you mean optimizer? ("),
        (TrainConfig, "modle=rotate", "; did you mean model or "),
        (TrainConfig, "experment=demo", "; did you mean experiment? ("),
        (TrainConfig, "eval.mode=full", "; did you mean evaluation.mode? ("),
        (TrainConfig, "training.batch=3", "; did you mean training.batch_size? ("),
        (TrainConfig, "run=r", "unknown key run; it is a setting of marius-evaluate (allowed here: graph, "),
        (TrainConfig, "input.train=f", "; it is a setting of marius-prepare ("),
        (TrainConfig, "seed=3", "; did you mean training.seed? ("),
        (TrainConfig, "device=gpu", "; did you mean cuda?"),
        (TrainConfig, "model=mine.Scaled", "; a class of yours is named by model.decoder=mypkg.MyClass"),
        (TrainConfig, "zz=3", "evaluation.*, experiment)"),
        (TrainConfig, "loss.name=margin", "is no setting: loss itself names the class, loss=margin"),
        (TrainConfig, "optimizer.schedule=cosine", "it is a section with the keys optimizer.schedule.name, "),
        (PrepareConfig, "input.columns=[von,größe]", """for the shell too: 'key=["a value",b]'"""),
        (PrepareConfig, "input=f", "it is a section with the keys input.train, "),
        (EvaluateConfig, "model=rotate", "; it is a setting of marius-train ("),
        (EvaluateConfig, "loss.margin=2", "; it is a setting of marius-train ("),
        (EvaluateConfig, "evaluation.mode=full", "; did you mean mode? ("),
        (PrepareConfig, "graph=g", "; it is a setting of marius-train and marius-evaluate ("),
        (PrepareConfig, "datset=wn18rr", "; did you mean dataset? ("),
    ],
)
def test_what_was_meant_is_named(kind: type[Any], word: str, told: str) -> None:
    assert told in error_of(word, kind=kind)


def test_an_evaluation_has_as_many_threads_as_training() -> None:
    assert "compute_threads=1025 is out of range: it takes an integer from 1 to 1024" in error_of(
        "run=r", "compute_threads=1025", kind=EvaluateConfig
    )


def test_run_is_needed() -> None:
    assert "run" in error_of(kind=EvaluateConfig)


@given(st.integers(-3, 40), st.integers(-3, 40))
def test_buffers_that_hold_a_bucket_are_allowed(p: int, c: int) -> None:
    possible = 1 <= c <= p and (c >= 2 or p == 1)
    if possible:
        check_buffer(p, c)
    elif p >= 1 and c >= 1:
        with pytest.raises(ConfigError, match=r"storage\.capacity"):
            check_buffer(p, c)


@given(
    st.integers(-(2**70), 2**70)
    | st.floats()
    | st.booleans()
    | st.none()
    | st.text()
    | st.lists(st.integers())
)
def test_a_value_is_taken_or_refused_with_one_line(value: Any) -> None:
    for key, owner, item in keys_of(TrainConfig):
        section, _, name = key.rpartition(".")
        try:
            built = build(owner, {name: value}, section)
        except ConfigError as error:
            refused = str(error)
        else:
            refused = key if getattr(built, item.name) is not None or value is None else ""
        assert key in refused


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["negatives=all", "negatives.count=3"], "negatives.count=3 means nothing to negatives.sampler=all"),
        (["negatives=all", "negatives.chunks=4"], "negatives.chunks=4 means nothing to negatives.sampler="),
        (
            ["model=dot", "model.relation_dropout=0.1"],
            "model.relation_dropout=0.1 means nothing to model.decoder=dot",
        ),
        (
            ["model.decoder=dot", "training.regularizer.n3_relation=0.1"],
            "training.regularizer.n3_relation=0.1 means nothing to model.decoder=dot",
        ),
        (
            ["model.decoder=dot", "training.regularizer.l2_relation=0.1"],
            "training.regularizer.l2_relation=0.1 means nothing to model.decoder=dot",
        ),
    ],
)
def test_settings_that_would_do_nothing_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(message)):
        make_components(load_config(["graph=g", *words]))
    make_components(load_config(["graph=g", words[0], "model.relation_dropout=0"]))


@pytest.mark.parametrize("word", ["training.epochs={}", "evaluation.ks=[1,{}]", "loss.margin={}"])
def test_a_number_that_python_does_not_read_is_refused_by_its_key(word: str) -> None:
    key = word.partition("=")[0]
    with pytest.raises(ConfigError, match=rf"{key} has a number of 4301 digits: allowed are up to 4300"):
        load_config(["graph=g", "loss=logistic", word.format("9" * 4301)])


@pytest.mark.parametrize("word", ["training.patience=3", "optimizer.schedule.name=plateau"])
def test_what_goes_by_validation_needs_it(word: str) -> None:
    assert load_config(["graph=g", word]).training.valid_every > 0
    with pytest.raises(ConfigError, match="valid_every"):
        load_config(["graph=g", word, "training.valid_every=0"])


@pytest.mark.parametrize("word", ["~model.dim", "~optimizer", "~graph=g", "~model.decoder.norm"])
def test_settings_cannot_be_removed(word: str) -> None:
    with pytest.raises(ConfigError, match="settings cannot be removed; leave the word out for the default"):
        load_config(["graph=g", word])


@pytest.mark.parametrize("key", ["optimizer.lr", "negatives.degree_fraction", "training.regularizer.l2"])
def test_integers_that_no_float_holds_are_out_of_range(key: str) -> None:
    """They ended in an OverflowError, which names neither key nor value."""
    assert re.match(f"{key}=9+ is out of range: it takes a number", error_of(f"{key}={'9' * 400}"))


@pytest.mark.parametrize("key", ["negatives.count", "evaluation.memory_bytes"])
def test_integers_that_no_array_holds_are_out_of_range(key: str) -> None:
    """Of the first the counts failed at once, of the second the validation after the first epochs."""
    said = f"{key}={2**63} is out of range: it takes an integer at least "
    assert error_of(f"{key}={2**63}").startswith(said)
    assert error_of(f"{key}={2**63}").endswith(", below 2^63")
    load_config([f"{key}={2**63 - 1}"])


@pytest.mark.parametrize(
    ("word", "takes"),
    [
        ("model.decoder=[]", "a name, a dotted path or a mapping with _target_"),
        ("negatives.sampler=[uniform]", "a name, a dotted path or a mapping with _target_"),
        ("trackers={a: 1}", "a list of strings"),
        ("evaluation.ks={a: 1}", "a list of integers at least 1 (ranks)"),
    ],
)
def test_a_list_for_a_mapping_is_refused_in_words_of_the_key(word: str, takes: str) -> None:
    """Hydra says that it cannot merge DictConfig with ListConfig."""
    assert error_of(word) == f"{word} has the wrong type: it takes {takes}"
