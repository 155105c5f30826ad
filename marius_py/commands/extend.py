"""`marius-extend` (floor 6): more nodes and edges for a prepared graph, and for a run on it."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from marius_py.commands.console import say
from marius_py.commands.progress import Bars
from marius_py.commands.settings import add_settings, check_new_run, choice, flag, read_settings, seed_of
from marius_py.config import InputConfig, PrepareConfig, compose
from marius_py.errors import ConfigError

PURPOSE = """Add the edges of new files, and the nodes and relations they bring, to a prepared graph: writes a
new graph folder. With run= and run_output= also a run folder in which old embeddings are kept, to be
trained on with marius-train output=RUN_OUTPUT resume=true training.epochs=…"""
EXAMPLES = """settings (key=value):
  graph=DIR          the prepared graph (needed)
  input.train=FILE   edges to add to the train split (needed)
  input.valid=FILE   edges to add to the validation split
  input.test=FILE    edges to add to the test split
  input.format=auto  tsv, csv, parquet, npy, npz, or auto: by the file's name
  input.columns=null columns of head, relation, tail (or head, tail): [from,kind,to] or numbers from 0
                     (-1 is the last); null = by name or order
  input.weight=null  column of the weights of the edges, which a graph with weights needs; null = none
  input.header=null  the first line holds column names: true or false; null = if it looks so
  input.quoting=null fields may stand in double quotes: true or false; null = for CSV only
  input.comment=null character with which lines at the top begin that are no edges; null = there are none
  input.delimiter=null
                     one character between columns; null = by the format
  output=DIR         folder of the new graph (needed)
  run=RUN            a run on graph
  run_output=DIR     folder of the new run
  init=neighbors     new embeddings of the run: neighbors or random
  seed=0             of the new nodes' places, a whole number from 0 to 2^63 - 1
  overwrite=false    replace a prepared graph in output

examples:
  marius-extend graph=graphs/mine input.train=new.tsv output=graphs/mine2
  marius-extend graph=graphs/mine input.train=new.tsv output=graphs/mine2 run=runs/mine run_output=runs/mine2
  marius-train output=runs/mine2 resume=true training.epochs=28"""

_DEFAULTS: dict[str, str | None] = {
    "graph": None,
    "input.train": None,
    "input.valid": None,
    "input.test": None,
    "input.format": "auto",
    "input.columns": None,
    "input.weight": None,
    "input.header": None,
    "input.quoting": None,
    "input.comment": None,
    "input.delimiter": None,
    "output": None,
    "run": None,
    "run_output": None,
    "init": "neighbors",
    "seed": "0",
    "overwrite": "false",
}


add_flags = add_settings
"""The command's settings."""


def parse(words: list[str]) -> dict[str, Any]:
    """Settings by key, checked; `seed` is an int, `overwrite` a bool, all others text or None.

    Raises:
        ConfigError: an unknown key, one that is given twice, a word without "=", a value out of range, a
        needed key is missing, or `init` is given without a run.
    """
    values, given = read_settings(words, _DEFAULTS)
    missing = [key for key in ("graph", "input.train", "output") if not values[key]]
    if missing:
        raise ConfigError(f"{' and '.join(missing)} not set; give {' '.join(f'{key}=…' for key in missing)}")
    if (values["run"] is None) != (values["run_output"] is None):
        raise ConfigError("run and run_output belong together: give both, or neither")
    values["seed"] = seed_of(values)
    values["overwrite"] = flag("overwrite", values["overwrite"])
    choice("init", values["init"], ("neighbors", "random"))
    if values["run"] is None and given.get("init", ["null"]) != ["null"]:
        raise ConfigError(
            f"init={values['init']} is for the embeddings of a run: give run=RUN and run_output=DIR, or "
            "leave it out"
        )
    return values


def input_of(values: Mapping[str, Any]) -> InputConfig:
    """The settings of input.*, read and checked as those of `marius-prepare` are.

    Raises:
        ConfigError: a value out of range, or not as hydra writes values.
    """
    words = [f"{key}={one}" for key, one in values.items() if key.startswith("input.") and one is not None]
    return compose(PrepareConfig, [*words, "output=unused"]).input


def run(options: argparse.Namespace) -> None:
    """Extend the graph, and the run if one is given."""
    values = parse(options.settings)
    source = input_of(values)
    from marius_py.prepare.extend import extend_graph

    if values["run_output"] is not None:
        check_new_run(values, "run_output", "output")
    if values["run"] is not None:
        from marius_py.resuming.extending import check_run, extend_run

        check_run(values["run"], values["graph"], init=values["init"])
    with Bars() as bars:
        graph = extend_graph(
            values["graph"],
            str(source.train),
            values["output"],
            valid=source.valid,
            test=source.test,
            seed=values["seed"],
            overwrite=values["overwrite"],
            progress=bars,
            **source.reading,
        )
    say(f"graph: {graph.path}")
    if values["run"] is not None:
        try:
            folder = extend_run(
                values["run"],
                graph,
                values["run_output"],
                init=values["init"],
                run_graph=values["graph"],
            )
        except BaseException as error:
            error.add_note(
                f"output={values['output']} holds the new graph, without its run; overwrite=true makes both"
            )
            raise
        say(f"run: {folder}")
