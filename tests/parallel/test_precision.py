"""Which precision a device gets, decided without the device; and what each precision means for sharded weights."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import RecipeError
from headwater.parallel.precision import (
    Hardware,
    autocast,
    choose_precision,
    decide,
    is_half,
    matrix_products,
    product_dtype_of,
    sharding_policy,
)

PARTS = {
    "P100": Hardware("cuda", "Tesla P100", (6, 0)),
    "V100": Hardware("cuda", "Tesla V100-SXM2-32GB", (7, 0)),
    "T4": Hardware("cuda", "Tesla T4", (7, 5)),
    "A100": Hardware("cuda", "NVIDIA A100-SXM4-80GB", (8, 0)),
    "L4": Hardware("cuda", "NVIDIA L4", (8, 9)),
    "H100": Hardware("cuda", "NVIDIA H100 80GB HBM3", (9, 0)),
    "B200": Hardware("cuda", "NVIDIA B200", (10, 0)),
    "MI300X": Hardware("rocm", "AMD Instinct MI300X", (9, 4)),
    "M2": Hardware("mps", "Apple's GPU"),
    "CPU": Hardware("cpu", "this CPU", fast_bf16=True),
    "old CPU": Hardware("cpu", "this CPU"),
}
ABLE = {
    "P100": "fp32 fp16",
    "V100": "fp32 fp16",
    "T4": "fp32 fp16",
    "A100": "fp32 tf32 bf16 fp16",
    "L4": "fp32 tf32 bf16 fp16 fp8",
    "H100": "fp32 tf32 bf16 fp16 fp8",
    "B200": "fp32 tf32 bf16 fp16 fp8",
    "MI300X": "fp32 bf16 fp16",
    "M2": "fp32 bf16 fp16",
    "CPU": "fp32 bf16 fp16 fp8",
    "old CPU": "fp32 bf16 fp16 fp8",
}
AUTO = {
    "P100": "fp32",
    "V100": "fp16",
    "T4": "fp16",
    "A100": "bf16",
    "L4": "bf16",
    "H100": "bf16",
    "B200": "bf16",
    "MI300X": "bf16",
    "M2": "fp32",
    "CPU": "bf16",
    "old CPU": "fp32",
}


@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("wish", ["fp32", "tf32", "bf16", "fp16", "fp8"])
def test_a_part_does_what_it_has_arithmetic_for_and_refuses_the_rest(part: str, wish: str) -> None:
    if wish in ABLE[part].split():
        assert decide(wish, PARTS[part], 4096)[0] == wish
        return
    with pytest.raises(RecipeError) as caught:
        decide(wish, PARTS[part], 4096)
    assert caught.value.where == "train.precision"
    assert wish in caught.value.what
    assert PARTS[part].name in caught.value.what
    assert AUTO[part] in caught.value.mend


@pytest.mark.parametrize("part", PARTS)
def test_auto_is_bf16_else_fp16_else_fp32(part: str) -> None:
    precision, why = decide("auto", PARTS[part], 4096)
    assert precision == AUTO[part]
    assert why


def test_the_refusal_names_what_would_do() -> None:
    with pytest.raises(RecipeError, match=r"compute capability 7\.0.*no bf16.*A100.*\n.*fp16"):
        decide("bf16", PARTS["V100"], 4096)
    with pytest.raises(RecipeError, match=r"8\.0.*no fp8.*H100.*\n.*bf16"):
        decide("fp8", PARTS["A100"], 4096)


@given(
    kind=st.sampled_from(["cpu", "cuda", "rocm", "mps"]),
    capability=st.tuples(st.integers(3, 12), st.integers(0, 9)),
    fast=st.booleans(),
    width=st.integers(16, 16384),
)
def test_auto_never_picks_what_is_refused_nor_fp16_on_a_cpu(
    kind: str, capability: tuple[int, int], fast: bool, width: int
) -> None:
    hardware = Hardware(kind, "part", capability, fast)  # type: ignore[arg-type]
    precision, _ = decide("auto", hardware, width)
    assert decide(precision, hardware, width)[0] == precision
    assert precision in ("fp32", "bf16", "fp16")
    assert kind != "cpu" or precision != "fp16"


def test_slow_precisions_on_a_cpu_say_so() -> None:
    assert "200 times slower" in decide("fp16", PARTS["CPU"], 512)[1]
    assert "reference" in decide("fp8", PARTS["CPU"], 512)[1]
    assert "emulates" in decide("bf16", PARTS["old CPU"], 512)[1]
    assert decide("bf16", PARTS["CPU"], 512)[1] == "as the recipe says"


def test_a_narrow_model_on_a_cpu_stays_in_fp32() -> None:
    assert decide("auto", PARTS["CPU"], 64)[0] == "fp32"


def test_the_machine_at_hand_has_a_precision() -> None:
    precision, _ = choose_precision("auto", torch.device("cpu"), 1024)
    assert precision in ("fp32", "bf16")


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("fp32", torch.float32), ("tf32", torch.float32), ("bf16", torch.bfloat16), ("fp8", torch.bfloat16),
     ("fp16", torch.float16)],
)  # fmt: skip
def test_autocast_makes_products_in_the_dtype_of_the_precision(precision: str, dtype: torch.dtype) -> None:
    assert product_dtype_of(precision) == dtype  # type: ignore[arg-type]
    assert is_half(precision) == (dtype != torch.float32)  # type: ignore[arg-type]
    with autocast(precision, torch.device("cpu")):  # type: ignore[arg-type]
        assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == dtype
    assert (torch.ones(2, 2) @ torch.ones(2, 2)).dtype == torch.float32


def test_tf32_holds_for_the_block_only() -> None:
    before = torch.backends.cuda.matmul.allow_tf32
    with matrix_products("tf32"):
        assert torch.backends.cuda.matmul.allow_tf32
        with matrix_products("fp32"):
            assert not torch.backends.cuda.matmul.allow_tf32
    assert torch.backends.cuda.matmul.allow_tf32 == before


@pytest.mark.parametrize("precision", ["fp32", "tf32", "bf16", "fp16", "fp8"])
def test_gradients_are_reduced_in_fp32_whatever_the_precision(precision: str) -> None:
    policy = sharding_policy(precision)  # type: ignore[arg-type]
    assert policy.reduce_dtype in (None, torch.float32)
    assert policy.param_dtype == (product_dtype_of(precision) if is_half(precision) else None)  # type: ignore[arg-type]
    assert not policy.cast_forward_inputs
