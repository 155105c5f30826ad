"""What stale rows cost: test MRR against the number of batches in flight.

    python benchmarks/staleness.py --graph graphs/fb15k_237 --plot docs/images/staleness.png
    python benchmarks/staleness.py --graph graphs/fb15k_237 experiment=fb15k_237/complex_dropout model.dim=64

A batch reads rows that the batches computed beside it have not changed yet: with n batches in flight and n
workers, those of n - 1 others. (On a CPU fewer workers than batches in flight leave rows no staler than the
workers do.) Trains the same run for each `--in-flight`, everything else equal, and draws full filtered test
MRR and throughput. Further words are settings of marius-train.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from common import finish, machine, machine_line, marius, parser

IN_FLIGHT = [1, 2, 4, 8, 16, 32]


def draw(points: list[dict[str, Any]], path: Path) -> None:
    """MRR and edges/s over batches in flight, one below the other."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (quality, speed) = pyplot.subplots(2, 1, figsize=(6, 5), sharex=True, layout="constrained")
    flights = [point["max_in_flight"] for point in points]
    quality.plot(flights, [point["mrr"] for point in points], marker="o")
    quality.set_ylabel("test MRR (full, filtered)")
    speed.plot(flights, [point["edges_per_second"] for point in points], marker="o", color="tab:green")
    speed.set_ylabel("edges a second")
    speed.set_ylim(bottom=0)
    speed.set_xscale("log", base=2)
    speed.set_xticks(flights, [str(flight) for flight in flights])
    speed.set_xlabel("pipeline.max_in_flight")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def main() -> int:
    """Train once for each number of batches in flight."""
    command = parser(__doc__)
    command.add_argument("--graph", required=True, help="folder of a prepared graph")
    command.add_argument("--in-flight", type=int, nargs="+", default=IN_FLIGHT, help="batches in flight")
    command.add_argument("--plot", type=Path, help="write the picture to this file")
    options, words = command.parse_known_args()
    facts = machine()
    print(machine_line(facts))
    points: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for flight in options.in_flight:
            run = Path(folder) / str(flight)
            given = (f"graph={options.graph}", f"output={run}", "training.valid_every=0")
            pipeline = ("mode=threaded", f"max_in_flight={flight}", f"compute_workers={flight}")
            marius("train", *given, *(f"pipeline.{setting}" for setting in pipeline), *words)
            result = json.loads((run / "result.json").read_text())
            test, train = result["test"], result["train"]
            points.append(
                {
                    "max_in_flight": flight,
                    "mrr": test["mrr"],
                    "hits@10": test["hits@10"],
                    "edges_per_second": train["edges_per_second"],
                }
            )
            print(
                f"in flight {flight:3}: test MRR {test['mrr']:.4f}, {train['edges_per_second']:,.0f} edges/s"
            )
    if options.plot:
        draw(points, options.plot)
    finish({"machine": facts, "settings": words, "points": points}, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
