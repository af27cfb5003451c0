"""Checkpointed and offloaded activations: the same gradients for less memory, and what is chosen."""

from __future__ import annotations

import gc
import itertools
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight

from headwater.model import BlockLayout, Decoder, ModelConfig, init_weights
from headwater.parallel.apply import ParallelOptions, build_stages
from headwater.parallel.config import ParallelConfig
from headwater.parallel.mesh import build_mesh
from headwater.parallel.offload import HostMemory
from headwater.parallel.precision import Precision, autocast
from headwater.parallel.remat import Mode, checkpoint_layers, chosen_layers, offload_layers
from headwater.parallel.step_config import RecomputeConfig
from tests.parallel.ranks import run_ranks

CPU = torch.device("cpu")
CONFIG = ModelConfig(
    hidden_size=32, num_hidden_layers=4, num_attention_heads=4, num_key_value_heads=2, intermediate_size=96,
    vocab_size=128, max_position_embeddings=64,
)  # fmt: skip

WAYS: dict[str, tuple[Mode, RecomputeConfig]] = {
    "selective per operation": ("selective", RecomputeConfig()),
    "selective attention": ("selective", RecomputeConfig(selective="attention")),
    "full": ("full", RecomputeConfig()),
    "every second layer": ("full", RecomputeConfig(every=2)),
    "the first layer": ("full", RecomputeConfig(num_layers=1)),
}


def model(mode: Mode = "none", recompute: RecomputeConfig | None = None, *, split: bool = False) -> Decoder:
    decoder = Decoder(CONFIG)
    init_weights(decoder, seed=3)
    checkpoint_layers(decoder.model.layers, mode, recompute, split_backward=split)
    return decoder


def batch() -> tuple[Tensor, Tensor, BlockLayout]:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(128, (2, 48), generator=generator)
    layout = BlockLayout((torch.rand(2, 48, generator=generator) < 0.1).cumsum(1).int())
    return tokens, layout.positions(), layout


