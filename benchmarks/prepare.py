"""Edges a second of `marius-prepare` by format, beside a plain read of the same file.

    python benchmarks/prepare.py                     # 200,000 edges
    python benchmarks/prepare.py --full --json FILE  # 10,000,000 edges

Writes one R-MAT graph as TSV with names, as Parquet with numbers and as NumPy array, and prepares each in a
process of its own, in turn, `--repeats` times. The limit beside each is reading its file from beginning to
end (from the page cache, as preparing does) and writing the edges once.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from common import (
    MEBIBYTE,
    Ended,
    disk_rates,
    finish,
    machine,
    machine_line,
    marius,
    parser,
    repeats_of,
    spread,
)

from marius_py.generate import rmat_edges

SIZES = {False: (20_000, 200_000), True: (1_000_000, 10_000_000)}
EDGE_BYTES = 12


def write_tsv(path: Path, edges: np.ndarray) -> None:
    """Names such as node_17, tab-separated."""
    with path.open("w", encoding="utf-8") as file:
        for start in range(0, len(edges), 1 << 16):
            rows = edges[start : start + (1 << 16)].tolist()
            file.writelines(
                f"node_{head}\trelation_{relation}\tnode_{tail}\n" for head, relation, tail in rows
            )


def write_parquet(path: Path, edges: np.ndarray) -> None:
    """Three columns of integers."""
    names = ("head", "relation", "tail")
    pq.write_table(pa.table({name: edges[:, column] for column, name in enumerate(names)}), path)


FORMATS: dict[str, Callable[[Path, np.ndarray], None]] = {
    "tsv": write_tsv,
    "parquet": write_parquet,
    "npy": lambda path, edges: np.save(path, edges),
}


def read_rate(path: Path) -> float:
    """Bytes a second of reading a file in order."""
    size, block = 0, bytearray(8 * MEBIBYTE)
    started = time.perf_counter()
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(block):
            size += count
    return size / (time.perf_counter() - started)


def measure(path: Path, folder: Path, options: argparse.Namespace) -> Ended:
    """Prepare one file into a new folder."""
    output = folder / "graph"
    words = [f"input.train={path}", f"output={output}", f"partitions={options.partitions}", "overwrite=true"]
    return marius("prepare", *words)


def main() -> int:
    """Parse, write the files, prepare each, print."""
    options = _options().parse_args()
    nodes, count = SIZES[options.full]
    nodes, count = options.nodes or nodes, options.edges or count
    print(machine_line(machine()))
    edges = np.concatenate(list(rmat_edges(nodes, count, options.relations)))
    report: dict[str, Any] = {"nodes": nodes, "edges": count, "formats": {}}
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        plain = disk_rates(folder, max(count * EDGE_BYTES, MEBIBYTE))
        print(f"{nodes:,} nodes, {count:,} edges; plain writing {plain.write / 1e6:.0f} MB/s")
        paths = {kind: folder / f"edges.{kind}" for kind in options.formats}
        for kind, path in paths.items():
            FORMATS[kind](path, edges)
        del edges
        runs: dict[str, list[Ended]] = {kind: [] for kind in paths}
        for _ in range(repeats_of(options)):
            for kind, path in paths.items():
                runs[kind].append(measure(path, folder, options))
        for kind, path in paths.items():
            size, rate = path.stat().st_size, read_rate(path)
            seconds = statistics.median(ended.seconds for ended in runs[kind])
            limit_s = size / rate + count * EDGE_BYTES / plain.write
            peak = max(ended.peak_rss_bytes for ended in runs[kind])
            report["formats"][kind] = {
                "file_bytes": size,
                "seconds": spread([ended.seconds for ended in runs[kind]]),
                "cpu_s": spread([ended.cpu_s for ended in runs[kind]]),
                "edges_per_second": count / seconds,
                "edges_per_cpu_second": count / statistics.median(ended.cpu_s for ended in runs[kind]),
                "read_bytes_per_second": rate,
                "limit_s": limit_s,
                "peak_rss_bytes": peak,
            }
            print(f"{kind:8} {size / 1e6:7.1f} MB  {seconds:6.2f} s with start-up, "
                  f"{count / seconds:,.0f} edges/s, "
                  f"{size / seconds / 1e6:.0f} MB/s; reading and writing alone {limit_s:.2f} s; "
                  f"peak {peak / MEBIBYTE:.0f} MiB")  # fmt: skip
    finish(report, options)
    return 0


def _options() -> argparse.ArgumentParser:
    made = parser(__doc__)
    made.add_argument("--nodes", type=int, help="N")
    made.add_argument("--edges", type=int, help="E")
    made.add_argument("--relations", type=int, default=10)
    made.add_argument("--partitions", type=int, default=8, help="p")
    made.add_argument("--formats", nargs="+", choices=list(FORMATS), default=list(FORMATS))
    return made


if __name__ == "__main__":
    sys.exit(main())
