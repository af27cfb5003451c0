"""The decoder: stages, caches, checkpointing, compilation and layouts all give what one plain forward gives."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounterWithBackend
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from headwater.model import BlockLayout, Decoder, KVCache, cross_entropy, init_weights
from headwater.model.norm import RMSNorm
from tests.model.conftest import random_tokens, small_config, small_model


def loss_and_gradients(model: nn.Module, hidden: Tensor, weight: Tensor, targets: Tensor) -> list[Tensor]:
    loss = cross_entropy(hidden, weight, targets, vocab_size=301).total
    return [loss, *torch.autograd.grad(loss, list(model.parameters()))]


def close(a: list[Tensor], b: list[Tensor], relative: float = 1e-5) -> bool:
    return all(
        float((x - y).detach().norm()) <= relative * float(y.detach().norm()) + 1e-7 for x, y in zip(a, b, strict=True)
    )


def test_an_untrained_model_is_as_surprised_as_chance() -> None:
    model = Decoder(small_config())
    init_weights(model, 0)
    tokens = random_tokens(4, 33)
    loss = cross_entropy(model(tokens[:, :-1]), model.lm_head_weight, tokens[:, 1:], vocab_size=301)
    assert math.isclose(float(loss.nats / loss.count), math.log(301), rel_tol=0.01)


def test_padding_rows_get_no_probability_and_no_gradient() -> None:
    model = small_model()
    tokens = random_tokens(2, 20)
    assert model.logits(model(tokens)).shape == (2, 20, 301)
    with torch.no_grad():
        model.lm_head_weight[301:] = 100.0  # even if something wrote there
    loss, *gradients = loss_and_gradients(model, model(tokens), model.lm_head_weight, tokens)
    by_name = dict(zip([n for n, _ in model.named_parameters()], gradients, strict=True))
    assert (by_name["lm_head.weight"][301:] == 0).all()
    assert (by_name["model.embed_tokens.weight"][301:] == 0).all()
    logits = model.logits(model(tokens))
    assert torch.allclose(loss, F.cross_entropy(logits.flatten(0, 1), tokens.flatten(), reduction="sum"))


@pytest.mark.parametrize("tied", [False, True])
def test_stages_one_after_another_equal_the_whole(tied: bool) -> None:
    whole = small_model(num_hidden_layers=4, tie_word_embeddings=tied, qk_norm=True)
    tokens = random_tokens(2, 24)
    layout = BlockLayout((tokens % 7 == 0).cumsum(-1))
    stages = [
        Decoder(whole.config, layers=[0], last=False),
        Decoder(whole.config, layers=[1, 2], first=False, last=False),
        Decoder(whole.config, layers=[3], first=False),
    ]
    state = whole.state_dict()
    if tied:
        state["lm_head.weight"] = state["model.embed_tokens.weight"]
    x = tokens
    for stage in stages:
        stage.load_state_dict({name: state[name] for name in stage.state_dict()})
        x = stage(x, layout.positions(), layout)
    assert torch.equal(x, whole(tokens, layout.positions(), layout))
    assert torch.equal(stages[-1].logits(x), whole.logits(x))


def test_removing_modules_makes_a_stage_too() -> None:
    whole = small_model(num_hidden_layers=3)
    first, second = copy.deepcopy(whole), copy.deepcopy(whole)
    del first.model.layers["1"], first.model.layers["2"], second.model.layers["0"]
    first.model.norm = first.lm_head = second.model.embed_tokens = None
    tokens = random_tokens(2, 10)
    assert torch.equal(second(first(tokens)), whole(tokens))


def test_half_the_heads_on_each_of_two_ranks_add_up() -> None:
    """What tensor parallelism does: column slices of q, k, v, gate, up and row slices of o, down, summed."""
    block = small_model(qk_norm=True).model.layers["0"]
    x = torch.randn(2, 12, 64)
    cos, sin = Decoder(small_config()).rotary(torch.arange(12)[None])
    attention, mlp = block.self_attn, block.mlp
    parts = []
    for rank in range(2):
        local_attention, local_mlp = copy.deepcopy(attention), copy.deepcopy(mlp)
        for module, names, axis in (
            (local_attention, ("q_proj", "k_proj", "v_proj"), 0),
            (local_attention, ("o_proj",), 1),
            (local_mlp, ("gate_proj", "up_proj"), 0),
            (local_mlp, ("down_proj",), 1),
        ):
            for name in names:
                linear = getattr(module, name)
                linear.weight = nn.Parameter(linear.weight.chunk(2, axis)[rank])
        parts.append((local_attention(x, cos, sin), local_mlp(x)))
    assert torch.allclose(parts[0][0] + parts[1][0], attention(x, cos, sin), atol=1e-5)
    assert torch.allclose(parts[0][1] + parts[1][1], mlp(x), atol=1e-5)


@pytest.mark.parametrize("changes", [{}, {"qk_norm": True}, {"num_key_value_heads": 4, "attention_bias": "qkv"}])
def test_a_cache_gives_what_one_pass_gives_for_rows_of_different_lengths(changes: dict[str, Any]) -> None:
    model = small_model(**changes).eval()
    tokens = random_tokens(3, 40)
    lengths = [3, 17, 9]
    cache = KVCache(model.config, 3)
    with torch.no_grad():
        whole = model(tokens)
        padded = tokens[:, :17].clone()
        for row, length in enumerate(lengths):
            padded[row, length:] = 300  # padding on the right, whatever it is
        first = model(padded, torch.arange(17).expand(3, -1), cache=cache)
        for row, length in enumerate(lengths):
            assert torch.allclose(first[row, :length], whole[row, :length], atol=1e-5)
        for step in range(20):
            at = torch.tensor([[length + step] for length in lengths])
            now = model(tokens.gather(1, at), at, cache=cache)
            assert torch.allclose(now, whole.gather(1, at[..., None].expand(-1, -1, 64)), atol=1e-5)
            if step == 10:  # one row leaves, the others change places
                order = torch.tensor([2, 0])
                cache.select(order)
                tokens, whole, lengths = tokens[order], whole[order], [lengths[2], lengths[0]]
    assert cache.rows == 2
    assert cache.bytes == 2 * 2 * 2 * 256 * model.config.num_key_value_heads * 16 * 4


def test_a_prompt_in_several_passes_equals_one_pass() -> None:
    model = small_model().eval()
    tokens = random_tokens(2, 40)
    cache = KVCache(model.config, 2, capacity=10)
    with torch.no_grad():
        parts = [model(tokens[:, a:b], torch.arange(a, b)[None], cache=cache) for a, b in ((0, 16), (16, 17), (17, 40))]
        assert torch.allclose(torch.cat(parts, 1), model(tokens), atol=1e-5)


def test_checkpointed_blocks_give_the_same_gradients() -> None:
    model, tokens = small_model(), random_tokens(2, 24)
    layout = BlockLayout((tokens % 7 == 0).cumsum(-1))
    plain = loss_and_gradients(model, model(tokens, None, layout), model.lm_head_weight, tokens)
    for block in model.model.layers.values():
        inner = block.forward
        block.forward = lambda *a, inner=inner: checkpoint(inner, *a, use_reentrant=False)
    again = loss_and_gradients(model, model(tokens, None, layout), model.lm_head_weight, tokens)
    assert all(torch.equal(a, b) for a, b in zip(plain, again, strict=True))


def test_nothing_is_lost_on_the_meta_device() -> None:
    with torch.device("meta"):
        model = Decoder(small_config())
        assert model(torch.zeros(2, 8, dtype=torch.int64)).shape == (2, 8, 64)
    assert not list(model.buffers())
    real = small_model()
    model = model.to_empty(device="cpu")
    model.load_state_dict(real.state_dict())
    tokens = random_tokens(1, 9)
    assert torch.equal(model(tokens), real(tokens))


def test_bfloat16_autocast_stays_near_float32() -> None:
    model, tokens = small_model(), random_tokens(4, 48)
    exact = loss_and_gradients(model, model(tokens), model.lm_head_weight, tokens)
    with torch.autocast("cpu", torch.bfloat16):
        rounded = loss_and_gradients(model, model(tokens), model.lm_head_weight, tokens)
    assert all(a.dtype == torch.float32 for a in rounded)
    assert close(rounded, exact, relative=0.08)
    assert not close(rounded, exact, relative=1e-4)


def test_the_norm_equals_pytorchs() -> None:
    norm = RMSNorm(12, 1e-5).double()
    with torch.no_grad():
        norm.weight.copy_(torch.randn(12))
    x = torch.randn(3, 5, 12, dtype=torch.float64, requires_grad=True)
    assert torch.allclose(norm(x), F.rms_norm(x, (12,), norm.weight, 1e-5))
    assert torch.autograd.gradcheck(
        lambda x, w: torch.func.functional_call(norm, {"weight": w}, (x,)), (x, norm.weight)
    )
    narrow = torch.randn(64, 12).bfloat16()
    expected = F.rms_norm(narrow.float(), (12,), norm.weight.float(), 1e-5).bfloat16()
    assert torch.equal(norm.bfloat16()(narrow), F.rms_norm(narrow, (12,), norm.weight, 1e-5)) or torch.allclose(
        norm(narrow), expected, rtol=0.01
    )


@pytest.mark.parametrize("documents", [False, True])
@pytest.mark.parametrize("unit", ["model", "block"])
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.soak)])
def test_the_training_path_compiles_without_graph_breaks_or_recompilation(
    documents: bool, unit: str, backend: str
) -> None:
    torch._dynamo.reset()
    model = small_model(qk_norm=True)
    compiled = copy.deepcopy(model)
    for module in [compiled] if unit == "model" else compiled.model.layers.values():
        module.compile(fullgraph=True, backend=backend)
    for seed in (0, 1):  # other borders, the same code
        tokens = random_tokens(2, 24, seed=seed)
        layout = BlockLayout((tokens % (5 + seed) == 0).cumsum(-1)) if documents else None
        plain = loss_and_gradients(model, model(tokens, None, layout), model.lm_head_weight, tokens)
        with torch._dynamo.config.patch(error_on_recompile=bool(seed)):
            fast = loss_and_gradients(compiled, compiled(tokens, None, layout), compiled.lm_head_weight, tokens)
        assert close(fast, plain)


def test_all_layers_share_one_compiled_block() -> None:
    """Or a deep model would run into the limit of 8 versions and go on uncompiled."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model = small_model(num_hidden_layers=12)
    for block in model.model.layers.values():
        block.compile(fullgraph=True, backend=counter)
    tokens = random_tokens(2, 24)
    loss_and_gradients(model, model(tokens), model.lm_head_weight, tokens)
    assert counter.frame_count == 1
