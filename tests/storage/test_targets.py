"""Places that cannot be written to: names that are too long, be it for what is written first, and NULs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from marius_py.config import EvaluateConfig, load_config
from marius_py.errors import ConfigError
from marius_py.export import formats
from marius_py.prepare.folder import check_output
from marius_py.resuming.resume import check_free
from marius_py.storage.replacing import Replacing
from marius_py.storage.targets import check_target


def export(folder: Path) -> None:
    with formats.new_folder(folder, overwrite=False):
        pass


@pytest.mark.parametrize(
    ("check", "most"),
    [
        (lambda path: check_target(path, f"output={path}"), 255),
        (lambda path: check_output(path, overwrite=False), 255),
        (export, 255),
        (lambda path: check_free(path, resume=False), 256),
    ],
)
def test_a_name_that_is_too_long_is_refused(check: Callable[[Path], None], most: int, tmp_path: Path) -> None:
    check(tmp_path / ("a" * 200))
    with pytest.raises(ConfigError, match=r"^output.* aaa.*a… is too long for the name of a file or folder"):
        check(tmp_path / ("a" * most))
    link = tmp_path / "link"
    link.symlink_to("b" * 250)
    if most == 255:
        with pytest.raises(ConfigError, match=r"bbb… is too long for the name of a file or folder"):
            check(link)
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    "use",
    [
        lambda path: check_target(path, f"output={path}"),
        lambda path: check_output(Path(path), overwrite=False),
        lambda path: export(Path(path)),
        lambda path: check_free(Path(path), resume=False),
        lambda path: load_config([], config_dir=path),
        lambda path: EvaluateConfig(run=path),
        lambda path: EvaluateConfig(run="r", among=Path(path)),
    ],
)
def test_a_path_with_a_nul_is_refused(use: Callable[[str], object]) -> None:
    with pytest.raises(ConfigError, match=r"a\\x00b holds a NUL character, which no path may: leave it out"):
        use("a\0b")


def test_the_longest_name_can_be_written(tmp_path: Path) -> None:
    for length in range(255, 200, -1):
        path = tmp_path / ("a" * length)
        try:
            check_target(path, "output")
        except ConfigError:
            continue
        with Replacing([path]) as temporary:
            temporary[path].write_text("x")
        assert path.read_text() == "x"
        return
    raise AssertionError("all were refused")
