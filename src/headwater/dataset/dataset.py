"""A packed dataset: splits, their domains as streams of tokens, and the documents in them.

In: a folder with `dataset.json` and `SPLIT/DOMAIN-00000.tokens`. Shards are opened when first read.

    dataset = TokenDataset.open("workspace/dataset/0123456789abcdef")
    stream = dataset.split("train").domains["web"]
    stream.read(0, 129)                          # 129 tokens
    for window in dataset.iter_windows("validation", "web", seq_len=128): ...
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from headwater.core.artifacts import Artifact
from headwater.core.errors import CorruptArtifactError, InputError
from headwater.core.files import sha256_bytes
from headwater.core.jsonl import parse_json
from headwater.dataset.cache import ShardCache
from headwater.dataset.shard import DocumentInfo, TokenShard
from headwater.dataset.tfrecord_shard import open_shard

INDEX = "dataset.json"
FORMAT = 1
OPEN_SHARDS = 256
"""Shards mapped at once by a dataset; each holds a file descriptor, of which a process has about 1,000."""


class HasSha256(Protocol):
    """A tokenizer, as far as a dataset cares."""

    @property
    def sha256(self) -> str: ...


@dataclass(frozen=True, slots=True)
class StreamWindow:
    """Consecutive tokens of a stream.

    `tokens` [n] in the shard's integer type; `documents` int32 [n]: ordinal of each token's document within the window,
    from 0; `first_document`: number in the stream of the window's first document; `cached`: whether all of it was read
    from the cache.
    """

    start: int
    tokens: NDArray[np.unsignedinteger]
    documents: NDArray[np.int32]
    first_document: int
    cached: bool = False

    @property
    def loss_mask(self) -> NDArray[np.bool_]:
        """bool [n - 1]: whether token i + 1 is predicted from token i: not across a document's border."""
        return self.documents[1:] == self.documents[:-1]


class DomainStream:
    """The shards of one domain of one split, in the order of their numbers, as one stream of tokens."""

    def __init__(self, dataset: TokenDataset, split: str, name: str, record: dict[str, Any]) -> None:
        self.split, self.name = split, name
        self.documents: int = record["documents"]
        self.tokens: int = record["tokens"]
        self.bytes: int = record["bytes"]
        self.units: int = record["units"]
        self.languages: dict[str, dict[str, int]] = record["languages"]
        self._dataset = dataset
        self._shards: list[dict[str, Any]] = record["shards"]
        self._first_token, self._first_document = [0], [0]
        for shard in self._shards:
            self._first_token.append(self._first_token[-1] + shard["tokens"])
            self._first_document.append(self._first_document[-1] + shard["documents"])

    def read(self, start: int, stop: int) -> NDArray[np.unsignedinteger]:
        """Tokens start to stop (exclusive). ValueError outside the stream, CorruptArtifactError if damaged."""
        parts = [self._dataset.read(shard, first, last) for shard, first, last, _ in self._parts(start, stop)]
        return parts[0] if len(parts) == 1 else np.concatenate([*parts, np.zeros(0, self._dataset.dtype)])

    def window(self, start: int, stop: int) -> StreamWindow:
        """Tokens start to stop with the documents they belong to. Raises as `read`."""
        documents = np.zeros(stop - start, dtype=np.int32)
        first_document = -1
        position = 0
        cached = True
        for shard, first, last, document in self._parts(start, stop):
            begin = int(np.searchsorted(shard.ends, first, side="right"))
            end = int(np.searchsorted(shard.ends, last, side="left"))
            if first_document < 0:
                first_document = document + begin
            else:
                documents[position] = 1  # a shard begins with a new document
            documents[position + shard.ends[begin:end].astype(np.int64) - first] = 1
            position += last - first
            cached &= shard.cached_as is not None
        np.cumsum(documents, out=documents)
        return StreamWindow(start, self.read(start, stop), documents, first_document, cached)

    def shard_names(self, start: int, stop: int) -> list[str]:
        """Shards that hold tokens start to stop (exclusive)."""
        first = bisect_right(self._first_token, start) - 1
        last = bisect_right(self._first_token, max(start, stop - 1)) - 1
        return [shard["name"] for shard in self._shards[first : last + 1]]

    @property
    def shard_spans(self) -> list[tuple[int, int]]:
        """The stream's tokens, start to stop (exclusive), of every shard that holds any."""
        return [(start, stop) for start, stop in pairwise(self._first_token) if start < stop]

    def document(self, number: int) -> DocumentInfo:
        """Document `number` of the stream, with `start` and `stop` counted from the stream's first token."""
        if not 0 <= number < self.documents:
            raise ValueError(f"document {number} is outside {self.split}/{self.name} with {self.documents}")
        index = bisect_right(self._first_document, number) - 1
        found = self._shard(index).document(number - self._first_document[index])
        offset = self._first_token[index]
        return DocumentInfo(
            found.id, found.source, found.lang, found.start + offset, found.stop + offset, found.bytes, found.units
        )

    def find(self, document_id: str) -> list[int]:
        """Numbers of the documents with an id, by binary search in each shard."""
        found = []
        for index in range(len(self._shards)):
            found += [self._first_document[index] + number for number in self._shard(index).find(document_id)]
        return found

    @property
    def cache(self) -> ShardCache | None:
        return self._dataset.cache

    def iter_documents(self) -> Iterator[tuple[DocumentInfo, NDArray[np.unsignedinteger]]]:
        """Every document in order with its tokens, bos and eos included (`TokenDataset.text_tokens` takes them off)."""
        for number in range(self.documents):
            info = self.document(number)
            yield info, self.read(info.start, info.stop)

    def windows(self, seq_len: int) -> Iterator[StreamWindow]:
        """Cover the stream by windows of `seq_len` + 1 tokens that share one token, the last one shorter: every token
        but the stream's first is a target in exactly one window."""
        for start in range(0, max(1, self.tokens - 1), seq_len):
            if start < self.tokens:
                yield self.window(start, min(start + seq_len + 1, self.tokens))

    def _shard(self, index: int) -> TokenShard:
        return self._dataset.shard(self.split, self.name, self._shards[index])

    def _parts(self, start: int, stop: int) -> Iterator[tuple[TokenShard, int, int, int]]:
        """(shard, first token, last token, number of its first document) for each shard that start:stop touches."""
        if not 0 <= start <= stop <= self.tokens:
            raise ValueError(f"tokens {start}:{stop} are outside {self.split}/{self.name} with {self.tokens}")
        index = bisect_right(self._first_token, start) - 1
        while start < stop:
            last = min(stop, self._first_token[index + 1])
            if last > start:
                offset = self._first_token[index]
                yield self._shard(index), start - offset, last - offset, self._first_document[index]
            start, index = last, index + 1


