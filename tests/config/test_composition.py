"""Files of conf/ and dataclasses say the same; groups and experiments are chosen and overridden."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

from marius_py.config import (
    DatasetConfig,
    EvaluateConfig,
    InputConfig,
    OptimizerConfig,
    PrepareConfig,
    TrainConfig,
    compose,
    conf_dir,
    load_config,
    make_components,
)
from marius_py.config.groups import group_options, groups_of
from marius_py.config.machine_schema import MAX_ROUNDS, MOST_OPTIMAL, ORDERS
from marius_py.errors import ConfigError
from marius_py.nn import AllNegatives, SoftmaxLoss, UniformNegatives
from marius_py.nn.registry import OPTIMIZERS
from tests.config.composing import COMMANDS, error_of, saved_words
from tests.every_second import every_second


def test_files_and_dataclasses_hold_the_same_defaults() -> None:
    assert load_config(["graph=g"]) == TrainConfig(graph="g")
    assert compose(EvaluateConfig, ["run=r"]) == EvaluateConfig(run="r")
    expected = PrepareConfig(input=InputConfig(train="f"), output="o")
    assert compose(PrepareConfig, ["input.train=f", "output=o"]) == expected
    assert expected.dataset == DatasetConfig()


@pytest.mark.parametrize(
    ("group", "option"),
    [
        (group, option)
        for group in sorted(groups_of(TrainConfig))
        for option in group_options(conf_dir(), group)
    ],
)
def test_every_group_file_composes_and_its_parts_are_made(group: str, option: str, parts: str) -> None:
    words = ["graph=g", f"{group}={option}"]
    if option == "custom":
        words += {
            "loss": [f"loss._target_={parts}.MyLoss", "loss.alpha=2"],
            "optimizer": [f"optimizer.name={parts}.MyOptimizer", "optimizer.momentum=0.9"],
        }[group]
    if (group, option) == ("storage", "cuda"):
        words.append("device=auto")
    config = load_config(words)
    made = make_components(config)
    assert made.decoder.dim == config.model.dim


@pytest.mark.parametrize("option", [name for name in group_options(conf_dir(), "dataset") if name != "none"])
def test_every_data_set_composes(option: str) -> None:
    dataset = compose(PrepareConfig, [f"dataset={option}", "output=o"]).dataset
    assert dataset.url is not None
    assert dataset.url.startswith("https://")
    assert dataset.sha256 is not None
    assert [len(one) for one in dataset.sha256] == [64, 64, 64]


def test_every_file_below_conf_is_reached() -> None:
    known = {f"{kind}.yaml" for kind in ("train", "evaluate", "prepare")}
    for kind, _ in COMMANDS:
        for group in groups_of(kind):
            known |= {f"{group}/{option}.yaml" for option in group_options(conf_dir(), group)}
    known |= {"model/base.yaml", "optimizer/base.yaml"}
    assert {
        file.relative_to(conf_dir()).as_posix() for file in conf_dir().rglob("*") if file.is_file()
    } == known


def test_without_a_graph_the_demo_settings_come_first_and_can_be_overridden() -> None:
    demo = load_config([])
    assert demo.graph is None
    assert demo.storage.capacity == 4
    assert load_config(["training.epochs=3"]).training.epochs == 3
    assert load_config(["training.epochs=3"]).model == demo.model


def test_orders_are_those_the_scheduler_knows() -> None:
    from marius_py.ordering import arguments
    from marius_py.ordering.orders import ORDERS as KNOWN

    assert set(ORDERS) == set(KNOWN)
    assert MAX_ROUNDS == arguments.MAX_ROUNDS


def test_optimal_orders_are_known_up_to_the_size_that_is_told() -> None:
    from marius_py.ordering.orders.stored import OPTIMAL, stored_orders

    assert max(p for p, _ in stored_orders(OPTIMAL)) == MOST_OPTIMAL
    words = ["graph=g", "ordering.name=optimal", "storage.partitions=17"]
    assert load_config([*words, "storage.capacity=17"]).ordering.name == "optimal"
    assert "ordering.name=optimal is known for storage.partitions of up to 16" in error_of(
        *words, "storage.capacity=8"
    )


@pytest.mark.parametrize("name", every_second(list(OPTIMIZERS)))
def test_an_optimizer_has_its_own_rate_whichever_way_it_is_chosen(name: str, tmp_path: Path) -> None:
    own = inspect.signature(OPTIMIZERS[name]).parameters["lr"].default
    for word in (f"optimizer.name={name}", f"optimizer={name}"):
        assert load_config(["graph=g", word]).optimizer.lr == own
        assert load_config(["graph=g", word, "optimizer.lr=0.3"]).optimizer.lr == 0.3
    assert TrainConfig(optimizer=OptimizerConfig(name=name)).optimizer.lr == own
    follows = own * 128 / 1024 if name == "sgd" else own
    assert load_config(["graph=g", word, "training.batch_size=128"]).optimizer.lr == follows
    assert load_config(["graph=g", word, "training.batch_size=128", "optimizer.lr=0.3"]).optimizer.lr == 0.3
    experiment = ["graph=g", "experiment=fb15k_237/complex", f"optimizer.name={name}"]
    assert load_config(experiment).optimizer.lr == 0.4
    output = saved_words(tmp_path, "optimizer.lr=0.3", f"optimizer.name={name}")
    for word in ("training.epochs=30", f"optimizer.name={name}"):
        assert load_config([output, "resume=true", word]).optimizer.lr == 0.3


@pytest.mark.parametrize("name", every_second(list(OPTIMIZERS)[::-1]))
def test_rotate_takes_twice_the_rate_of_optimizers_that_divide_by_gradients(
    name: str, tmp_path: Path
) -> None:
    own = inspect.signature(OPTIMIZERS[name]).parameters["lr"].default
    twice = own if name == "sgd" else 2 * own
    words = ["graph=g", f"optimizer.name={name}"]
    for word in ("model=rotate", "model.decoder=rotate", "model.decoder=marius_py.nn.decoders.RotatE"):
        assert load_config([*words, word]).optimizer.lr == twice
        assert load_config([*words, word, f"optimizer.lr={own}"]).optimizer.lr == own
    assert load_config([*words, "model=transe"]).optimizer.lr == own
    output = saved_words(tmp_path, "model=rotate", *words[1:], f"optimizer.lr={own}")
    assert load_config([output, "resume=true", "training.epochs=30"]).optimizer.lr == own


def test_edges_of_a_split_are_one_file() -> None:
    words = ["input.train=a.tsv", "input.train=b.tsv", "output=g"]
    with pytest.raises(ConfigError, match=r"input\.train is given twice: a\.tsv and b\.tsv"):
        compose(PrepareConfig, words)


def test_experiment_can_be_overridden() -> None:
    config = load_config(["graph=g", "experiment=fb15k_237/complex", "storage.capacity=8", "model.dim=64"])
    assert (config.optimizer.lr, config.storage.capacity, config.model.dim) == (0.4, 8, 64)
    disk = load_config(["graph=g", "experiment=fb15k_237/complex_dropout"])
    assert (disk.storage.capacity, disk.storage.partitions) == (4, 8)
    assert disk.model.node_dropout == 0.3


@pytest.mark.parametrize("group", sorted(groups_of(TrainConfig)))
@pytest.mark.parametrize("value", ["[]", "", "???"])
def test_of_a_group_one_file_is_chosen(group: str, value: str) -> None:
    assert f"{group}={value} is unknown: it takes one of " in error_of("graph=g", f"{group}={value}")


def test_of_experiments_there_may_be_several() -> None:
    words = ["experiment=[demo, 'wn18rr/rotate']", "graph=g"]
    assert load_config(words).model.decoder.target == "rotate"
    assert load_config([words[0].replace(" ", ""), "graph=g"]) == load_config(words)


def test_how_files_of_a_data_set_are_read_can_be_said() -> None:
    words = ["dataset=fb15k_237", "input.header=false", "input.format=tsv", "output=o"]
    assert compose(PrepareConfig, words).input.header is False


def test_k_vs_all_has_a_name() -> None:
    negatives = load_config(["graph=g", "negatives=k_vs_all"]).negatives
    assert negatives.sampler.target == "all"
    assert negatives.per_question
    assert not negatives.mask_known
    with pytest.raises(ConfigError, match=r"negatives\.per_question=true .* storage\.device=cuda"):
        load_config(["graph=g", "negatives=k_vs_all", "storage.device=cuda"])


def test_no_experiment_is_none() -> None:
    assert load_config(["graph=g", "experiment=null"]) == load_config(["graph=g"])


def test_the_schedule_is_a_section_of_the_optimizer() -> None:
    words = ["optimizer=adam", "optimizer.schedule.name=cosine", "optimizer.schedule.warmup=1.5"]
    config = load_config(["graph=g", *words, "training.epochs=7"])
    rate = make_components(config).rate
    assert (type(rate).__name__, rate.epochs, rate.warmup) == ("CosineRate", 7, 1.5)
    assert config.optimizer.arguments == {}
    with pytest.raises(ConfigError, match=r"optimizer\.schedule\.warmup"):
        load_config(["graph=g", "optimizer.schedule.warm_up=1"])


def test_what_sides_and_candidates_are_drawn() -> None:
    config = load_config(["graph=g", "negatives.count=50", "negatives.count_head=20"])
    sampler = make_components(config).sampler
    assert isinstance(sampler, UniformNegatives)
    assert sampler.counts == {"head": 20, "tail": 50}
    assert isinstance(make_components(load_config(["graph=g", "negatives=all"])).sampler, AllNegatives)
    smooth = make_components(load_config(["graph=g", "loss.smoothing=0.1"])).loss
    assert isinstance(smooth, SoftmaxLoss)
    assert smooth.smoothing == 0.1
    with pytest.raises(ConfigError, match=r"negatives\.count_tail"):
        load_config(["graph=g", "negatives.count_tail=0"])
