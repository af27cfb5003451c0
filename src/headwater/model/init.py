"""Initial weights that depend on a seed and the parameter's name, and on nothing else.

In: a `Decoder` or `Encoder` (whole, or a stage) and a seed. Out: the same numbers for the same parameter in every
layout: each full tensor has a generator of its own, so a stage, a shard or a reordering of layers cannot change it.

    init_weights(model, seed=7)

Normal with standard deviation `initializer_range` (0.02, GPT-2); o_proj and down_proj divided by sqrt(2 layers) if
`depth_scaled_init` (GPT-2, section 2.3: each layer adds twice to the residual stream); norms 1, biases 0, padding rows
of embedding and head 0.
"""

from __future__ import annotations

import hashlib
import math

import torch
from torch import Tensor

from headwater.model.config import ModelConfig
from headwater.model.decoder import Decoder
from headwater.model.encoder import Encoder

_RESIDUAL = ("o_proj.weight", "down_proj.weight")


def parameter_seed(seed: int, name: str) -> int:
    """63 bits out of (seed, name)."""
    digest = hashlib.blake2b(f"{seed}:{name}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def initial_tensor(name: str, shape: torch.Size | tuple[int, ...], config: ModelConfig, seed: int) -> Tensor:
    """The full initial tensor of a parameter, float32 on the CPU. `shape` is the full shape, `name` Hugging Face's."""
    if name.endswith("norm.weight"):
        return torch.ones(shape, device="cpu")
    if name.endswith("bias"):
        return torch.zeros(shape, device="cpu")
    std = config.initializer_range
    if config.depth_scaled_init and name.endswith(_RESIDUAL):
        std /= math.sqrt(2 * config.num_hidden_layers)
    # A tied head that is a stage's own copy starts as the embedding does.
    source = "model.embed_tokens.weight" if config.tie_word_embeddings and name == "lm_head.weight" else name
    generator = torch.Generator("cpu").manual_seed(parameter_seed(seed, source))
    vocabulary = name in ("model.embed_tokens.weight", "lm_head.weight")
    rows = config.true_vocab_size if vocabulary else shape[0]
    tensor = torch.zeros(shape, device="cpu")
    tensor[:rows].normal_(0.0, std, generator=generator)
    return tensor


@torch.no_grad()
def init_weights(model: Decoder | Encoder, seed: int) -> None:
    """Fill every parameter of an unsharded model, in place, whatever its device and dtype."""
    for name, parameter in model.named_parameters():
        parameter.copy_(initial_tensor(name, parameter.shape, model.config, seed))
