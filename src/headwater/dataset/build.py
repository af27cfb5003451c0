"""The dataset stage: from the curated corpus and the tokenizer to token shards.

In: artifacts `curate` and `tokenizer`. Out: `SPLIT/DOMAIN-00000.tokens` (as many as the corpus has) and `dataset.json`.
A shard that an earlier dataset in the same workspace already holds, from equal text with an equal tokenizer, is taken
over instead of packed again.

    build(DatasetConfig(), {"curate": corpus, "tokenizer": tokenizer}, out, context)
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from headwater.core.artifacts import Artifact, ArtifactStore, ArtifactWriter
from headwater.core.documents import Corpus
from headwater.core.files import free_bytes_check, sha256_file
from headwater.core.jsonl import pretty_json
from headwater.core.shards import ShardFolder
from headwater.core.stage import StageContext
from headwater.dataset.config import DatasetConfig
from headwater.dataset.dataset import INDEX
from headwater.dataset.pack import PackJob, dataset_index, index_counts, pack_shard, shard_key, spec_for
from headwater.tokenizer import Tokenizer

TOKENS_PER_BYTE = 0.6
"""Upper estimate for the disk check; measured tokenizers make 0.25 to 0.4, with tiny vocabularies up to 0.6."""


def build(
    config: DatasetConfig, inputs: dict[str, Artifact], out: ArtifactWriter, context: StageContext
) -> dict[str, Any]:
    """Pack every split of the corpus. Returns counts of documents, tokens, bytes and units by split and domain."""
    tokenizer_path = inputs["tokenizer"].path
    tokenizer = Tokenizer.load(tokenizer_path)
    spec = spec_for(config, tokenizer)
    jobs = list(_jobs(inputs["curate"], tokenizer_path, ShardFolder(out.dir), spec, config.format))
    todo = [job for job in jobs if not _is_done(out, job)]
    _take_over(todo, out, context)
    todo = [job for job in todo if not _is_done(out, job)]
    text_bytes = sum(_text_bytes(job.corpus_shard) for job in todo)
    item_bytes = 2 if spec.dtype == "uint16" else 4
    free_bytes_check(out.dir, int(text_bytes * TOKENS_PER_BYTE * item_bytes), "the packed dataset")
    context.reporter.decide(
        f"{spec.dtype} tokens in {len(jobs)} shards",
        why=f"the vocabulary has {spec.vocab_size:,} tokens; one token shard for each corpus shard"
        + (f"; {len(jobs) - len(todo)} are there already" if len(todo) < len(jobs) else ""),
    )
    with context.reporter.progress("pack", total=max(1, text_bytes) / 1e6, unit="MB") as bar:
        for job, _ in zip(todo, context.executor.map(pack_shard, todo), strict=True):
            bar.advance(_text_bytes(job.corpus_shard) / 1e6)
    facts = [(job.split, job.domain, _sidecar(out, job)) for job in jobs]
    index = dataset_index(spec, facts)
    out.write(INDEX, pretty_json(index))
    counts = index_counts(index)
    for split, domains in counts["splits"].items():
        sizes = ", ".join(f"{domain} {record['tokens']:,}" for domain, record in domains.items())
        context.reporter.info(f"{split}: {sum(r['tokens'] for r in domains.values()):,} tokens ({sizes})")
    return counts


def _jobs(corpus: Artifact, tokenizer: Path, out: ShardFolder, spec: Any, format: str) -> Iterator[PackJob]:
    opened = Corpus.open(corpus)
    for split in opened.splits:
        for domain in opened.domains(split):
            for path in opened.shards(split, domain):
                key = shard_key(spec, corpus.facts(path.relative_to(corpus.path).as_posix())["sha256"])
                name = f"{split}/{path.stem}.{format}"
                yield PackJob(path, tokenizer, out, name, split, domain, spec, key)


def _is_done(out: ArtifactWriter, job: PackJob) -> bool:
    found = [out.done(name) for name in job.names]
    return all(
        facts is not None and all(facts.get(name) == value for name, value in job.key.items()) for facts in found
    )


def _sidecar(out: ArtifactWriter, job: PackJob) -> dict[str, Any]:
    facts = out.done(job.name)
    assert facts is not None, f"{job.name} was packed but is not there"
    return facts


def _text_bytes(path: Path) -> int:
    """Bytes of the text column before compression, from the file's metadata."""
    metadata = pq.ParquetFile(path).metadata
    column = metadata.schema.names.index("text")
    return sum(
        metadata.row_group(group).column(column).total_uncompressed_size for group in range(metadata.num_row_groups)
    )


def _take_over(jobs: list[PackJob], out: ArtifactWriter, context: StageContext) -> None:
    """Copy shards with an equal key and name from committed datasets; each is hashed again on the way."""
    wanted = {name: job for job in jobs for name in job.names}
    for artifact in ArtifactStore(context.workspace).all(out.stage):
        for name in artifact.files():
            job, facts = wanted.get(name), artifact.facts(name)
            if job is None or any(facts.get(key) != value for key, value in job.key.items()):
                continue
            temp = out.temp(name)
            _link_or_copy(artifact.path / name, temp)
            if sha256_file(temp) != facts["sha256"]:
                temp.unlink()  # damaged there; it is packed again here
                continue
            own = {key: value for key, value in facts.items() if key not in ("name", "size", "sha256")}
            out.finish(name, temp, **own)
            del wanted[name]


def _link_or_copy(source: Path, target: Path) -> None:
    """A hard link costs no space; shards are never changed once written."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)
