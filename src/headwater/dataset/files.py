"""Packs files straight into a dataset folder, without a recipe.

pack_files([Path("corpus.jsonl.zst")], tokenizer, Path("my-dataset"))
TokenDataset.open("my-dataset")
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from headwater.core.documents import SPLITS
from headwater.core.errors import InputError
from headwater.core.files import atomic_write
from headwater.core.jsonl import pretty_json
from headwater.core.progress import SILENT, Reporter
from headwater.core.shards import check_name
from headwater.dataset.config import DatasetConfig
from headwater.dataset.dataset import INDEX
from headwater.dataset.pack import batches, dataset_index, index_counts, shard_writer, spec_for
from headwater.dataset.writer import ShardWriter
from headwater.tokenizer import Tokenizer
from headwater.tokenizer.files import new_folder
from headwater.tokenizer.inputs import read_inputs

SHARD_TOKENS = 1 << 28
"""A domain's next shard begins after so many tokens."""


def pack_files(
    inputs: Sequence[Path],
    tokenizer: Tokenizer | Path | str,
    out: Path,
    *,
    split: str = "train",
    domain: str | None = None,
    config: DatasetConfig | None = None,
    reporter: Reporter = SILENT,
) -> dict[str, Any]:
    """Pack the inputs (see `headwater.tokenizer.inputs.read_inputs`) into one split of a new dataset folder.

    `domain` replaces the documents' own domains. Returns counts as the dataset stage does. Raises InputError for bad
    inputs, an `out` that exists, or inputs without a document.
    """
    if split not in SPLITS:
        raise InputError(f"{split!r} is no split", mend=f"give one of {', '.join(SPLITS)}")
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = Tokenizer.load(tokenizer)
    config = config or DatasetConfig()
    spec = spec_for(config, tokenizer)
    with new_folder(out) as folder:
        (folder / split).mkdir()
        shards: list[ShardWriter] = []
        current: dict[str, ShardWriter] = {}
        with ExitStack() as stack, reporter.progress("pack", unit="MB") as bar:
            for batch in batches(iter(read_inputs(inputs, split=split, domain=domain))):
                encoded = tokenizer.encode_batch([document.text for document in batch])
                for document, tokens in zip(batch, encoded, strict=True):
                    writer = current.get(document.domain)
                    if writer is None or writer.tokens >= SHARD_TOKENS:
                        number = sum(shard.domain == document.domain for shard in shards)
                        name = check_name(f"{split}/{document.domain}-{number:05d}.{config.format}")
                        writer = stack.enter_context(
                            shard_writer(folder / name, spec, split=split, domain=document.domain)
                        )
                        current[document.domain] = writer
                        shards.append(writer)
                    writer.add(document, tokens)
                bar.advance(sum(len(document.text) for document in batch) / 1e6)
        if not shards:
            raise InputError("the inputs have no document", where=", ".join(map(str, inputs)))
        shards.sort(key=lambda shard: (shard.domain, shard.path.name))
        facts = [(split, w.domain, {"name": f"{split}/{w.path.name}", **w.counts}) for w in shards]
        index = dataset_index(spec, facts)
        atomic_write(folder / INDEX, pretty_json(index))
    return index_counts(index)
