"""Precision of products: what a program has set for itself is asked for and left as it was."""

from collections.abc import Iterator

import pytest
import torch

from marius_py.nn import product_units as product_units_module
from marius_py.nn.product_units import product_precision, product_units, rounds_products


@pytest.fixture(autouse=True)
def settings_of_before() -> Iterator[None]:
    parts = [torch.backends.cuda.matmul, torch.backends.mkldnn.matmul]  # type: ignore[attr-defined]
    before = [part.fp32_precision for part in parts]
    yield
    for part, precision in zip(parts, before, strict=True):
        part.fp32_precision = precision


def test_devices_that_a_program_has_set_apart() -> None:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    with pytest.raises(RuntimeError):
        torch.get_float32_matmul_precision()
    assert product_precision("cuda") == "tf32"
    assert product_precision("cpu") == "ieee"
    assert not rounds_products()
    for precision, meanwhile in (("float32", "ieee"), ("bfloat16", "bf16")):
        with product_units(precision):  # type: ignore[arg-type]
            assert product_precision("cpu") == meanwhile
            assert product_precision("cuda") == "tf32"
        assert product_precision("cpu") == "ieee"


def test_whether_products_are_rounded_does_not_depend_on_who_asks_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = []
    for enabled in (True, False):
        monkeypatch.setattr(product_units_module, "_found", {})
        with product_units("bfloat16"), torch.autocast("cpu", enabled=enabled):
            found.append(rounds_products())
    assert found[0] == found[1]


def test_what_was_found_while_another_thread_changed_the_setting_is_not_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(product_units_module, "_found", {})
    product_units_module._rounds("bf16")  # under the setting of "ieee"
    assert not product_units_module._found
    with product_units("bfloat16"):
        rounds_products()
    assert list(product_units_module._found) == ["bf16"]


def test_the_precision_of_all_devices() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        assert product_precision("cpu") == product_precision("cuda") == "tf32"
        with product_units("bfloat16"):
            assert product_precision("cpu") == "bf16"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("own", ["none", "tf32"])
def test_the_last_of_several_users_leaves_what_a_program_has_set(own: str) -> None:
    setting = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    setting.fp32_precision = own
    first, second = product_units("bfloat16"), product_units("bfloat16")
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert product_precision("cpu") == "bf16"
    second.__exit__(None, None, None)
    assert setting.fp32_precision == own


def test_nobody_gets_less_precision_than_asked_for() -> None:
    with product_units("bfloat16"):
        with product_units("float32"):
            assert product_precision("cpu") == "ieee"
            with product_units("bfloat16"):
                assert product_precision("cpu") == "ieee"
        assert product_precision("cpu") == "bf16"
    assert product_precision("cpu") == "ieee"
