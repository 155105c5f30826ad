"""What tests of commands share: metrics, a command in a process, a saved run, a signal, a small graph."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from marius_py import cli
from marius_py.config import load_config, plain, write_yaml

METRICS = {
    "mrr": 0.25,
    "hits@1": 0.125,
    "hits@10": 0.5,
    "mean_rank": 12.5,
    "count": 40,
    "head": {"mrr": 0.2, "hits@1": 0.1, "hits@10": 0.4, "mean_rank": 15.0, "count": 20},
    "tail": {"mrr": 0.3, "hits@1": 0.15, "hits@10": 0.6, "mean_rank": 10.0, "count": 20},
    "protocol": "filtered, all entities, realistic ties",
}


def run_command(*words: str, **more: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "marius_py", *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **more)


def save_run(folder: Path) -> str:
    words = ["graph=g", f"output={folder}", "loss=logistic", "negatives.count=50", "training.epochs=2"]
    write_yaml(plain(load_config(words)), folder / "config.yaml")
    return f"output={folder}"


def send_signal(number: int) -> None:
    os.kill(os.getpid(), number)
    time.sleep(5)


SMALL = [
    "graph=g 1",
    "output=run=1",
    "model.dim=4",
    "training.batch_size=64",
    "training.valid_every=0",
    "negatives.count=8",
    "storage.capacity=2",
    "pipeline.compute_threads=1",
]


def write_small_graph() -> None:
    rows = [f"{i % 29}\tr\t{(i * 5 + 2) % 31}\n" for i in range(900)]
    Path("edges.tsv").write_text("".join(rows))
    assert cli.prepare(["input.train=edges.tsv", "output=g 1", "partitions=4"]) == 0
