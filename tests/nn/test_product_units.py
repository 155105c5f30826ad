"""Precision of products: what a program has set for itself is asked for and left as it was."""

from collections.abc import Iterator

import pytest
import torch

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


def test_the_precision_of_all_devices() -> None:
    torch.set_float32_matmul_precision("high")
    try:
        assert product_precision("cpu") == product_precision("cuda") == "tf32"
        with product_units("bfloat16"):
            assert product_precision("cpu") == "bf16"
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision("highest")