def gradients(decoder: Decoder, precision: str = "fp32") -> dict[str, Tensor]:
    with autocast(precision, CPU):  # type: ignore[arg-type]
        hidden = decoder(*batch())
    weights = torch.linspace(-1, 1, hidden.numel()).view_as(hidden)
    (hidden * weights).sum().backward()
    return {name: p.grad for name, p in decoder.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_bitwise_those_of_keeping_everything(way: str, precision: str) -> None:
    plain, other = gradients(model(), precision), gradients(model(*WAYS[way]), precision)
    assert plain.keys() == other.keys()
    for name in plain:
        assert torch.equal(plain[name], other[name]), name


def saved_bytes(decoder: Decoder) -> int:
    """Bytes of distinct storages that stay alive for the backward pass, parameters apart."""
    own = {p.untyped_storage().data_ptr() for p in decoder.parameters()}
    alive: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            alive[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = decoder(*batch())
    held = sum(alive.values()) + kept_by_operation(decoder)
    hidden.sum().backward()
    return held


KEPT: list[dict[Any, dict[int, Any]]] = []


def kept_by_operation(decoder: Decoder) -> int:
    """What selective checkpointing holds outside of autograd's hooks."""
    seen: dict[int, int] = {}
    for storage in KEPT:
        for values in storage.values():
            for value in torch.utils._pytree.tree_leaves(list(values.values())):
                tensor = getattr(value, "val", None)
                if isinstance(tensor, Tensor):
                    seen[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
    return sum(seen.values())


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remember the storages that selective checkpointing makes."""
    import headwater.parallel.remat as remat

    real = remat._contexts_of
    KEPT.clear()

    def remember(kept: remat._Kept) -> tuple[object, object]:
        KEPT.append(kept)
        return real(kept)

    monkeypatch.setattr(remat, "_contexts_of", remember)


@pytest.mark.usefixtures("counted")
def test_what_stays_in_memory_falls_in_the_expected_order() -> None:
    sizes = {"none": saved_bytes(model())}
    for way, (mode, recompute) in WAYS.items():
        KEPT.clear()
        sizes[way] = saved_bytes(model(mode, recompute))
    order = ["full", "every second layer", "the first layer", "none"]
    for less, more in itertools.pairwise(order):
        assert sizes[less] < sizes[more], sizes
    assert sizes["full"] < sizes["selective per operation"] < sizes["none"], sizes
    assert sizes["full"] < sizes["selective attention"] < sizes["none"], sizes
    # Half of the layers' activations go with every second layer, a quarter with one of four.
    whole = sizes["none"] - sizes["full"]
    assert sizes["none"] - sizes["every second layer"] == pytest.approx(whole / 2, rel=0.05)
    assert sizes["none"] - sizes["the first layer"] == pytest.approx(whole / 4, rel=0.05)


@pytest.mark.usefixtures("counted")
@pytest.mark.parametrize("split", [False, True])
def test_kept_results_go_with_the_graph_and_not_with_the_garbage_collector(split: bool) -> None:
    decoder = model("selective", split=split)
    gc.disable()
    try:
        hidden = decoder(*batch())
        kept = [weakref.ref(entry.val) for one in KEPT for places in one.values() for entry in places.values()
                if hasattr(entry, "val")]  # fmt: skip
        assert len(kept) > 20
        KEPT.clear()
        hidden.sum().backward()
        del hidden
        assert [reference() for reference in kept if reference() is not None] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("way", ["selective per operation", "selective attention", "full"])
def test_a_backward_pass_in_two_parts_gives_the_same_gradients(way: str) -> None:
    """As zero-bubble schedules do it: gradients of the inputs first, those of the weights later."""
    mode, recompute = WAYS[way]
    _, positions, layout = batch()

    def split(decoder: Decoder) -> dict[str, Tensor]:
        stage = Decoder(CONFIG, layers=range(1, 3), first=False, last=False)
        stage.load_state_dict({k: v for k, v in decoder.state_dict().items() if k in stage.state_dict()})
        checkpoint_layers(stage.model.layers, "none" if decoder is plain else mode, recompute, split_backward=True)
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(2, 48, 32, generator=generator).requires_grad_()
        out = stage(x, positions, layout)
        weights = torch.linspace(-1, 1, out.numel()).view_as(out)
        parameters = list(stage.parameters())
        given, groups = stage_backward_input([out], [weights], [x], iter(parameters))
        stage_backward_weight(iter(parameters), groups)
        assert given[0] is not None
        return {"x": given[0], **{name: p.grad for name, p in stage.named_parameters() if p.grad is not None}}

    plain = model()
    expected, found = split(plain), split(model())
    assert len(expected) == 1 + len(list(Decoder(CONFIG, layers=range(1, 3), first=False, last=False).parameters()))
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-6, atol=1e-6)


@given(
    first=st.integers(0, 20), count=st.integers(0, 12), every=st.integers(1, 5), limit=st.none() | st.integers(0, 12)
)
def test_layers_are_chosen_by_their_number_in_the_model_and_counted_in_the_stage(
    first: int, count: int, every: int, limit: int | None
) -> None:
    names = [str(first + offset) for offset in range(count)]
    chosen = chosen_layers(names, RecomputeConfig(every=every, num_layers=limit))
    expected = [name for name in names if int(name) % every == 0]
    assert chosen == set(expected if limit is None else expected[:limit])


def test_a_pipeline_cut_does_not_change_which_layers_are_computed_again() -> None:
    recompute = RecomputeConfig(every=3)
    whole = chosen_layers([str(layer) for layer in range(8)], recompute)
    parts = [chosen_layers([str(layer) for layer in part], recompute) for part in (range(5), range(5, 8))]
    assert parts[0] | parts[1] == whole == {"0", "3", "6"}


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_offloading_gives_the_same_gradients(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headwater.parallel.offload.LEAST_BYTES", 0)
    expected = gradients(model())
    offloaded = model(mode)
    offload_layers(offloaded.model.layers)
    found = gradients(offloaded)
    for name in expected:
        assert torch.equal(expected[name], found[name]), name


def test_what_is_offloaded_lies_elsewhere_and_is_copied_once() -> None:
    weight = torch.nn.Parameter(torch.randn(64, 64))
    x = torch.randn(16, 64, requires_grad=True)
    with HostMemory(least_bytes=0) as memory:
        hidden = x * 2
        out = (hidden @ weight + hidden @ weight.t() + hidden.exp()).sum()
    # hidden (saved by two products) and exp's result; neither the weight nor its transpose.
    assert memory.moved == 2 * hidden.nbytes
    expected = torch.autograd.grad((2 * x @ weight + 2 * x @ weight.t() + (2 * x).exp()).sum(), [x, weight])
    for found, known in zip(torch.autograd.grad(out, [x, weight]), expected, strict=True):
        torch.testing.assert_close(found, known)


def test_small_tensors_stay() -> None:
    x = torch.randn(1000, requires_grad=True)
    with HostMemory() as memory:
        x.exp().exp().sum().backward()
    assert memory.moved == 0


def test_a_tensor_that_changed_is_copied_again() -> None:
    x = torch.randn(64, requires_grad=True)
    buffer = torch.ones(64)
    with HostMemory(least_bytes=0) as memory:
        first = x * buffer
        buffer.add_(1)
        second = x * buffer
    assert memory.moved == 2 * buffer.nbytes
    (grad,) = torch.autograd.grad((first + second).sum(), x)
    assert torch.equal(grad, torch.full((64,), 3.0))


COMPILED: dict[str, tuple[Mode, RecomputeConfig]] = {
    "none": ("none", RecomputeConfig()),
    **{way: WAYS[way] for way in ("selective per operation", "selective attention", "full")},
}


@pytest.mark.parametrize(("way", "offload"), [*((way, False) for way in COMPILED), ("none", True), ("full", True)])
def test_compiled_blocks_look_into_checkpoints(way: str, offload: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Captured as a graph rather than left to Python (without code generation, which takes a minute)."""
    monkeypatch.setattr("headwater.parallel.offload.LEAST_BYTES", 0)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    expected, decoder = gradients(model()), model(*COMPILED[way])
    if offload:
        offload_layers(decoder.model.layers)
    for block in decoder.model.layers.values():
        block.compile(backend="aot_eager")
    found = gradients(decoder)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] >= 1
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("way", ["selective per operation", "selective attention", "full"])
def test_an_encoder_is_checkpointed_as_a_decoder_is(way: str) -> None:
    from headwater.model.encoder import Encoder

    config = ModelConfig(
        architecture="encoder", hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=96,
        vocab_size=128, max_position_embeddings=64,
    )  # fmt: skip
    tokens = torch.arange(2 * 16).view(2, 16) % 100

    def of(mode: Mode, recompute: RecomputeConfig | None) -> dict[str, Tensor]:
        encoder = Encoder(config)
        init_weights(encoder, seed=3)
        checkpoint_layers(encoder.model.layers, mode, recompute)
        encoder(tokens).square().sum().backward()
        return {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}

    plain, other = of("none", None), of(*WAYS[way])
    for name in plain:
        assert torch.equal(plain[name], other[name]), name


def row_parallel(precision: Precision, mode: Mode) -> dict[str, Any]:
    """A step of two blocks on a tp axis of two: gradients, products made in the backward pass, and what is kept of the
    results of row-parallel products (and of the sums of them), in elements."""
    import headwater.parallel.remat as remat

    mesh = build_mesh(ParallelConfig(tp=2), CPU)
    options = ParallelOptions(precision=precision, activation_checkpointing=mode)
    stages = build_stages(
        CONFIG.model_copy(update={"num_hidden_layers": 2, "num_key_value_heads": 4}), mesh, options, seed=3
    )
    KEPT.clear()
    real = remat._contexts_of
    remat._contexts_of = lambda kept: KEPT.append(kept) or real(kept)  # type: ignore[func-returns-value]
    tokens, positions, layout = batch()
    with autocast(precision, CPU):
        hidden = stages[0](tokens, positions, layout)
    scattered = torch.ops._c10d_functional.reduce_scatter_tensor.default
    sums = [entry.val.numel() for kept in KEPT for entry in kept.get(scattered, {}).values()]
    unread = sum(type(entry) is remat._Unread for kept in KEPT for places in kept.values() for entry in places.values())
    hidden.sum().backward()
    found = {name: p.grad for name, p in stages[0].named_parameters() if p.grad is not None}
    gradients = {name: gradient.full_tensor() for name, gradient in found.items()}  # type: ignore[operator]
    return {"gradients": gradients, "sums": sums, "unread": unread}


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp8"])
def test_of_row_parallel_products_a_ranks_share_of_the_sum_is_kept(precision: Precision) -> None:
    kept = run_ranks(2, row_parallel, precision, "selective")
    whole = run_ranks(2, row_parallel, precision, "none")
    for with_it, without in zip(kept, whole, strict=True):
        for name, gradient in without["gradients"].items():
            assert torch.equal(gradient, with_it["gradients"][name]), name
        assert with_it["unread"] == 4  # o_proj and down_proj of two blocks
        assert with_it["sums"] == [2 * 48 * 32 // 2] * 4
