"""Trains a tokenizer straight from files, without a recipe.

train_tokenizer_files([Path("corpus.jsonl.zst")], Path("my-tokenizer"), TokenizerConfig(vocab_size=8192))
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from headwater.core.documents import DocumentWriter
from headwater.core.errors import InputError
from headwater.core.executor import InlineExecutor
from headwater.core.files import fsync_dir
from headwater.core.progress import SILENT, Reporter
from headwater.core.shards import SIDECARS, ShardFolder
from headwater.tokenizer.build import build_from_shards
from headwater.tokenizer.config import TokenizerConfig
from headwater.tokenizer.inputs import read_inputs


def train_tokenizer_files(
    inputs: Sequence[Path], out: Path, config: TokenizerConfig, reporter: Reporter = SILENT
) -> dict[str, Any]:
    """Learn a vocabulary from the inputs (see `inputs.read_inputs`) and write the folder `out`, which must be new.

    Returns the counts the tokenizer stage gives. Raises InputError for bad inputs or an `out` that exists, RecipeError
    as `train_model` does.
    """
    with new_folder(out) as folder:
        shard = folder / ".documents.parquet"
        with DocumentWriter(shard) as writer:
            for document in read_inputs(inputs):
                writer.add(document)
        counts = build_from_shards(
            config, [shard], [], ShardFolder(folder), executor=InlineExecutor(), reporter=reporter
        )
        shard.unlink()
        shutil.rmtree(folder / SIDECARS)
    return counts


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A working folder beside `out` that becomes `out` when all went well, and is removed when not."""
    out = Path(out)
    if out.exists():
        raise InputError("the output exists already", where=str(out), mend="give a new folder, or remove this one")
    out.parent.mkdir(parents=True, exist_ok=True)
    working = out.with_name(f".{out.name}.partial")
    shutil.rmtree(working, ignore_errors=True)  # what a killed run left
    working.mkdir()
    try:
        yield working
        working.rename(out)
        fsync_dir(out.parent)
    finally:
        shutil.rmtree(working, ignore_errors=True)
