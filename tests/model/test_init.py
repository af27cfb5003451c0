"""Initial weights depend on the seed and the parameter's name, and on nothing else."""

from __future__ import annotations

import math

import torch

from headwater.model import Decoder, init_weights, initial_tensor
from tests.model.conftest import small_config


def weights(model: Decoder, seed: int = 5) -> dict[str, torch.Tensor]:
    init_weights(model, seed)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def test_stages_start_as_the_whole_model_does() -> None:
    config = small_config(num_hidden_layers=4, qk_norm=True)
    whole = weights(Decoder(config))
    first = weights(Decoder(config, layers=[0, 1], last=False))
    last = weights(Decoder(config, layers=[2, 3], first=False))
    assert set(first) | set(last) == set(whole)
    assert not set(first) & set(last)
    for name, tensor in (first | last).items():
        assert torch.equal(tensor, whole[name])


def test_a_tied_head_on_another_stage_starts_as_the_embedding() -> None:
    config = small_config(tie_word_embeddings=True)
    whole = weights(Decoder(config))
    last = weights(Decoder(config, layers=[1], first=False))
    assert "lm_head.weight" not in whole
    assert torch.equal(last["lm_head.weight"], whole["model.embed_tokens.weight"])


def test_numbers_do_not_depend_on_device_order_dtype_or_threads() -> None:
    config = small_config()
    expected = weights(Decoder(config))
    with torch.device("meta"):
        late = Decoder(config)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        assert all(torch.equal(t, expected[n]) for n, t in weights(late.to_empty(device="cpu")).items())
    finally:
        torch.set_num_threads(threads)
    half = weights(Decoder(config).bfloat16())
    assert all(torch.equal(t, expected[n].bfloat16()) for n, t in half.items())
    assert not torch.equal(weights(Decoder(config), 6)["lm_head.weight"], expected["lm_head.weight"])


def test_the_state_of_the_global_generator_is_neither_read_nor_changed() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    tensor = initial_tensor("lm_head.weight", (384, 64), small_config(), 0)
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(2)
    assert torch.equal(tensor, initial_tensor("lm_head.weight", (384, 64), small_config(), 0))


def test_standard_deviations_and_padding_rows() -> None:
    config = small_config(hidden_size=256, num_hidden_layers=8, attention_bias=True)
    tensors = weights(Decoder(config))
    assert math.isclose(float(tensors["model.layers.3.mlp.up_proj.weight"].std()), 0.02, rel_tol=0.02)
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        assert math.isclose(float(tensors[f"model.layers.3.{name}.weight"].std()), 0.02 / 4, rel_tol=0.02)
    plain = weights(Decoder(small_config(hidden_size=256, depth_scaled_init=False, initializer_range=0.1)))
    assert math.isclose(float(plain["model.layers.1.mlp.down_proj.weight"].std()), 0.1, rel_tol=0.02)
    assert (tensors["model.norm.weight"] == 1).all()
    assert (tensors["model.layers.0.self_attn.q_proj.bias"] == 0).all()
    assert (tensors["model.embed_tokens.weight"][301:] == 0).all()
    assert tensors["model.embed_tokens.weight"][300].any()


def test_padding_does_not_change_the_rows_before_it() -> None:
    small, large = small_config(vocab_size=301), small_config(vocab_size=700)
    rows = [initial_tensor("lm_head.weight", (c.padded_vocab_size, 64), c, 0)[:301] for c in (small, large)]
    assert torch.equal(*rows)
