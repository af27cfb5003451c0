"""Turns document shards into token shards: one corpus shard, one token shard, each independent of the others.

In: `SPLIT/DOMAIN-00000.parquet` and a tokenizer. Out: `SPLIT/DOMAIN-00000.tokens`, whose bytes depend on these two
alone, and `dataset.json`. Memory: one row group of documents (8 MiB of text) and its tokens.

    facts = pack_shard(PackJob(...))         # {"documents": 1200, "tokens": 1_034_567, ...}
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from headwater.core.documents import Document, read_documents
from headwater.core.errors import RecipeError
from headwater.core.shards import ShardFolder
from headwater.dataset.config import DatasetConfig
from headwater.dataset.dataset import FORMAT
from headwater.dataset.shard_format import VERSION, token_type
from headwater.dataset.tfrecord import TfrecordWriter, companions
from headwater.dataset.tfrecord_format import SUFFIX
from headwater.dataset.writer import ShardSpec, ShardWriter, TokenShardWriter
from headwater.tokenizer import Tokenizer

BATCH_DOCUMENTS = 1024
BATCH_CHARACTERS = 4 << 20
"""Documents are encoded in batches of at most so many, to bound memory."""


@dataclass(frozen=True)
class PackJob:
    """One shard to pack, in a form that travels to a worker."""

    corpus_shard: Path
    tokenizer: Path
    out: ShardFolder
    name: str
    split: str
    domain: str
    spec: ShardSpec
    key: dict[str, Any]

    @property
    def names(self) -> tuple[str, ...]:
        """The shard and the files that belong to it."""
        return (self.name, *companions(self.name))


@lru_cache(maxsize=1)
def _tokenizer(path: Path) -> Tokenizer:
    """A worker loads the tokenizer once."""
    return Tokenizer.load(path)


def spec_for(config: DatasetConfig, tokenizer: Tokenizer) -> ShardSpec:
    """What the shards of a dataset share. RecipeError if the vocabulary does not fit the integer type asked for."""
    try:
        dtype = token_type(tokenizer.vocab_size, config.dtype)
    except ValueError as error:
        raise RecipeError(str(error), where="dataset.dtype", mend="use auto or uint32") from None
    bos_id = tokenizer.document_prefix[0] if tokenizer.document_prefix else None
    return ShardSpec(dtype, tokenizer.vocab_size, tokenizer.eos_id, tokenizer.sha256, bos_id)


def shard_key(spec: ShardSpec, input_sha256: str) -> dict[str, Any]:
    """What decides a token shard's bytes besides its name: kept with it, so that an equal one can be taken over."""
    return {
        "input_sha256": input_sha256,
        "tokenizer_sha256": spec.tokenizer_sha256,
        "dtype": spec.dtype,
        "shard_format": VERSION,
    }


def pack_shard(job: PackJob) -> dict[str, Any]:
    """Pack one shard and finish it. Returns its sidecar: counts, languages and key among the facts."""
    temp = job.out.temp(job.name)
    beside = dict(zip(companions(job.name), map(Path, companions(str(temp))), strict=True))
    try:
        with shard_writer(temp, job.spec, split=job.split, domain=job.domain) as writer:
            write_documents(writer, read_documents(job.corpus_shard), _tokenizer(job.tokenizer))
        for name, path in beside.items():
            job.out.finish(name, path, **job.key)
        return job.out.finish(job.name, temp, **writer.counts, **job.key)
    finally:
        for path in (temp, *beside.values()):
            path.unlink(missing_ok=True)


def shard_writer(path: Path, spec: ShardSpec, *, split: str, domain: str) -> ShardWriter:
    """The writer for a shard's name, which ends in `.tokens` or `.tfrecord`."""
    if path.name.endswith(SUFFIX):
        return TfrecordWriter(path, spec, split=split, domain=domain)
    return TokenShardWriter(path, spec, split=split, domain=domain)


def write_documents(writer: ShardWriter, documents: Iterable[Document], tokenizer: Tokenizer) -> None:
    """Encode documents in batches and add them in order."""
    for batch in batches(iter(documents)):
        encoded = tokenizer.encode_batch([document.text for document in batch])
        for document, tokens in zip(batch, encoded, strict=True):
            writer.add(document, tokens)


def batches(documents: Iterator[Document]) -> Iterator[list[Document]]:
    """Documents in lists of bounded size, in order."""
    batch: list[Document] = []
    characters = 0
    for document in documents:
        batch.append(document)
        characters += len(document.text)
        if len(batch) == BATCH_DOCUMENTS or characters >= BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def dataset_index(spec: ShardSpec, facts: Iterable[tuple[str, str, dict[str, Any]]]) -> dict[str, Any]:
    """The content of `dataset.json` from (split, domain, sidecar) of every shard, in order."""
    splits: dict[str, dict[str, Any]] = {}
    for split, domain, sidecar in facts:
        record = splits.setdefault(split, {}).setdefault(
            domain, {"documents": 0, "tokens": 0, "bytes": 0, "units": 0, "languages": {}, "shards": []}
        )
        _add(record, sidecar)
        for lang, counts in sidecar["languages"].items():
            _add(record["languages"].setdefault(lang, {"documents": 0, "tokens": 0, "bytes": 0, "units": 0}), counts)
        shard = {"name": sidecar["name"], "documents": sidecar["documents"], "tokens": sidecar["tokens"]}
        record["shards"].append(shard)
    return {
        "format": FORMAT,
        "tokenizer_sha256": spec.tokenizer_sha256,
        "vocab_size": spec.vocab_size,
        "eos_id": spec.eos_id,
        "bos_id": spec.bos_id,
        "dtype": spec.dtype,
        "splits": splits,
    }


def _add(total: dict[str, Any], counts: dict[str, Any]) -> None:
    for name in ("documents", "tokens", "bytes", "units"):
        total[name] += counts[name]


def index_counts(index: dict[str, Any]) -> dict[str, Any]:
    """Totals for a manifest: {documents, tokens, bytes, units, splits: {split: {domain: the same}}}."""
    names = ("documents", "tokens", "bytes", "units")
    splits = {
        split: {domain: {name: record[name] for name in names} for domain, record in domains.items()}
        for split, domains in index["splits"].items()
    }
    records = [record for domains in splits.values() for record in domains.values()]
    return {**{name: sum(record[name] for record in records) for name in names}, "splits": splits}
