"""fp8 products: exact against a reference, the same under tensor parallelism, training as bf16 does."""

from __future__ import annotations

import subprocess
import sys
from typing import Any, Literal

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from headwater.core.errors import RecipeError
from headwater.model import Decoder, ModelConfig, cross_entropy, init_weights
from headwater.parallel.float8 import (
    BACKWARD,
    FORWARD,
    Float8Linear,
    backend_for,
    convert,
    has_torchao,
    scaled_product,
    to_float8,
)
from headwater.parallel.precision import autocast
from headwater.parallel.step_config import Float8Config

Scaling = Literal["tensor", "row"]
CPU = torch.device("cpu")
CONFIG = ModelConfig(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, intermediate_size=128,
    vocab_size=128, max_position_embeddings=64, attention_bias=True,
)  # fmt: skip


@given(
    rows=st.integers(1, 9), columns=st.integers(1, 9), exponent=st.integers(-20, 20), dim=st.sampled_from([None, 0, 1])
)
def test_casting_keeps_every_value_within_the_format(rows: int, columns: int, exponent: int, dim: int | None) -> None:
    x = torch.randn(rows, columns, generator=torch.Generator().manual_seed(rows)) * 2.0**exponent
    for dtype, bits in ((FORWARD, 3), (BACKWARD, 2)):
        small, factor = to_float8(x, dtype, dim)
        back = small.float() * factor
        largest = x.abs().amax() if dim is None else x.abs().amax(dim, keepdim=True)
        # Half a unit in the last place, or of the subnormals' spacing.
        limit = torch.finfo(dtype)
        bound = torch.maximum(x.abs() * 2.0 ** -(bits + 1), largest / limit.max * limit.smallest_normal * 2.0**-bits)
        assert ((back - x).abs() <= bound * 1.001).all()


def test_zeros_stay_zero_and_infinity_is_seen() -> None:
    small, factor = to_float8(torch.zeros(3, 3), FORWARD)
    assert torch.equal(small.float() * factor, torch.zeros(3, 3))
    small, factor = to_float8(torch.tensor([[1.0, float("nan")]]), FORWARD)
    assert not torch.isfinite(small.float() * factor).all()


@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("left", [FORWARD, BACKWARD])
def test_a_product_is_exactly_that_of_the_cast_numbers(by_row: bool, left: torch.dtype) -> None:
    """fp8 products fit fp32 exactly; only the order of a sum is free."""
    generator = torch.Generator().manual_seed(2)
    a, b = torch.randn(24, 48, generator=generator), torch.randn(48, 32, generator=generator)
    a8, b8 = to_float8(a, left, 1 if by_row else None), to_float8(b, FORWARD, 0 if by_row else None)
    expected = (a8[0].double() @ b8[0].double()) * a8[1] * b8[1]
    found = scaled_product(a8, b8, torch.float32)
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=1e-6 * float(expected.abs().max()))
    half = scaled_product(a8, b8, torch.bfloat16)
    torch.testing.assert_close(half, expected.bfloat16(), rtol=2**-7, atol=1e-6)


