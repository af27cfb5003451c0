"""From the packed dataset to the tensors of a step.

In: a `TokenDataset`, the run's order, the loader's batches. Out: `Batch`es as the train module wants them, and the
windows validation looks at. How many bytes of text the predicted tokens stand for comes from the dataset's index.

    data = RunData(dataset, StepOrder(...), document_mask=True)
    for batch in data.batches(1, 100): ...
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from headwater.core.errors import InputError
from headwater.dataset import DomainStream, Loader, StepOrder, TokenDataset
from headwater.dataset.loader import Batch as LoadedBatch
from headwater.dataset.loader import positions_of
from headwater.model.loss import IGNORE
from headwater.train.batch import Batch


class RunData:
    """Training batches of a run, read ahead in a thread."""

    def __init__(
        self, dataset: TokenDataset, order: StepOrder, *, document_mask: bool, rank: int = 0, ranks: int = 1
    ) -> None:
        """`rank` of `ranks`: the data-parallel place, which chooses the rows of every batch."""
        split = dataset.split("train")
        self._loader = Loader(split, order, rank=rank, world=ranks, restart_positions=document_mask)
        self._document_mask = document_mask
        self._bytes_per_token = {name: _bytes_per_target(stream) for name, stream in split.domains.items()}

    def batches(self, first_step: int, last_step: int) -> Iterator[Batch]:
        """Batches of first_step..last_step in order; closing the iterator ends the reading thread."""
        for loaded in self._loader.iterate(first_step, last_step):
            yield self._convert(loaded)

    def _convert(self, loaded: LoadedBatch) -> Batch:
        valid = loaded.loss_mask.sum(axis=1)
        text_bytes = sum(
            int(count) * self._bytes_per_token[domain] for count, domain in zip(valid, loaded.domains, strict=True)
        )
        return _batch(
            loaded.tokens,
            loaded.documents,
            loaded.positions,
            self._document_mask,
            domains=loaded.domains,
            text_bytes=text_bytes,
            all_domains=self._bytes_per_token,  # the same on every rank, whatever its rows are from
        )


@dataclass(frozen=True)
class ValidationWindows:
    """Held-out windows of one domain, [windows, seq_len + 1], the same ones all through a run."""

    domain: str
    batch: Batch


def validation_windows(
    dataset: TokenDataset, seq_len: int, per_domain: int, *, document_mask: bool
) -> list[ValidationWindows]:
    """Up to `per_domain` windows of each domain of the validation split, spread evenly over it.

    [] if the dataset has no validation split. A domain shorter than one window is left out; InputError if all are.
    """
    if "validation" not in dataset.splits:
        return []
    found = []
    split = dataset.split("validation")
    for name, stream in split.domains.items():
        count = max(0, stream.tokens - 1) // seq_len
        if not count:
            continue
        chosen = sorted({index * count // min(per_domain, count) for index in range(min(per_domain, count))})
        windows = [stream.window(index * seq_len, (index + 1) * seq_len + 1) for index in chosen]
        tokens = np.stack([window.tokens.astype(np.int64) for window in windows])
        documents = np.stack([window.documents for window in windows])
        valid = int((documents[:, 1:] == documents[:, :-1]).sum())
        batch = _batch(
            tokens,
            documents,
            positions_of(documents[:, :-1], restart=document_mask),
            document_mask,
            domains=(name,) * len(windows),
            text_bytes=valid * _bytes_per_target(stream),
        )
        found.append(ValidationWindows(name, batch))
    if not found:
        raise InputError(
            f"no domain of the validation split has a window of {seq_len + 1:,} tokens",
            where=str(dataset.path),
            mend="give the validation split a larger share (curate.split), or use a shorter train.seq_len",
        )
    return found


def _bytes_per_target(stream: DomainStream) -> float:
    """Text bytes a predicted token stands for; the first token of a document is not predicted."""
    return stream.bytes / max(1, stream.tokens - stream.documents)


def _tokens_by_domain(domains: Sequence[str], seq_len: int) -> dict[str, int]:
    return {name: rows * seq_len for name, rows in Counter(domains).items()}


def _batch(
    tokens: np.ndarray,
    documents: np.ndarray,
    positions: np.ndarray,
    document_mask: bool,
    *,
    domains: Sequence[str],
    text_bytes: float,
    all_domains: Iterable[str] = (),
) -> Batch:
    """Tensors of [B, S + 1] arrays; a target across a document's border becomes IGNORE."""
    targets = np.where(documents[:, 1:] == documents[:, :-1], tokens[:, 1:], IGNORE)
    seq_len = tokens.shape[1] - 1
    return Batch(
        tokens=torch.from_numpy(np.ascontiguousarray(tokens[:, :-1])),
        targets=torch.from_numpy(targets),
        positions=torch.from_numpy(positions) if document_mask else None,
        documents=torch.from_numpy(np.ascontiguousarray(documents[:, :-1])) if document_mask else None,
        domain_tokens={**dict.fromkeys(all_domains, 0), **_tokens_by_domain(domains, seq_len)},
        text_bytes=text_bytes,
    )
