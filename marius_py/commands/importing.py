"""`marius-import` (floor 6): data and checkpoints of other systems."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from marius_py.commands.common import parse_bytes
from marius_py.commands.console import say
from marius_py.commands.progress import Bars
from marius_py.commands.settings import add_settings, check_new_run, flag, read_settings, seed_of, whole
from marius_py.config.near import suggest
from marius_py.errors import ConfigError
from marius_py.types import MAX_PARTITIONS

if TYPE_CHECKING:
    from marius_py.graph import Graph

PURPOSE = """Take over data and checkpoints of PyTorch-BigGraph (from=pbg) or DGL-KE (from=dglke): with
input.train the data become the prepared graph that graph= names; with checkpoint the model becomes the run
folder that output= names, ready for marius-evaluate, marius-predict and marius-train … resume=true."""
EXAMPLES = """settings (key=value; default; what is allowed):
  from=               pbg or dglke (needed)
  graph=DIR           the prepared graph (needed): written with input.train, else one that exists
  input.train=PATH    training edges. pbg: folder of edges_I_J.h5, may be given several times; dglke: file
  input.valid=PATH    validation edges, likewise
  input.test=PATH     test edges, likewise
  input.split=null    shares of train, valid, test when only input.train is given; null = [0.9,0.05,0.05]
  entities=PATH       pbg: folder of entity_count_* and entity_names_* (null = entity_path of the config);
                      dglke: mapping file, a line "number name" (null = entities.dict or .tsv beside the data)
  relations=FILE      dglke: mapping file of relations (null = relations.dict or .tsv beside the data)
  config=FILE         pbg: config.json (null = the checkpoint's, else known from the files' names)
  format=built_in     dglke: built_in, raw_udd_hrt (names), udd_hrt (numbers), or another order of h, r, t
  delimiter=null      dglke: one character between columns; null = tab
  importance=false    dglke: a fourth column has the weights of training edges (--has_edge_importance)
  checkpoint=DIR      folder of the trained model
  version=null        pbg: version of the checkpoint, a whole number from 1; null = the last whole one
  output=RUN          folder of the run, new or empty (needed with checkpoint)
  partitions=null     of the graph, 1 to 1024; null = 8, or the nodes if those are fewer
  seed=0              of the node order and of the split, a whole number from 0 to 2^63 - 1
  memory=1G           bound of the embeddings in memory, with K, M, G (binary); 16M or more
  overwrite=false     replace a graph that graph= already holds

examples:
  marius-import from=pbg config=model/config.json entities=data/fb15k input.train=data/fb15k/edges graph=g
  marius-import from=pbg checkpoint=model graph=g output=runs/pbg
  marius-import from=dglke input.train=FB15k/train.txt input.test=FB15k/test.txt graph=g \\
    checkpoint=ckpts/TransE_l2_FB15k_0 output=runs/transe"""

_KEYS: dict[str, str | None] = {
    "from": None,
    "graph": None,
    "input.train": None,
    "input.valid": None,
    "input.test": None,
    "input.split": None,
    "entities": None,
    "relations": None,
    "config": None,
    "format": "built_in",
    "delimiter": None,
    "importance": "false",
    "checkpoint": None,
    "version": None,
    "output": None,
    "partitions": None,
    "seed": "0",
    "memory": "1G",
    "overwrite": "false",
}
_SYSTEMS = ("pbg", "dglke")
_REPEATED = ("input.train", "input.valid", "input.test")
_NEVER_EMPTY = (
    *_REPEATED, "entities", "relations", "config", "delimiter", "checkpoint", "output"
)  # fmt: skip
"""What is a path, and empty would be the current folder, or what has another default."""
_OF_ONE = {
    "config": "pbg", "version": "pbg",
    "relations": "dglke", "format": "dglke", "delimiter": "dglke", "importance": "dglke",
}  # fmt: skip


add_flags = add_settings
"""The command's settings."""


def parse(words: list[str]) -> dict[str, Any]:
    """Settings by key, checked; those of edges are lists.

    Raises:
        ConfigError: an unknown key, a value out of range, or settings that do not belong together.
    """
    values, given = read_settings(words, _KEYS, _REPEATED)
    for key in given:
        if key in _NEVER_EMPTY and "" in (values[key] if key in _REPEATED else [values[key]]):
            raise ConfigError(f"{key}= has no value; give one, or leave {key} out")
    _check(values, set(given))
    return values