def reference(x: Tensor, weight: Tensor, grad: Tensor, by_row: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Output and gradients of a linear layer by casting and multiplying in float64."""

    def cast(t: Tensor, dtype: torch.dtype, dim: int) -> Tensor:
        limit = torch.finfo(dtype).max
        largest = (t.abs().amax(dim, keepdim=True) if by_row else t.abs().amax()).double()
        scale = (limit / largest).float()
        return (t.float() * scale).to(dtype).double() / scale

    y = cast(x, FORWARD, 1) @ cast(weight, FORWARD, 1).t()
    grad_x = cast(grad, BACKWARD, 1) @ cast(weight, FORWARD, 0)
    grad_w = cast(grad, BACKWARD, 0).t() @ cast(x, FORWARD, 0)
    return y, grad_x, grad_w


@pytest.mark.parametrize("scaling", ["tensor", "row"])
def test_output_and_gradients_of_a_layer_are_the_reference_s(scaling: Scaling) -> None:
    layer, x, upstream = layer_and_data(scaling)
    x.requires_grad_()
    with autocast("fp8", CPU):
        y = layer(x)
    y.backward(upstream)
    assert layer.bias is not None
    assert layer.weight.grad is not None
    expected = reference(x.detach().bfloat16(), layer.weight.detach().bfloat16(), upstream.bfloat16(), scaling == "row")
    bias = layer.bias.detach().bfloat16()
    assert y.dtype == torch.bfloat16
    assert layer.weight.dtype == layer.weight.grad.dtype == torch.float32
    for found, known in (
        (y.detach(), expected[0].bfloat16() + bias),
        (x.grad, expected[1]),
        (layer.weight.grad, expected[2]),
    ):
        assert found is not None
        # Two roundings to bf16, of the product and of its sum with the bias, on either side: a unit of the last place
        # each, which is at most 2^-7 of the largest value.
        torch.testing.assert_close(found.double(), known.double(), rtol=0, atol=2 * 2**-7 * float(known.abs().max()))


def layer_and_data(scaling: Scaling) -> tuple[Float8Linear, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    holder = nn.Module()
    holder.model = nn.Module()
    holder.model.layers = nn.ModuleDict({"0": nn.Linear(64, 48)})
    convert(holder, Float8Config(scaling=scaling))
    layer = holder.model.layers["0"]
    assert isinstance(layer, Float8Linear)
    with torch.no_grad():
        layer.weight.copy_(torch.randn(48, 64, generator=generator) / 8)
        layer.bias.uniform_(-0.125, 0.125, generator=generator)  # what a Linear of 64 inputs begins with
    return layer, torch.randn(40, 64, generator=generator), torch.randn(40, 48, generator=generator).bfloat16()


def trained(precision: str, scaling: Scaling = "tensor", steps: int = 30) -> list[float]:
    decoder = Decoder(CONFIG)
    init_weights(decoder, seed=0)
    if precision == "fp8":
        convert(decoder, Float8Config(scaling=scaling))
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=3e-3)
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(128, (4, 33), generator=generator)
    losses = []
    for _ in range(steps):
        with autocast(precision, CPU):  # type: ignore[arg-type]
            result = cross_entropy(decoder(tokens[:, :-1]), decoder.lm_head_weight, tokens[:, 1:])
        (result.total / result.count).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(float(result.nats) / int(result.count))
    return losses


@pytest.mark.parametrize("scaling", ["tensor", "row"])
def test_a_model_learns_as_it_does_in_bf16(scaling: Scaling) -> None:
    half, eight = trained("bf16"), trained("fp8", scaling)
    assert eight[0] == pytest.approx(half[0], rel=1e-3)
    assert eight[-1] < 0.8 * eight[0]
    assert eight[-1] == pytest.approx(half[-1], rel=0.03)


def test_projections_of_blocks_are_converted_and_nothing_else() -> None:
    decoder = Decoder(CONFIG)
    init_weights(decoder, seed=0)
    before = dict(decoder.named_parameters())
    names = convert(decoder, Float8Config())
    assert len(names) == 7 * 2
    assert {id(p) for p in decoder.parameters()} == {id(p) for p in before.values()}
    assert list(dict(decoder.named_parameters())) == list(before)
    assert not isinstance(decoder.lm_head, Float8Linear)
    assert all(p.dtype == torch.float32 for p in decoder.parameters())


def test_sides_that_tensor_cores_do_not_take_are_refused() -> None:
    narrow = Decoder(CONFIG.model_copy(update={"intermediate_size": 120}))
    with pytest.raises(RecipeError, match=r"120 x 64.*multiples of 16.*\n.*bf16"):
        convert(narrow, Float8Config())


def test_tensor_scaling_keeps_a_byte_an_element_for_the_backward_pass() -> None:
    sizes = {}
    for scaling in ("tensor", "row"):
        layer, x, _ = layer_and_data(scaling)  # type: ignore[arg-type]
        kept: list[Tensor] = []
        with torch.autograd.graph.saved_tensors_hooks(lambda t, kept=kept: kept.append(t) or t, lambda t: t):
            layer(x)
        sizes[scaling] = max(t.element_size() for t in kept if t.numel() == x.numel())
    assert sizes == {"tensor": 1, "row": 4}


# Tensor parallelism and sharding.


def _tensor_parallel(scaling: Scaling, ranks: int) -> dict[str, Tensor]:
    """A column-parallel layer and a row-parallel one behind it; whole gradients and the output."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Replicate
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    stage, x = two_layers()
    if ranks > 1:
        plan: dict[str, Any] = {"model.layers.up": ColwiseParallel(), "model.layers.down": RowwiseParallel()}
        parallelize_module(stage, init_device_mesh("cpu", (ranks,)), plan)
    convert(stage, Float8Config(scaling=scaling))
    layers = stage.model.layers  # type: ignore[union-attr]
    with autocast("fp8", CPU):
        y = layers["down"](torch.relu(layers["up"](x)))  # type: ignore[index]
    (y.float() * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
    result = {"y": y.detach().float()}
    assert x.grad is not None
    result["x"] = x.grad
    for name, p in stage.named_parameters():
        grad = p.grad
        assert grad is not None
        result[name] = grad.redistribute(placements=[Replicate()]).to_local() if isinstance(grad, DTensor) else grad
    return result


def two_layers() -> tuple[nn.Module, Tensor]:
    generator = torch.Generator().manual_seed(6)
    stage = nn.Module()
    stage.model = nn.Module()
    stage.model.layers = nn.ModuleDict({"up": nn.Linear(32, 64), "down": nn.Linear(64, 32)})
    with torch.no_grad():
        for p in stage.parameters():
            p.copy_(torch.randn(p.shape, generator=generator) / 4)
    return stage, torch.randn(2, 16, 32, generator=generator).requires_grad_()


@pytest.mark.parametrize("scaling", ["tensor", "row"])
def test_tensor_parallel_ranks_multiply_the_same_fp8_numbers_as_one(scaling: Scaling) -> None:
    """What differs is the order of sums and where they are rounded to bf16: two partial sums in place of one."""
    from tests.parallel.ranks import run_ranks

    whole = _tensor_parallel(scaling, 1)
    for found in run_ranks(2, _tensor_parallel, scaling, 2):
        assert found.keys() == whole.keys()
        for name, tensor in whole.items():
            error = (found[name] - tensor).norm() / tensor.norm()
            assert error < 4e-3, (name, float(error))


def _sharded(scaling: Scaling) -> dict[str, Tensor]:
    from torch.distributed.fsdp import fully_shard

    from headwater.parallel.precision import sharding_policy

    decoder, tokens = Decoder(CONFIG), torch.arange(2 * 16).view(2, 16) * 3
    init_weights(decoder, seed=0)
    convert(decoder, Float8Config(scaling=scaling))
    if dist.is_initialized():
        for block in decoder.model.layers.values():
            fully_shard(block, mp_policy=sharding_policy("fp8"))
        fully_shard(decoder)
    with autocast("fp8", CPU):
        hidden = decoder(tokens)
    hidden.square().sum().backward()
    grads = {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}
    return {name: g.full_tensor() if dist.is_initialized() else g for name, g in grads.items()}  # type: ignore[attr-defined]


@pytest.mark.parametrize("scaling", ["tensor", "row"])
def test_sharded_weights_give_the_gradients_of_one_process(scaling: Scaling) -> None:
    """Both ranks see the same tokens, so the mean over ranks is one process's gradient. What differs is the rounding of
    the blocks' norm weights and biases, which travel in bf16."""
    from tests.parallel.ranks import run_ranks

    whole = _sharded(scaling)
    found = run_ranks(2, _sharded, scaling)[0]
    assert found.keys() == whole.keys()
    for name, tensor in whole.items():
        error = (found[name] - tensor).norm() / tensor.norm()
        assert error < (5e-3 if "norm" in name or "bias" in name else 1e-6), (name, float(error))


# torchao.


def test_torchao_is_for_cuda_only_and_not_for_sharded_matrices() -> None:
    assert backend_for(CPU) == "torch"
    assert backend_for(torch.device("cuda", 0), tensor_parallel=True) == "torch"
    assert backend_for(torch.device("cuda", 0)) == ("torchao" if has_torchao() else "torch")


@pytest.mark.skipif(not has_torchao(), reason="torchao is not installed (pip install 'headwater[fp8]')")
def test_torchao_does_the_same_mathematics() -> None:
    """In a process of its own: torchao replaces operators when it is imported."""
    script = "from tests.parallel.test_float8 import compare_with_torchao as compare; compare('tensor'); compare('row')"
    subprocess.run([sys.executable, "-c", script], check=True, timeout=120)


def compare_with_torchao(scaling: Scaling) -> None:
    results = []
    for backend in ("torch", "torchao"):
        generator = torch.Generator().manual_seed(7)
        stage = nn.Module()
        stage.model = nn.Module()
        stage.model.layers = nn.ModuleDict({"0": nn.Linear(64, 48, bias=False, dtype=torch.bfloat16)})
        with torch.no_grad():
            stage.model.layers["0"].weight.copy_(torch.randn(48, 64, generator=generator))
        convert(stage, Float8Config(scaling=scaling), backend)  # type: ignore[arg-type]
        x = torch.randn(32, 64, generator=generator).bfloat16().requires_grad_()
        y = stage.model.layers["0"](x)
        y.backward(torch.randn(32, 48, generator=generator).bfloat16())
        results.append((y, x.grad, stage.model.layers["0"].weight.grad))
    for ours, theirs in zip(*results, strict=True):
        if scaling == "tensor":
            assert torch.equal(ours, theirs)
        torch.testing.assert_close(ours, theirs, rtol=2**-7, atol=1e-6)  # torchao rounds gradients twice with rows
