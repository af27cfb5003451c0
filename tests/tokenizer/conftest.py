from __future__ import annotations

from pathlib import Path

import pytest
import sentencepiece

from headwater.tokenizer import Tokenizer
from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.hf_export import write_hf
from headwater.tokenizer.training import train_model

from .texts import documents

MODELS = ("bpe", "unigram")


class Trained:
    """One model, loaded in every way."""

    def __init__(self, kind: str, model: bytes, folder: Path) -> None:
        self.kind = kind
        (folder / "model").mkdir()
        (folder / "model" / "tokenizer.model").write_bytes(model)
        write_hf(model, folder / "hf")
        self.model, self.hf_folder = model, folder / "hf"
        self.ours = Tokenizer.load(folder / "model")
        self.exported = Tokenizer.load(folder / "hf")
        self.raw = sentencepiece.SentencePieceProcessor(model_proto=model)


@pytest.fixture(scope="session")
def trained_models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Trained]:
    texts = [document.text for document in documents()]
    made = {}
    for kind in MODELS:
        config = TokenizerConfig.model_validate({"model_type": kind, "vocab_size": 1536 if kind == "bpe" else 1024})
        made[kind] = Trained(kind, train_model(texts, config), tmp_path_factory.mktemp(kind))
    return made


@pytest.fixture(params=MODELS)
def trained(request: pytest.FixtureRequest, trained_models: dict[str, Trained]) -> Trained:
    """Each model in turn."""
    return trained_models[request.param]
