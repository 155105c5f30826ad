"""Kill commands at random moments, many times: scripts/crash_harness.py FOLDER --kills 200."""

import argparse
import sys
import time
from pathlib import Path

from marius_py.testing.crash_harness import CrashHarness


def main() -> int:
    """Run trials until enough kills have struck; prints a summary, or the failed trial."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="scratch folder")
    parser.add_argument("--kills", type=int, default=200, help="kills in all")
    parser.add_argument("--seed", type=int, default=0, help="first trial's seed")
    parser.add_argument("--mode", choices=("inline", "threaded"), default="inline")
    options = parser.parse_args()
    started, seed = time.monotonic(), options.seed
    with CrashHarness(options.folder, options.mode) as harness:
        report = harness.report
        while report.total < options.kills:
            harness.trial(seed)
            seed += 1
    positions = report.resumed_from.items()
    inside = sum(count for (_, step, batch), count in positions if (step, batch) != (0, 0))
    print(
        f"{report.total} kills in {report.trials} trials, {time.monotonic() - started:.0f} s, all recovered"
    )
    print("by command:", dict(report.kills))
    print(f"training resumed at {len(report.resumed_from)} positions; {inside} times inside an epoch")
    return 0


if __name__ == "__main__":
    sys.exit(main())
