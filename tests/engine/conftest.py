"""A tokenizer of both scripts and small random models around it, as export folders."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from headwater.engine import Engine, load_model
from headwater.model import Decoder, ModelConfig, init_weights, save_hf
from headwater.tokenizer import Tokenizer
from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.training import train_model

TEXTS = [
    "The river rises in the hills and runs down to the sea; it carries stones, leaves and boats.",
    "水从高处往低处流。春天雪化了,河水上涨,两岸的人都来看。",
    "def flow(river, sea):\n    while river.height > sea.height:\n        river.run()\n    return sea\n",
]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    folder = tmp_path_factory.mktemp("tokenizer")
    words = [f"{text} {number}" for number in range(40) for text in TEXTS]
    (folder / "tokenizer.model").write_bytes(train_model(words, TokenizerConfig(vocab_size=520)))
    return Tokenizer.load(folder)


def make_model(tokenizer: Tokenizer, seed: int = 0, **changes: Any) -> Decoder:
    """Random and opinionated: at 6 times the initial scale greedy texts differ by prompt and are far from ties."""
    values = {
        "vocab_size": tokenizer.vocab_size,
        "hidden_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
    }
    model = Decoder(ModelConfig.model_validate(values | changes))
    init_weights(model, seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() == 2:
                parameter.mul_(6)
    return model


def export(model: Decoder, tokenizer: Tokenizer, folder: Path) -> Path:
    save_hf(
        model,
        folder,
        bos_token_id=tokenizer.bos_id,
        eos_token_id=tokenizer.eos_id,
        pad_token_id=tokenizer.pad_id,
        tokenizer_files=tokenizer.export_hf,
    )
    return folder


@pytest.fixture(scope="session")
def folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export(make_model(tokenizer), tokenizer, tmp_path_factory.mktemp("export"))


@pytest.fixture(scope="session")
def engine(folder: Path) -> Engine:
    model, tokenizer = load_model(folder, device="cpu")
    return Engine(model, tokenizer)
