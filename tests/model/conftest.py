"""Small decoders the model tests share."""

from __future__ import annotations

from typing import Any

import torch

from headwater.model import Decoder, ModelConfig, init_weights


def small_config(**changes: Any) -> ModelConfig:
    """2 layers, width 64, grouped queries, 301 tokens (so that 83 embedding rows are padding)."""
    values = {
        "vocab_size": 301,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
    }
    return ModelConfig.model_validate(values | changes)


def small_model(seed: int = 0, **changes: Any) -> Decoder:
    """A decoder whose every weight matters: wider than at initialisation, norms and biases random."""
    model = Decoder(small_config(**changes))
    init_weights(model, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.3)
            else:
                parameter.mul_(4)
    return model


def random_tokens(batch: int, seq: int, vocab: int = 301, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, vocab, (batch, seq), generator=torch.Generator().manual_seed(seed))
