"""Draws the figures of docs/ordering.md: `python docs/images/ordering_figures.py`, needs matplotlib."""

from __future__ import annotations

from pathlib import Path

from marius_py.ordering import assign_buckets, build_schedule, cyclic, plot, simulate

try:
    from matplotlib.figure import Figure
except ModuleNotFoundError:
    raise SystemExit("this script needs matplotlib: pip install 'marius_py[plot]'") from None

FOLDER = Path(__file__).parent
SHARES = [share / 50 for share in range(1, 76)]


def idle_share(p: int, c: int, policy: str, share: float) -> float:
    """Idle time as a share of an epoch whose I/O a swap is `share` of the mean work of a step."""
    schedule = assign_buckets(cyclic(p, c), policy)  # type: ignore[arg-type]
    swap = share * p * p / len(schedule.steps)
    epoch = simulate(schedule, read_rate=2 / swap, write_rate=2 / swap, cold=False)
    return epoch.idle_s / epoch.makespan_s


def draw_idle() -> None:
    """Idle time against I/O for both policies."""
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for colour, (p, c) in zip(("#d1495b", "#30638e", "#edae49"), ((16, 4), (32, 8), (64, 16)), strict=True):
        for policy, style in (("eager", "--"), ("deadline", "-")):
            values = [100 * idle_share(p, c, policy, share) for share in SHARES]
            axes.plot(SHARES, values, style, color=colour, label=f"({p}, {c}) {policy}")
    axes.set(
        xlabel="I/O a swap / mean work of a step", ylabel="idle, % of the epoch", xlim=(0, 1.5), ylim=(0, 40)
    )
    axes.axvline(1.0, color="black", linewidth=0.6, linestyle=":")
    axes.legend(ncols=3, fontsize=8)
    figure.savefig(FOLDER / "ordering_idle.png", dpi=130)


if __name__ == "__main__":
    plot(build_schedule(8, 4, seed=None, policy="eager"), FOLDER / "ordering_8_4.png")
    plot(build_schedule(32, 8, "cyclic", seed=None), FOLDER / "ordering_32_8.png")
    draw_idle()
