"""The encoder against transformers' ModernBERT, its attention against dense masks, its stages against the whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForMaskedLM, ModernBertConfig, ModernBertForMaskedLM

from headwater.core.errors import InputError
from headwater.model import BlockLayout, Encoder, ModelConfig, cross_entropy, init_weights, load_hf, save_hf
from headwater.model.both_ways import Borders
from headwater.model.hf_config import config_from_hf
from headwater.model.interval_attention import NO_LIMIT, interval_attention
from headwater.model.loss import IGNORE
from tests.model.conftest import random_tokens

ALL_BIASES = {"norm_bias": True, "mlp_bias": True, "decoder_bias": True, "classifier_bias": True}
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"tie_word_embeddings": True},
    "untied": {"encoder": {"decoder_bias": False}},
    "biases": {"attention_bias": True, "encoder": ALL_BIASES, "tie_word_embeddings": True},
    "untied-biases": {"attention_bias": True, "encoder": ALL_BIASES},
    "all-global": {"encoder": {"global_attn_every_n_layers": 1}},
    "every-second": {"encoder": {"global_attn_every_n_layers": 2, "local_attention": 6, "local_rope_theta": 500.0}},
}


def encoder_config(**changes: Any) -> ModelConfig:
    """4 layers, width 64, 301 tokens (83 embedding rows are padding), a window of 4 tokens to each side."""
    encoder = {"local_attention": 8, **changes.pop("encoder", {})}
    values = {
        "architecture": "encoder",
        "vocab_size": 301,
        "hidden_size": 64,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "intermediate_size": 96,
        "max_position_embeddings": 64,
        "rope_theta": 2000.0,
    }
    return ModelConfig.model_validate(values | changes | {"encoder": encoder})


def random_encoder(config: ModelConfig, seed: int = 0) -> Encoder:
    """Every weight matters: wider than at initialisation, norms and biases random."""
    model = Encoder(config)
    init_weights(model, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.dim() > 1:
                parameter.mul_(4)
            elif name == "lm_head_bias":
                parameter[: config.true_vocab_size] = noise[: config.true_vocab_size]
            else:
                parameter.add_(noise * 0.3)
    return model


@pytest.mark.parametrize("kind", KINDS)
def test_an_exported_encoder_is_a_modernbert_with_the_same_logits(kind: str, tmp_path: Path) -> None:
    model = random_encoder(encoder_config(**KINDS[kind]))
    tokens = random_tokens(2, 40)
    save_hf(model, tmp_path, bos_token_id=1, eos_token_id=2, pad_token_id=3)
    theirs, info = AutoModelForMaskedLM.from_pretrained(tmp_path, output_loading_info=True)
    assert type(theirs) is ModernBertForMaskedLM
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    with torch.no_grad():
        expected = theirs.eval()(tokens, attention_mask=torch.ones_like(tokens)).logits
        torch.testing.assert_close(model.logits(model(tokens)), expected, atol=1e-5, rtol=1e-5)
    assert not (tmp_path / "generation_config.json").exists()


@pytest.mark.parametrize("kind", KINDS)
def test_a_modernbert_of_transformers_is_imported_with_the_same_logits(kind: str, tmp_path: Path) -> None:
    config = encoder_config(**KINDS[kind])
    random_folder = tmp_path / "made"
    save_hf(random_encoder(config, seed=3), random_folder, pad_token_id=3)
    theirs = AutoModelForMaskedLM.from_pretrained(random_folder)
    theirs.save_pretrained(tmp_path / "theirs")  # their own names, keys and defaults
    ours = load_hf(tmp_path / "theirs")
    assert isinstance(ours, Encoder)
    assert ours.config == config
    tokens = random_tokens(2, 33, seed=5)
    with torch.no_grad():
        expected = theirs.eval()(tokens, attention_mask=torch.ones_like(tokens)).logits
        torch.testing.assert_close(ours.logits(ours(tokens)), expected, atol=1e-5, rtol=1e-5)


@settings(max_examples=12)
@given(
    layers=st.integers(1, 5),
    every=st.integers(1, 4),
    heads=st.sampled_from([1, 2, 4]),
    window=st.integers(2, 20),
    seq=st.integers(1, 30),
    seed=st.integers(0, 1000),
)
def test_random_modernberts_have_our_logits(
    layers: int, every: int, heads: int, window: int, seq: int, seed: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    torch.manual_seed(seed)
    theirs = ModernBertForMaskedLM(
        ModernBertConfig(
            vocab_size=120 + seed % 50,
            hidden_size=16 * heads,
            intermediate_size=24,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            global_attn_every_n_layers=every,
            local_attention=window,
            pad_token_id=0,
            bos_token_id=1,
            eos_token_id=2,
            cls_token_id=1,
            sep_token_id=2,
            norm_bias=bool(seed % 2),
            initializer_range=0.2,
        )
    ).eval()
    folder = tmp_path_factory.mktemp("modernbert")
    theirs.save_pretrained(folder)
    ours = load_hf(folder)
    assert isinstance(ours, Encoder)
    tokens = random_tokens(2, seq, vocab=120, seed=seed)
    with torch.no_grad():
        expected = theirs(tokens, attention_mask=torch.ones_like(tokens)).logits
        torch.testing.assert_close(ours.logits(ours(tokens)), expected, atol=1e-5, rtol=1e-5)


def test_documents_of_a_packed_window_do_not_see_each_other() -> None:
    model = random_encoder(encoder_config())
    tokens = random_tokens(1, 40)
    documents = torch.tensor([[0] * 13 + [1] * 1 + [2] * 26])
    layout = BlockLayout(documents)
    with torch.no_grad():
        packed = model(tokens, layout.positions(), layout)
        alone = [model(tokens[:, first:last]) for first, last in ((0, 13), (13, 14), (14, 40))]
    torch.testing.assert_close(packed, torch.cat(alone, 1), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("reach", [NO_LIMIT, 3, 64])
@pytest.mark.parametrize("seq", [1, 37, 300, 700])
@pytest.mark.parametrize("packed", [False, True])
def test_interval_attention_is_attention_with_a_mask(reach: int, seq: int, packed: bool) -> None:
    generator = torch.Generator().manual_seed(seq)
    q, k, v = (torch.randn(3, seq, 2, 8, generator=generator, dtype=torch.float64) for _ in range(3))
    documents = torch.sort(torch.randint(0, 4, (3, seq), generator=generator)).values if packed else torch.zeros(3, seq)
    borders = Borders.of(BlockLayout(documents.long()))
    ours = [x.clone().requires_grad_() for x in (q, k, v)]
    theirs = [x.clone().requires_grad_() for x in (q, k, v)]
    out = interval_attention(*ours, borders.starts, borders.ends, reach)
    mask = borders.mask(seq, reach, q.device)
    dense = torch.nn.functional.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in theirs), attn_mask=mask, scale=1.0
    ).transpose(1, 2)
    torch.testing.assert_close(out, dense)
    places = torch.arange(seq)
    near = (places[:, None] - places).abs() <= reach if reach != NO_LIMIT else torch.ones(seq, seq, dtype=torch.bool)
    assert torch.equal(mask.expand(3, 1, -1, -1)[:, 0], (documents[:, :, None] == documents[:, None]) & near)
    grad = torch.randn(out.shape, generator=generator, dtype=torch.float64)
    out.backward(grad)
    dense.backward(grad)
    for mine, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine.grad, other.grad)


def test_stages_one_after_another_are_the_whole_encoder() -> None:
    config = encoder_config(tie_word_embeddings=True)
    whole = Encoder(config)
    init_weights(whole, 7)
    stages = [
        Encoder(config, layers=[0, 1], first=True, last=False),
        Encoder(config, layers=[2], first=False, last=False),
        Encoder(config, layers=[3], first=False, last=True),
    ]
    for stage in stages:
        init_weights(stage, 7)
    tokens = random_tokens(2, 20)
    layout = BlockLayout(torch.tensor([[0] * 20, [0] * 5 + [1] * 15]))
    hidden = tokens
    for stage in stages:
        hidden = stage(hidden, layout.positions(), layout)
    assert torch.equal(hidden, whole(tokens, layout.positions(), layout))
    assert torch.equal(stages[-1].logits(hidden), whole.logits(hidden))
    names = {name for stage in stages for name, _ in stage.named_parameters()}
    assert names - {"lm_head.weight"} == {name for name, _ in whole.named_parameters()}


def test_the_count_of_parameters_is_that_of_the_module() -> None:
    for changes in KINDS.values():
        config = encoder_config(**changes)
        held = sum(parameter.numel() for parameter in Encoder(config).parameters())
        assert config.parameter_count(padded=True).total == held


def test_local_layers_cost_only_their_window() -> None:
    config = encoder_config()
    more = config.flops_per_token(1024) - config.flops_per_token(1023)
    assert more == 12 * 64 * 2  # layers 0 and 3 of 4 are global
    assert config.flops_per_token(64) - config.flops_per_token(64, scored=0.0) == 6 * 64 * 301


def test_the_head_bias_takes_part_in_loss_and_gradient() -> None:
    generator = torch.Generator().manual_seed(0)
    hidden, weight = (torch.randn(n, 16, generator=generator, requires_grad=True) for n in (50, 128))
    bias = torch.randn(128, generator=generator, requires_grad=True)
    targets = torch.randint(0, 100, (50,), generator=generator)
    targets[torch.rand(50, generator=generator) < 0.8] = IGNORE
    ours = cross_entropy(hidden, weight, targets, vocab_size=100, bias=bias, sparse=True, per_token=True, accuracy=True)
    logits = (hidden @ weight.T + bias)[:, :100]
    dense = torch.nn.functional.cross_entropy(logits, targets, reduction="none", ignore_index=IGNORE)
    torch.testing.assert_close(ours.per_token, dense.detach())
    found = torch.autograd.grad(ours.total, (hidden, weight, bias))
    for mine, other in zip(found, torch.autograd.grad(dense.sum(), (hidden, weight, bias)), strict=True):
        torch.testing.assert_close(mine, other)
    assert ours.correct is not None
    assert int(ours.correct) == int((logits.argmax(-1) == targets).sum())
    whole = cross_entropy(hidden, weight, targets, vocab_size=100, bias=bias)
    torch.testing.assert_close(whole.nats, ours.nats)
    assert whole.correct is None


def test_nothing_masked_is_no_loss_and_no_gradient() -> None:
    hidden, weight = torch.randn(4, 8, requires_grad=True), torch.randn(128, 8, requires_grad=True)
    result = cross_entropy(hidden, weight, torch.full((4,), IGNORE), sparse=True)
    result.total.backward()
    assert float(result.nats) == 0
    assert int(result.count) == 0
    assert not hidden.grad.any()
    assert not weight.grad.any()


@pytest.mark.parametrize(
    "changes",
    [
        {"hidden_activation": "silu"},
        {"attention_dropout": 0.1},
        {"layer_types": ["sliding_attention", "full_attention"] * 2},
        {"rope_parameters": {"full_attention": {"rope_type": "yarn", "factor": 2.0}}},
    ],
)
def test_what_the_encoder_does_not_compute_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    save_hf(random_encoder(encoder_config()), tmp_path)
    data = json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(InputError):
        config_from_hf(data | changes)


@pytest.mark.parametrize(
    "changes",
    [{"num_key_value_heads": 2}, {"qk_norm": True}, {"head_dim": 8}, {"attention_bias": "qkv"}, {"encoder": None}],
)
def test_decoder_settings_are_refused_for_an_encoder(changes: dict[str, Any]) -> None:
    values = encoder_config().to_dict()
    for name in ("num_key_value_heads", "head_dim"):
        values.pop(name)
    with pytest.raises(ValueError):
        ModelConfig.model_validate(values | changes)


def test_encoder_settings_are_refused_for_a_decoder() -> None:
    with pytest.raises(ValueError, match="no effect on a decoder"):
        ModelConfig.model_validate({"encoder": {"local_attention": 8}})
