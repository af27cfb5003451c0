from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headwater.tokenizer import Tokenizer

from .tiny import Server, chain_model, make_tokenizer, random_model, running, save


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="session")
def chain_folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(chain_model(tokenizer), tokenizer, tmp_path_factory.mktemp("models") / "chain")


@pytest.fixture(scope="session")
def random_folder(tokenizer: Tokenizer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(random_model(tokenizer), tokenizer, tmp_path_factory.mktemp("models") / "random")


@pytest.fixture(scope="session")
def chain(chain_folder: Path) -> Iterator[Server]:
    """A server of the chain model with the usual limits, open."""
    with running(chain_folder) as server:
        yield server


@pytest.fixture(scope="session")
def strict(random_folder: Path) -> Iterator[Server]:
    """A server of the random model with a key and tight limits."""
    limits = {"max_concurrent": 2, "max_waiting": 1, "max_prompt_tokens": 300, "max_body_bytes": 20_000}
    with running(random_folder, key="sk-test", model_name="tiny", max_tokens=8000, timeout=3.0, **limits) as server:
        yield server
