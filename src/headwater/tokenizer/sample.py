"""Chooses the text a vocabulary is learned from: a fair part of every domain and language, whatever the shards' order.

In: document shards. Out: texts, in an order given by the documents' ids alone. Of every stratum (a domain and a
language) the documents whose id hashes lowest are taken until its share is full, so the sample does not depend on how
documents lie in shards, and changes little when documents are added.

    budgets = share_out({("web", "zh"): 10**9, ("web", "en"): 10**9}, config)      # bytes by stratum
    texts = [document.text for document in draw(shards, budgets, executor)]
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import xxhash

from headwater.core.documents import Document, row_groups
from headwater.core.errors import RecipeError
from headwater.core.executor import Executor
from headwater.tokenizer.config import TokenizerConfig

Stratum = tuple[str, str]
"""Domain and language."""

MAX_DOCUMENT_BYTES = 1 << 20
"""A longer document gives only its beginning, so that one book cannot be a whole stratum."""


@dataclass(frozen=True, slots=True, order=True)
class Candidate:
    """A document that may be taken: ordered by key, then by place."""

    key: int
    shard: int
    group: int
    row: int
    size: int


@dataclass(frozen=True)
class Survey:
    """What lies in the shards, by stratum: documents, bytes, and the candidates with the lowest keys, sorted."""

    documents: dict[Stratum, int]
    bytes: dict[Stratum, int]
    candidates: dict[Stratum, list[Candidate]]


def survey(shards: Sequence[Path], most_bytes: int, executor: Executor) -> Survey:
    """Look at every document's id, domain, language and size. Keeps `most_bytes` of candidates of each stratum."""
    total = Survey({}, {}, {})
    for part in executor.map(_survey_shard, [(number, path, most_bytes) for number, path in enumerate(shards)]):
        for stratum in part.bytes:
            total.documents[stratum] = total.documents.get(stratum, 0) + part.documents[stratum]
            total.bytes[stratum] = total.bytes.get(stratum, 0) + part.bytes[stratum]
            merged = sorted([*total.candidates.get(stratum, []), *part.candidates[stratum]])
            total.candidates[stratum] = _lowest(merged, most_bytes)
    return total


def _survey_shard(item: tuple[int, Path, int]) -> Survey:
    import pyarrow.compute as pc

    number, path, most_bytes = item
    found: dict[Stratum, list[Candidate]] = {}
    totals: dict[Stratum, int] = {}
    counts: dict[Stratum, int] = {}
    for group, table in enumerate(row_groups(path, ("id", "text", "domain", "lang"))):
        sizes = pc.binary_length(table["text"]).to_pylist()
        columns = zip(
            table["id"].to_pylist(), table["domain"].to_pylist(), table["lang"].to_pylist(), sizes, strict=True
        )
        for row, (identity, domain, lang, size) in enumerate(columns):
            stratum = (domain, lang)
            counts[stratum] = counts.get(stratum, 0) + 1
            totals[stratum] = totals.get(stratum, 0) + size
            key = xxhash.xxh3_64_intdigest(identity.encode())
            found.setdefault(stratum, []).append(Candidate(key, number, group, row, min(size, MAX_DOCUMENT_BYTES)))
        found = {stratum: _lowest(sorted(rows), most_bytes) for stratum, rows in found.items()}
    return Survey(counts, totals, found)


def _lowest(candidates: list[Candidate], most_bytes: int) -> list[Candidate]:
    size = 0
    for number, candidate in enumerate(candidates):
        if size >= most_bytes:
            return candidates[:number]
        size += candidate.size
    return candidates


def share_out(sizes: Mapping[Stratum, int], config: TokenizerConfig) -> dict[Stratum, int]:
    """Bytes of the sample each stratum gives; together at most `sample_bytes`.

    A stratum smaller than its share gives all it has, and the rest is shared among the others in the same proportion.
    RecipeError for a weight on a domain the corpus does not have.
    """
    weights = {stratum: size**config.sample_exponent for stratum, size in sorted(sizes.items()) if size}
    if config.sample_weights is not None:
        weights = _domain_weights(weights, config.sample_weights)
    budgets = dict.fromkeys(weights, 0)
    left = config.sample_bytes
    while left and weights:
        total = sum(weights.values())
        full = {s: sizes[s] for s, weight in weights.items() if left * weight / total >= sizes[s]}
        if not full:
            return budgets | {s: int(left * weight / total) for s, weight in weights.items()}
        budgets |= full
        left -= sum(full.values())
        weights = {s: weight for s, weight in weights.items() if s not in full}
    return budgets


def _domain_weights(weights: dict[Stratum, float], wanted: Mapping[str, float]) -> dict[Stratum, float]:
    domains = {domain for domain, _ in weights}
    if strangers := sorted(set(wanted) - domains):
        raise RecipeError(
            f"sample_weights names {', '.join(strangers)}, but the corpus has no such domain",
            where="tokenizer.sample_weights",
            mend="it has " + ", ".join(sorted(domains)),
        )
    if any(weight < 0 for weight in wanted.values()) or not any(wanted.values()):
        raise RecipeError(
            f"sample_weights are {dict(wanted)}",
            where="tokenizer.sample_weights",
            mend="give at least one domain a positive weight, and none a negative one",
        )
    sums = {name: sum(weight for (domain, _), weight in weights.items() if domain == name) for name in domains}
    return {
        (domain, lang): wanted[domain] * weight / sums[domain]
        for (domain, lang), weight in weights.items()
        if wanted.get(domain)
    }


def choose(found: Survey, budgets: Mapping[Stratum, int], skip: Iterable[Candidate] = ()) -> list[Candidate]:
    """The documents of the sample, by rising key. `skip` leaves some out."""
    left_out = set(skip)
    chosen: list[Candidate] = []
    for stratum, budget in sorted(budgets.items()):
        if budget:
            chosen += _lowest([c for c in found.candidates.get(stratum, []) if c not in left_out], budget)
    return sorted(chosen)


def read(shards: Sequence[Path], chosen: Sequence[Candidate], executor: Executor) -> list[Document]:
    """The chosen documents, in their order, each cut to `MAX_DOCUMENT_BYTES`."""
    by_shard: dict[int, list[Candidate]] = {}
    for candidate in chosen:
        by_shard.setdefault(candidate.shard, []).append(candidate)
    items = [(shards[number], by_shard[number]) for number in sorted(by_shard)]
    found: dict[Candidate, Document] = {}
    for (_, candidates), documents in zip(items, executor.map(_read_rows, items), strict=True):
        found.update(zip(candidates, documents, strict=True))
    return [found[candidate] for candidate in chosen]


def _read_rows(item: tuple[Path, list[Candidate]]) -> list[Document]:
    path, candidates = item
    documents: dict[Candidate, Document] = {}
    groups = sorted({candidate.group for candidate in candidates})
    tables = row_groups(path, ("id", "text", "source", "lang", "domain"), groups)
    for group, table in zip(groups, tables, strict=True):
        rows = [candidate for candidate in candidates if candidate.group == group]
        taken = table.take([candidate.row for candidate in rows]).to_pylist()
        for candidate, values in zip(rows, taken, strict=True):
            values["text"] = cut_bytes(values["text"], MAX_DOCUMENT_BYTES)
            documents[candidate] = Document(**values)
    return [documents[candidate] for candidate in candidates]


def cut_bytes(text: str, most: int) -> str:
    """The longest beginning of `text` with at most `most` bytes of UTF-8."""
    if len(text) * 4 <= most:
        return text
    return text.encode("utf-8", "surrogatepass")[:most].decode("utf-8", "ignore")
