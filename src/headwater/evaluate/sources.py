"""Where held-out text and the baselines' training text come from: a packed dataset, or a person's own files.

held_out = held_out_of_dataset(TokenDataset.open(path), tokenizer, "validation")
stream, used = training_stream(dataset, most_tokens=30_000_000)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headwater.core.errors import CorruptArtifactError, InputError
from headwater.dataset import DomainStream, TokenDataset
from headwater.dataset.dataset import INDEX
from headwater.evaluate.config import EvaluateConfig
from headwater.evaluate.heldout import HeldOut, HeldOutDocument, Text, from_texts, measured
from headwater.tokenizer import Tokenizer
from headwater.tokenizer.inputs import read_inputs


def is_dataset(path: Path | str) -> bool:
    """Whether a path is a packed dataset."""
    return (Path(path) / INDEX).is_file()


def held_out_of(data: Path | str | Sequence[Path | str], tokenizer: Tokenizer, config: EvaluateConfig) -> HeldOut:
    """Held-out text from one packed dataset, or from corpus folders, Parquet, JSON Lines and text files.

    `config.split` is taken of a dataset or corpus. Raises InputError for a path that does not exist, a row that cannot
    be read (with its line), or no text at all.
    """
    paths = [data] if isinstance(data, Path | str) else list(data)
    if len(paths) == 1 and is_dataset(paths[0]):
        dataset = TokenDataset.open(paths[0])
        return held_out_of_dataset(dataset, tokenizer, config.split, max_tokens=config.max_tokens)
    documents = read_inputs([Path(path) for path in paths], split=config.split)
    texts = (Text(item.id, item.text, item.domain, item.lang) for item in documents)
    source = ", ".join(str(path) for path in paths[:4]) + (f" and {len(paths) - 4} more" if len(paths) > 4 else "")
    held_out = from_texts(texts, tokenizer, source=source)
    if config.max_tokens is not None:
        held_out = _front_documents(held_out, config.max_tokens)
    if not held_out.documents:
        raise InputError("there is no text to score", where=source)
    return held_out


def _front_documents(held_out: HeldOut, max_tokens: int) -> HeldOut:
    taken: dict[str, int] = {}
    kept = []
    for document in held_out.documents:
        if taken.get(document.domain, 0) < max_tokens:
            taken[document.domain] = taken.get(document.domain, 0) + len(document.tokens)
            kept.append(document)
    beyond = len(held_out.documents) - len(kept)
    left_out = held_out.left_out | ({"beyond max_tokens": beyond} if beyond else {})
    return replace(held_out, documents=tuple(kept), left_out=left_out)


def held_out_of_dataset(
    dataset: TokenDataset, tokenizer: Tokenizer, split: str, *, max_tokens: int | None = None
) -> HeldOut:
    """Every document of a split, or each domain's first documents, until they hold `max_tokens` tokens or more.

    Texts are decoded from the tokens and checked against the bytes the dataset counted. Raises InputError for a split
    without documents or another tokenizer, CorruptArtifactError if a text does not come back as it was.
    """
    dataset.check_tokenizer(tokenizer)
    documents: list[HeldOutDocument] = []
    left_out = empty = 0
    for name, stream in dataset.split(split).domains.items():
        taken = 0
        for info, packed in stream.iter_documents():
            tokens = dataset.text_tokens(packed).astype(np.int32)
            if not len(tokens):
                empty += 1
                continue
            if max_tokens is not None and taken >= max_tokens:
                left_out += 1
                continue
            taken += len(tokens)
            document = measured(Text(info.id, tokenizer.decode(tokens.tolist()), name, info.lang), tokens)
            if document.bytes != info.bytes:
                raise CorruptArtifactError(
                    f"document {info.id} decodes to {document.bytes:,} bytes instead of {info.bytes:,}",
                    where=f"{dataset.path}: {split}/{name}",
                    mend="pack the dataset again with the tokenizer of this run",
                )
            documents.append(replace(document, units=info.units))
    if not documents:
        raise InputError(f"the {split} split holds no text", where=str(dataset.path), mend="score another split")
    reasons = {"beyond max_tokens": left_out, "empty": empty}
    return HeldOut(
        documents=tuple(documents),
        source=f"dataset {dataset.fingerprint}",
        split=split,
        tokenizer_sha256=dataset.tokenizer_sha256,
        vocab_size=dataset.vocab_size,
        left_out={reason: count for reason, count in reasons.items() if count},
    )


def training_stream(dataset: TokenDataset, most_tokens: int | None) -> tuple[NDArray[np.int32], dict[str, Any]]:
    """The training split as one array, each document followed by eos (without bos), and what was used of it.

    With a limit each domain gives its share of it, in whole documents from its front.
    """
    domains = dataset.split("train").domains
    total = sum(_learned(stream, dataset) for stream in domains.values())
    share = 1.0 if most_tokens is None or total <= most_tokens else most_tokens / total
    parts = [_front(stream, dataset.eos_id, share) for stream in domains.values()]
    stream = np.concatenate(parts) if parts else np.zeros(0, dtype=np.int32)
    if dataset.bos_id is not None:  # it stands for no text, and eos tells the same border
        stream = stream[stream != dataset.bos_id]
    return stream, {"training_tokens": len(stream), "training_tokens_available": total}


def _learned(stream: DomainStream, dataset: TokenDataset) -> int:
    """Tokens of a domain without bos."""
    return stream.tokens - (0 if dataset.bos_id is None else stream.documents)


def _front(stream: DomainStream, eos_id: int, share: float) -> NDArray[np.int32]:
    """The leading documents of a domain that fit a share of its tokens; at least the first."""
    tokens = stream.read(0, max(int(stream.tokens * share), min(stream.tokens, 1)))
    if share < 1.0:
        ends = np.flatnonzero(tokens == eos_id)
        if len(ends):
            tokens = tokens[: int(ends[-1]) + 1]
        else:
            first = stream.document(0)
            tokens = stream.read(first.start, first.stop)
    return tokens.astype(np.int32)
