"""JSON, the table, the picture, the command, and how light the import is."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from matplotlib.axes import Axes

from marius_py.errors import FormatError, MariusError, ScheduleError
from marius_py.ordering import build_schedule, format_summary, format_table, from_json, plot, to_json
from marius_py.ordering.__main__ import main
from tests.ordering.strategies import orders


@settings(max_examples=60)
@given(orders(max_p=24))
def test_json_round_trip(case: tuple[int, int, str]) -> None:
    schedule = build_schedule(*case, seed=4)
    again = from_json(to_json(schedule))
    assert again == schedule
    assert hash(again) == hash(schedule)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        pytest.param("[" * 100_000, "not JSON: maximum recursion depth", id="deep"),
        pytest.param("1" * 5000, "not JSON: Exceeds the limit", id="long"),
        ("[]", "found list"),
        ("{}", "'format': None"),
        ('{"format":"marius_py.schedule","version":2}', "'version': 2"),
        ('{"format":"marius_py.schedule","version":true}', "'version': True"),
        ('{"format":"marius_py.schedule","version":1.0}', r"'version': 1\.0"),
        ('{"format":"marius_py.schedule","version":1}', "'initial' is None; allowed: a list"),
        ('{"format":"marius_py.schedule","version":1,"initial":["a"]}', "allowed: integers"),
        ('{"format":"marius_py.schedule","version":1,"initial":[0],"steps":[3]}', "step 0 is a int"),
        (
            '{"format":"marius_py.schedule","version":1,"initial":[0],"steps":[{"evict":[],"admit":[],"buckets":[1]}]}',
            "step 0 has bucket 1",
        ),
        (
            '{"format":"marius_py.schedule","version":1,"p":"x","c":1,"initial":[0],"steps":[]}',
            "'p' holds 'x'",
        ),
    ],
)
def test_damaged_json_is_refused(text: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        from_json(text)


def test_json_of_a_bad_schedule_is_refused() -> None:
    data = json.loads(to_json(build_schedule(6, 3)))
    data["steps"][2]["buckets"].pop()
    with pytest.raises(ScheduleError, match="never runs"):
        from_json(json.dumps(data))
    data["initial"].pop()
    with pytest.raises(ScheduleError, match=r"^initial is .* 2 members; allowed: 3 \(= c\) distinct"):
        from_json(json.dumps(data))


def test_table_has_a_line_a_step() -> None:
    schedule = build_schedule(64, 30, seed=None)
    lines = format_table(schedule).splitlines()
    assert len(lines) == 1 + len(schedule.steps)
    assert max(map(len, lines)) <= 110
    assert "loads 103 = 30 + 73 swaps   lower bound 102   BETA 103" in format_summary(schedule)
    assert "swap" not in format_summary(build_schedule(4, 4)).splitlines()[-1].replace("0 swaps", "")
    assert format_table(build_schedule(3, 2), costs=[[0] * 3] * 3).count("█") == 0


@pytest.mark.parametrize(("p", "c", "ending"), [(1, 1, "svg"), (5, 5, "png"), (6, 3, "png"), (24, 6, "svg")])
def test_plot_writes_a_picture(p: int, c: int, ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"order.{ending}"
    figure = plot(build_schedule(p, c), path, title="a title")
    assert path.stat().st_size > 2000
    assert "a title" in figure.get_suptitle()


@pytest.mark.parametrize("columns", [1000, 50])
def test_plot_of_many_steps_takes_little_memory(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marius_py.ordering.drawing.MOST_COLUMNS", columns)
    schedule = build_schedule(40, 5)
    steps = len(schedule.steps)
    figure = plot(schedule)
    over_time = [axes for axes in figure.findobj(Axes) if axes.get_xlim() == (-0.5, steps - 0.5)]
    _, stays, work = over_time
    stride = -(-steps // columns)
    shown = stays.images[0].get_array()
    assert shown.dtype == np.uint8
    assert shown.shape == (40, -(-steps // stride))
    for column, step in zip(shown.T, schedule.steps[::stride], strict=True):
        assert tuple(np.flatnonzero(column)) == step.resident
        assert tuple(np.flatnonzero(column == 2)) == step.admit
    (area,) = work.patches  # one shape, not one a step
    assert area.get_data().values.tolist() == [len(step.buckets) for step in schedule.steps]


def test_plot_without_matplotlib_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(MariusError, match=r"pip install 'marius_py\[plot\]'"):
        plot(build_schedule(4, 2))


def test_command_prints_and_stores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture, stored = tmp_path / "a.png", tmp_path / "a.json"
    flags = ["12", "4", "--order", "beta", "--seed", "3", "--plot", str(picture), "--json", str(stored)]
    assert main(flags) == 0
    out = capsys.readouterr().out
    assert "lower bound 24   BETA 27" in out
    assert picture.exists()
    assert from_json(stored.read_text()) == build_schedule(12, 4, "beta", 3)


def test_command_compares(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["20", "5", "--compare"]) == 0
    out = capsys.readouterr().out
    assert "optimal" not in out
    assert "hilbert_symmetric" in out


def test_command_refuses_what_comparing_would_leave_undone(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    flags = ["--order", "auto", "--policy", "eager", "--seed", "0", "--json", "a.json", "--plot", "a.png"]
    assert main(["8", "4", "--compare", *flags]) == 2
    out, err = capsys.readouterr()
    assert not out
    assert err == f"error: --compare goes with P and C alone; leave it out, or {', '.join(flags[::2])}\n"


def test_command_refuses_bad_sizes(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["5", "7"]) == 2
    assert "allowed: 2 to p = 5" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--json", "--plot"])
def test_command_says_which_file_cannot_be_written(
    flag: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    missing = tmp_path / "none" / "a.png"
    assert main(["5", "3", flag, str(missing)]) == 2
    assert (
        f"{flag} {missing}: there is no folder {missing.parent}; create it first" in capsys.readouterr().err
    )
    taken = tmp_path / "a.png"
    taken.mkdir()
    assert main(["5", "3", flag, str(taken)]) == 1
    assert f"{flag} {taken} cannot be written (Is a directory)" in capsys.readouterr().err


def test_command_says_which_endings_a_picture_has(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert main(["5", "3", "--plot", str(tmp_path / "a.xyz")]) == 2
    err = capsys.readouterr().err
    assert f"--plot {tmp_path / 'a.xyz'}: Format 'xyz' is not supported" in err
    assert "png" in err


@pytest.mark.parametrize("name", ["order", "order.", "new/.png", "..", ""])
def test_command_refuses_a_picture_without_an_ending(
    name: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(["5", "3", "--plot", name])
    assert f"--plot: {name!r} has no ending, which chooses the format; give one of" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("other", ["a.png", "./a.png", "link.png", "hard.png"])
def test_command_refuses_one_file_for_both_flags(
    other: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("a.png").write_text("kept")
    Path("link.png").symlink_to("a.png")
    Path("hard.png").hardlink_to("a.png")
    assert main(["5", "3", "--json", "a.png", "--plot", other]) == 2
    assert (
        f"--plot {Path(other)} is the file of --json a.png too; give each its own" in capsys.readouterr().err
    )
    assert Path("a.png").read_text() == "kept"


def test_import_is_light() -> None:
    code = (
        "import sys, time; t = time.process_time(); import marius_py.ordering; s = time.process_time() - t;"
        "print(s, [m for m in ('torch', 'h5py', 'numpy', 'hydra', 'matplotlib') if m in sys.modules])"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        for _ in range(3)
    ]
    seconds, loaded = zip(*(run.stdout.split(" ", 1) for run in runs), strict=True)
    assert min(map(float, seconds)) < 0.2
    assert set(loaded) == {"[]\n"}


@pytest.mark.parametrize("flag", ["--json", "--plot"])
def test_a_folders_name_is_refused_for_a_file(
    flag: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["8", "4", flag, f"{tmp_path}/new/"])
    assert f"{flag}: {tmp_path}/new/ ends in a slash, as a folder does" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


COMMAND = [sys.executable, "-m", "marius_py.ordering"]


def test_module_runs() -> None:
    done = subprocess.run([*COMMAND, "8", "4"], capture_output=True, text=True, check=True)
    assert "loads 12 = 4 + 8 swaps   lower bound 12   BETA 13" in done.stdout


def test_command_escapes_what_an_encoding_lacks() -> None:
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "8", "4"], capture_output=True, text=True, check=True, env=environment)
    assert "\\u2588" in done.stdout
    assert "lower bound 12" in done.stdout


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ("8 4 >&-", 0, ""),
        ("8 1 2>&-", 2, ""),
        ("8 4 >/dev/full", 1, "error: standard output cannot be written: No space left on device\n"),
        (
            "8 4 --compare >/dev/full",
            1,
            "error: standard output cannot be written: No space left on device\n",
        ),
    ],
)
def test_command_ends_in_order_whatever_its_streams_are(words: str, code: int, message: str) -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    line = f"{shlex.join(COMMAND)} {words}"
    done = subprocess.run(["sh", "-c", line], capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", message)
