"""A folder of a user's own groups: what it adds, and which of its files is wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from marius_py import cli
from marius_py.config import EvaluateConfig, compose, load_config
from marius_py.errors import ConfigError
from tests.config.composing import error_of


def test_a_folder_of_groups_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("defaults: [base, _self_]\ndim: 32\n")
    assert load_config(["graph=g", "model=mine"], config_dir=tmp_path).model.dim == 32
    assert "mine" not in error_of("graph=g", "model=nosuch")
    with pytest.raises(ConfigError, match="mine"):
        load_config(["graph=g", "model=nosuch"], config_dir=tmp_path)
    with pytest.raises(ConfigError, match="is not a folder"):
        load_config(["graph=g"], config_dir=tmp_path / "absent")
    (tmp_path / "link").symlink_to("link")  # to itself
    with pytest.raises(ConfigError, match="is not a folder"):
        load_config(["graph=g"], config_dir=tmp_path / "link")


def test_groups_of_ones_own_come_first(tmp_path: Path) -> None:
    mine = tmp_path / 'm"y, ${groups}'
    (mine / "model").mkdir(parents=True)
    (mine / "model" / "complex.yaml").write_text("defaults: [base, _self_]\ndim: 32\n")
    assert load_config(["graph=g", "model=complex"], config_dir=mine).model.dim == 32
    assert load_config(["graph=g"], config_dir=mine).model.dim == 32
    assert load_config(["graph=g", "model=distmult"], config_dir=mine).model.dim == 128
    (mine / "train.yaml").write_text("dim: 3\n")
    with pytest.raises(ConfigError, match=r"holds train\.yaml, .* move the file elsewhere"):
        load_config(["graph=g"], config_dir=mine)
    assert compose(EvaluateConfig, ["run=r"], config_dir=mine).run == "r"


def test_a_file_of_ones_own_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "experiment").mkdir()
    (tmp_path / "experiment" / "broken.yaml").write_text("a: [1\nb: {")
    with pytest.raises(ConfigError, match=r"broken\.yaml.*line 2"):
        load_config(["graph=g", "experiment=broken"], config_dir=tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("experiment/mine", "# @package _global_\nmodel: {dimm: 16}\n", ["experiment=mine"]),
        ("model/mine", "defaults: [base, _self_]\ndimm: 16\n", ["model=mine"]),
        ("model/complex", "defaults: [base, _self_]\ndimm: {a: 16}\n", []),  # in the place of the package's
    ],
)
def test_a_file_of_ones_own_with_an_unknown_key_is_named(
    name: str, content: str, words: list[str], tmp_path: Path
) -> None:
    file = tmp_path / f"{name}.yaml"
    file.parent.mkdir()
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        load_config(["graph=g", "training.epochs=2", *words], config_dir=tmp_path)
    assert str(caught.value).startswith(f"{file}: unknown key model.dimm; did you mean model.dim?")


@pytest.mark.parametrize(
    ("name", "content", "words", "message"),
    [
        (
            "experiment/mine",
            "training: {epochs: 0}",
            ["experiment=mine"],
            "training.epochs=0 is out of range",
        ),
        ("experiment/mine", "training: 5", ["experiment=mine"], "training=5 has the wrong type"),
        ("training/mine", "epochs: many", ["training=mine"], "training.epochs='many' has the wrong type"),
        ("model/mine", "dim: 3", ["model=mine", "training.seed=1"], "model.dim=3 is odd"),
        ("loss/mine", "{_target_: softmax, x: 1}", ["loss=mine"], "loss.x is no argument of softmax"),
        ("loss/mine", "_target_: absent.Loss", ["loss=mine"], "loss=absent.Loss: no module named absent"),
        (
            "experiment/mine",
            "graph: /absent/graph",
            ["experiment=mine"],
            "graph folder /absent/graph does not exist",
        ),
    ],
)
def test_a_file_of_ones_own_with_a_wrong_value_is_named(
    name: str,
    content: str,
    words: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also where a class refuses it, after composing, and in a sweep; not where a word gives the value."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "own" / f"{name}.yaml"
    file.parent.mkdir(parents=True)
    file.write_text(f"{'# @package _global_' if 'experiment' in name else ''}\n{content}\n")
    words = ["--config-dir", "own", "output=run", *words, *([] if "graph" in content else ["graph=g"])]
    for sweep in ([], ["-m"]):
        assert cli.train([*words, *sweep]) == 2
        assert capsys.readouterr().err.splitlines()[-1].startswith(f"error: {file}: {message}")
    assert not (tmp_path / "run").exists()


def test_a_wrong_value_of_a_word_is_not_put_down_to_a_file(tmp_path: Path) -> None:
    _written(tmp_path, "# @package _global_\nmodel: {dim: 16}\ntraining: {epochs: 0}\n")
    for word in ("training.epochs=-1", "model.dim=7", "loss=nopkg"):
        with pytest.raises(ConfigError, match=f"^{word}"):
            load_config(["graph=g", "training.epochs=1", "experiment=mine", word], config_dir=tmp_path)


@pytest.mark.parametrize("content", ["model: {dim: 16}\n", "", "# mine\n# @package _global_\ndevice: cpu\n"])
@pytest.mark.parametrize("name", ["mine", "sub/mine"])
def test_an_experiment_without_its_first_line_is_named_with_that_line(
    content: str, name: str, tmp_path: Path
) -> None:
    file = _written(tmp_path, content, name)
    with pytest.raises(ConfigError) as caught:
        load_config(["graph=g", f"experiment={name}"], config_dir=tmp_path)
    assert str(caught.value) == (
        f"{file} lacks the line `# @package _global_`, without which its settings are none of the run's: "
        "write it as the first line of the file"
    )


def test_an_experiment_may_be_of_one_section(tmp_path: Path) -> None:
    _written(tmp_path, "# @package model\ndim: 16\n")
    assert load_config(["graph=g", "experiment=mine"], config_dir=tmp_path).model.dim == 16


def test_a_file_of_ones_own_that_is_not_utf8_is_named(tmp_path: Path) -> None:
    """Also where another file chooses it, and beside others that nobody chose."""
    _written(tmp_path, "# @package _global_\ndefaults: [/model: small]\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "other.yaml").write_bytes(b"# \xff\n")
    (tmp_path / "model" / "small.yaml").write_bytes("dim: 16\n# réglages\n".encode("latin-1"))
    with pytest.raises(ConfigError) as caught:
        load_config(["graph=g", "experiment=mine"], config_dir=tmp_path)
    assert str(caught.value) == (
        f"{tmp_path}/model/small.yaml is not UTF-8: line 2 holds the byte 0xe9; save the file as UTF-8"
    )


@pytest.mark.parametrize(
    ("default", "message"),
    [
        (
            "override /loss: nope",
            "loss=nope is unknown: it takes one of logistic, margin, softmax; a class of yours is named by "
            "loss: custom there, and its dotted path as loss._target_",
        ),
        (
            "override /storage@storage: [cudda]",
            "storage=cudda is unknown: it takes one of cuda, default; did",
        ),
        ("base_mine", "experiment=base_mine is unknown: it takes one of a_first, demo, "),
        ("/nosuch: one", "its defaults name nosuch/one, but there is no file nosuch/one.yaml"),
    ],
)
def test_a_default_that_is_no_file_is_named_with_the_file_that_has_it(
    default: str, message: str, tmp_path: Path
) -> None:
    text = f"# @package _global_\ndefaults:\n  - {default}\n"
    _written(tmp_path, text, "a_first")  # not chosen
    file = _written(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(["graph=g", "experiment=mine"], config_dir=tmp_path)
    assert str(caught.value).startswith(f"{file}: {message}")
    assert "Config search path" not in str(caught.value)


def _written(folder: Path, content: str, name: str = "mine") -> Path:
    file = folder / "experiment" / f"{name}.yaml"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)
    return file


def test_a_folder_that_is_none_is_told_before_a_choice_that_it_lacks(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"--config-dir {tmp_path}/absent is not a folder"):
        load_config(["graph=g", "experiment=mine"], config_dir=tmp_path / "absent")