class DatasetSplit:
    """One split: `domains` maps a name to its stream, sorted by name."""

    def __init__(self, name: str, domains: dict[str, DomainStream], where: Path) -> None:
        self.name, self.domains, self._where = name, domains, where

    @property
    def sizes(self) -> dict[str, int]:
        """Tokens of each domain: what `Order` takes as `streams`."""
        return {name: stream.tokens for name, stream in self.domains.items()}

    @property
    def tokens(self) -> int:
        return sum(self.sizes.values())

    def request(self, spans: Iterable[tuple[str, int, int]]) -> None:
        """Have the cache, if there is one, copy the shards of (domain, first token, last token) that will be read."""
        cache = next((stream.cache for stream in self.domains.values()), None)
        if cache is not None:
            names = (name for domain, start, stop in spans for name in self.domains[domain].shard_names(start, stop))
            cache.request(dict.fromkeys(names))

    def stream(self, domain: str) -> DomainStream:
        """InputError for a domain this split does not have."""
        if domain not in self.domains:
            raise InputError(
                f"the {self.name} split has no domain {domain!r}",
                where=str(self._where),
                mend="it has " + (", ".join(self.domains) or "none"),
            )
        return self.domains[domain]


class TokenDataset:
    """An opened dataset. `index` is `dataset.json` as it stands. Safe to read from several threads."""

    cache: ShardCache | None = None
    """Where shards are read from first; None: from the dataset's folder only."""

    def __init__(self, path: Path, index: dict[str, Any], fingerprint: str) -> None:
        self.path, self.index, self.fingerprint = path, index, fingerprint
        self.tokenizer_sha256: str = index["tokenizer_sha256"]
        self.vocab_size: int = index["vocab_size"]
        self.eos_id: int = index["eos_id"]
        self.bos_id: int | None = index["bos_id"]
        """Before each document; None if documents begin with their text."""
        self.dtype = np.dtype("<u2" if index["dtype"] == "uint16" else "<u4")
        self._open: OrderedDict[str, TokenShard] = OrderedDict()
        self._lock = threading.Lock()
        self._splits = {
            split: DatasetSplit(
                split, {name: DomainStream(self, split, name, record) for name, record in sorted(domains.items())}, path
            )
            for split, domains in index["splits"].items()
        }

    @classmethod
    def open(cls, source: Path | str | Artifact) -> TokenDataset:
        """From a `dataset` artifact, its folder, or a folder `pack_files` wrote. InputError if there is none."""
        path = source.path if isinstance(source, Artifact) else Path(source)
        try:
            data = (path / INDEX).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(
                f"no packed dataset here: there is no {INDEX}",
                where=str(path),
                mend="give the folder of a finished dataset stage (`headwater tokenize` makes one)",
            ) from None
        try:
            index = parse_json(data)
            if index["format"] != FORMAT:
                raise InputError(
                    f"the dataset has format {index['format']}; this version of Headwater reads format {FORMAT}",
                    where=str(path / INDEX),
                    mend="pack it again with this version",
                )
            artifact = isinstance(source, Artifact) or (path / "manifest.json").is_file()
            fingerprint = Artifact.open(path).fingerprint if artifact else sha256_bytes(data)[:16]
            return cls(path, index, fingerprint)
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptArtifactError(
                f"cannot read {INDEX}: {error!r}", where=str(path / INDEX), mend="pack the dataset again"
            ) from error

    @property
    def splits(self) -> tuple[str, ...]:
        """Names of the splits that have documents."""
        return tuple(self._splits)

    def split(self, name: str) -> DatasetSplit:
        """InputError for a split this dataset does not have."""
        if name not in self._splits:
            raise InputError(
                f"the dataset has no {name} split",
                where=str(self.path),
                mend=f"it has {', '.join(self._splits) or 'none'}; with more documents, or a larger share in "
                "curate.split, curation makes the others",
            )
        return self._splits[name]

    def text_tokens(self, packed: NDArray[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
        """A packed document without its bos and eos."""
        return packed[0 if self.bos_id is None else 1 : -1]

    def iter_windows(self, split: str, domain: str, seq_len: int) -> Iterator[StreamWindow]:
        """`DomainStream.windows` of one domain: deterministic, every target once."""
        return self.split(split).stream(domain).windows(seq_len)

    def check_tokenizer(self, tokenizer: HasSha256) -> None:
        """InputError unless this is the tokenizer the dataset was packed with."""
        if tokenizer.sha256 != self.tokenizer_sha256:
            raise InputError(
                f"the dataset was packed with tokenizer {self.tokenizer_sha256[:16]}, not {tokenizer.sha256[:16]}",
                where=str(self.path),
                mend="use the tokenizer it was packed with, or pack the corpus again",
            )

    def shard(self, split: str, domain: str, record: dict[str, Any]) -> TokenShard:
        """The opened shard of a record of `dataset.json`; CorruptArtifactError if the two do not agree."""
        name = record["name"]
        with self._lock:
            known = self._open.get(name)
            shard = known if self.cache is None else self._from_cache(self.cache, name, known)
            if shard is None:
                shard = self.open_source(name)
            if shard is not known:
                header = shard.header
                seen = (shard.split, shard.domain, header.tokens, header.documents, header.tokenizer_sha256)
                if seen != (split, domain, record["tokens"], record["documents"], self.tokenizer_sha256):
                    raise CorruptArtifactError(
                        f"it is not the shard {INDEX} speaks of: {split}/{domain}, {record['tokens']:,} tokens, "
                        f"{record['documents']:,} documents, tokenizer {self.tokenizer_sha256[:16]}",
                        where=str(self.path / name),
                        mend="pack the dataset again, or restore the file from a copy",
                    )
                self._open[name] = shard
                self._let_go(name)
            self._open.move_to_end(name)
            return shard

    def open_source(self, name: str) -> TokenShard:
        """A shard from the dataset's own folder."""
        return open_shard(self.path / name)

    def _from_cache(self, cache: ShardCache, name: str, known: TokenShard | None) -> TokenShard | None:
        """The shard to read: cached if it is, else what is open, if it is; and then the cache is asked for it."""
        if known is not None and known.cached_as is not None:
            if cache.still_there(name):
                return known
            known = None
        cached = cache.open(name)
        if cached is None:
            cache.request([name])
        return cached or known

    def _let_go(self, keep: str) -> None:
        """Close what is too much, and cached shards that have made way for others; not `keep`, which is read now."""
        gone = [name for name, shard in self._open.items() if shard.cached_as and not shard.path.exists()]
        for name in gone:
            if name != keep:
                del self._open[name]
        if len(self._open) > OPEN_SHARDS:
            self._open.popitem(last=False)

    def read(self, shard: TokenShard, first: int, last: int) -> NDArray[np.unsignedinteger]:
        """Tokens of a shard. A damaged copy in the cache is thrown away, and the shard read from the dataset."""
        try:
            return shard.tokens(first, last)
        except CorruptArtifactError:
            name = shard.cached_as
            if name is None or self.cache is None:
                raise
        with self._lock:
            self._open.pop(name, None)
        self.cache.discard(name)
        return self.open_source(name).tokens(first, last)

    def verify(self, deep: bool = False) -> None:
        """Open every shard (header, size and index are checked); with `deep` check every block and document end.

        CorruptArtifactError names the file, and the block.
        """
        for split in self._splits.values():
            for domain in split.domains.values():
                for record in self.index["splits"][split.name][domain.name]["shards"]:
                    shard = self.shard(split.name, domain.name, record)
                    if deep:
                        shard.verify()
