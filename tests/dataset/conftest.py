from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from headwater.core.documents import Document, document_id
from headwater.core.files import atomic_write
from headwater.core.jsonl import pretty_json
from headwater.dataset import TokenDataset
from headwater.dataset.pack import dataset_index
from headwater.dataset.writer import ShardSpec, TokenShardWriter
from headwater.tokenizer import Tokenizer
from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.training import train_model
from tests.tokenizer.texts import documents

SPEC = ShardSpec("uint16", vocab_size=1000, eos_id=2, tokenizer_sha256="ab" * 32)

Shards = dict[tuple[str, str], Sequence[Sequence[int]]]
"""(split, domain) -> for each shard the lengths of its documents, in tokens without eos."""

MakeDataset = Callable[[Shards], TokenDataset]


@pytest.fixture
def make_dataset(tmp_path: Path) -> MakeDataset:
    """Writes a dataset of random tokens with documents of given lengths."""

    def make(shards: Shards) -> TokenDataset:
        rng = np.random.default_rng(0)
        facts = []
        for (split, domain), lengths in sorted(shards.items()):
            (tmp_path / split).mkdir(exist_ok=True)
            number = 0
            for shard, sizes in enumerate(lengths):
                name = f"{split}/{domain}-{shard:05d}.tokens"
                with TokenShardWriter(tmp_path / name, SPEC, split=split, domain=domain) as writer:
                    for size in sizes:
                        identity = document_id(domain, split, number)
                        writer.add(
                            Document(identity, "字" * size, source=f"s{number % 3}", lang="zh", domain=domain),
                            rng.integers(31, 1000, size).tolist(),
                        )
                        number += 1
                facts.append((split, domain, {"name": name, **writer.counts}))
        atomic_write(tmp_path / "dataset.json", pretty_json(dataset_index(SPEC, facts)))
        return TokenDataset.open(tmp_path)

    return make


@pytest.fixture(scope="session")
def tokenizer_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small trained tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizer")
    model = train_model([document.text for document in documents()], TokenizerConfig(vocab_size=1024))
    (folder / "tokenizer.model").write_bytes(model)
    return folder


@pytest.fixture(scope="session")
def tokenizer(tokenizer_folder: Path) -> Tokenizer:
    return Tokenizer.load(tokenizer_folder)