def _check(values: dict[str, Any], given: set[str]) -> None:
    """Check what belongs together, and convert values in place."""
    if not values["from"]:
        raise ConfigError(f"from= is needed; allowed: {', '.join(_SYSTEMS)}")
    if values["from"] not in _SYSTEMS:
        raise ConfigError(
            f"from={values['from']!r} is unknown; allowed: {', '.join(_SYSTEMS)}"
            f"{suggest(values['from'], _SYSTEMS)}"
        )
    if not values["graph"]:
        raise ConfigError("graph is missing: give graph=DIR, the prepared graph to write or to use")
    if values["input.train"] is None and values["checkpoint"] is None:
        raise ConfigError("nothing to do: give input.train=PATH for a graph, checkpoint=DIR for a run")
    if (values["checkpoint"] is None) != (values["output"] is None):
        raise ConfigError("checkpoint and output belong together: give both, or neither")
    for key, system in _OF_ONE.items():
        if key in given and values["from"] != system:
            raise ConfigError(f"{key} is of from={system}, not of from={values['from']}")
    for key in _REPEATED:
        values[key] = _edges(key, values)
    for key, high in (("version", 1 << 31), ("partitions", MAX_PARTITIONS)):
        if values[key] is not None:
            values[key] = whole(key, values[key], 1, high)
    values["seed"] = seed_of(values)
    values["importance"] = flag("importance", values["importance"])
    values["overwrite"] = flag("overwrite", values["overwrite"])
    try:
        values["memory"] = parse_bytes(values["memory"])
    except argparse.ArgumentTypeError as error:
        raise ConfigError(f"memory={values['memory']}: {error}") from None
    from marius_py.predict.completion import check_memory

    check_memory(values["memory"])
    values["input.split"] = _shares(values["input.split"])
    values["delimiter"] = "\t" if values["delimiter"] is None else values["delimiter"]


def _edges(key: str, values: dict[str, Any]) -> Any:
    """The files of a split: a list for pbg, one for dglke, None if not given."""
    found = values[key]
    if found is None or values["from"] == "pbg":
        wanted = found
    elif len(found) > 1:
        raise ConfigError(f"{key} is given {len(found)} times; with from=dglke it is one file")
    else:
        wanted = found[0]
    if found is not None and values["input.train"] is None:
        raise ConfigError(f"{key} is given without input.train")
    return wanted


def _shares(text: str | None) -> list[float] | None:
    if text is None:
        return None
    try:
        return [float(part) for part in text.strip("[]").split(",")]
    except ValueError:
        raise ConfigError(
            f"input.split={text}; allowed: three shares that add up to 1, [0.9,0.05,0.05]"
        ) from None


def run(options: argparse.Namespace) -> None:
    """Import the graph, the run, or both."""
    values = parse(options.settings)
    from marius_py.graph import open_graph
    from marius_py.graph.manifest import GRAPH_FILE
    from marius_py.importing.files import check_folder
    from marius_py.storage.targets import reaching

    if values["checkpoint"] is not None:
        check_folder(values["checkpoint"], "checkpoint", "the trained model")
    if values["output"] is not None:
        check_new_run(values, "output", "graph")
    made = Path(values["graph"])
    with reaching(f"graph={made}"):
        is_there = (made / GRAPH_FILE).exists()
    if values["input.train"] is not None and not values["overwrite"] and is_there:
        also = ", or leave out input.* to import the run for it" if values["output"] is not None else ""
        raise ConfigError(
            f"graph={values['graph']} holds a prepared graph already: set overwrite=true to replace it{also}"
        )
    with Bars() as bars:
        if values["input.train"] is not None:
            if values["checkpoint"] is not None:
                _check_model(values)  # a retry would find the graph there
            graph = _graph(values, bars)
            say(f"graph: {graph.path}")
        else:
            graph = open_graph(values["graph"])
        if values["checkpoint"] is not None:
            say(f"run: {_run(values, graph, bars)}")


def _graph(values: dict[str, Any], bars: Bars) -> Graph:
    from marius_py.importing import dglke_graph, pbg_graph

    common: dict[str, Any] = {
        "valid": values["input.valid"],
        "test": values["input.test"],
        "partitions": values["partitions"],
        "seed": values["seed"],
        "split": values["input.split"],
        "overwrite": values["overwrite"],
        "progress": bars,
    }
    if values["from"] == "pbg":
        config = values["config"]
        if config is None and values["checkpoint"] is not None:
            config = Path(values["checkpoint"]) / "config.json"
        return pbg_graph(values["entities"], values["input.train"], values["graph"], config=config, **common)
    return dglke_graph(
        values["input.train"],
        values["graph"],
        entities=values["entities"],
        relations=values["relations"],
        format=values["format"],
        delimiter=values["delimiter"],
        importance=values["importance"],
        **common,
    )


def _check_model(values: dict[str, Any]) -> None:
    """Refuse a checkpoint that cannot become a run, whatever the graph."""
    from marius_py.importing.dglke import dglke_model
    from marius_py.importing.pbg import pbg_model

    read = pbg_model if values["from"] == "pbg" else dglke_model
    read(values["checkpoint"], **_source(values))


def _run(values: dict[str, Any], graph: Graph, bars: Bars) -> Path:
    from marius_py.importing import dglke_run, pbg_run

    write = pbg_run if values["from"] == "pbg" else dglke_run
    return write(
        values["checkpoint"],
        graph,
        values["output"],
        memory_bytes=values["memory"],
        progress=bars,
        **_source(values),
    )


def _source(values: dict[str, Any]) -> dict[str, Any]:
    """Arguments beside the folder that say where the model and its names are."""
    if values["from"] == "pbg":
        return {key: values[key] for key in ("entities", "config", "version")}
    train = values["input.train"]
    return {
        "entities": values["entities"],
        "relations": values["relations"],
        "data": None if train is None else Path(train).parent,
        "delimiter": values["delimiter"],
    }
