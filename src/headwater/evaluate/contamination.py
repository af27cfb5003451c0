"""Which questions of a benchmark stand in the text a model was trained on, and what scores are without them.

In: a task's items, and the training documents (a packed dataset, corpus folders, files). Out: for each item that shares
an n-gram of 13 units with a document, the share of its text that is there, the document and the passage; figures over
all items, without the contaminated ones (a share of at least 0.8), and without every one that overlaps at all.

    found = check({"piqa": items}, training_documents([Path("corpus.jsonl.zst")]))
    found["piqa"].items["17"].passage

The index is that of `headwater curate decontaminate`: units are characters of Chinese and words of English, case and
width are folded. Every text of an item is looked for apart: passage, question, a long answer; a question of 8 to 12
units only if the item has nothing longer, and only whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from headwater.core.errors import InputError
from headwater.core.progress import SILENT, Reporter
from headwater.core.units import count_units
from headwater.curate.dedup.benchmarks import BenchmarkIndex
from headwater.curate.dedup.benchmarks import Item as Probe
from headwater.curate.dedup.settings import DecontaminateSettings
from headwater.evaluate.sources import is_dataset
from headwater.evaluate.tasks.figures import Figure, figures
from headwater.evaluate.tasks.items import Item
from headwater.tokenizer import Tokenizer
from headwater.tokenizer.inputs import read_inputs

WIDTH, SHORTEST, THRESHOLD = 13, 8, 0.8
LONG_ANSWER = 26
"""Units from which on an answer is looked for: shorter ones are names and terms, which stand everywhere."""
ANY = 1e-9
"""A share that a single common n-gram reaches."""
PASSAGE = 400
"""Characters of a passage that are kept."""
BATCH_BYTES = 8 << 20


@dataclass(frozen=True, slots=True)
class Overlap:
    """The closest document of an item: `share` of the text in field `field` that stands there, `passage` of it."""

    share: float
    field: str
    document: str
    passage: str

    @property
    def contaminated(self) -> bool:
        return self.share >= THRESHOLD


@dataclass(slots=True)
class TaskContamination:
    """Of one task: overlaps by the item's place; `too_short`: items without a text long enough to look for."""

    checked: int
    too_short: int
    items: dict[int, Overlap] = field(default_factory=dict)
    documents: int = 0

    @property
    def contaminated(self) -> list[int]:
        return sorted(place for place, overlap in self.items.items() if overlap.contaminated)


def training_documents(paths: Sequence[Path], tokenizer: Tokenizer | None = None) -> Iterator[tuple[str, str]]:
    """(id, text) of what a model learned from: the training split of a packed dataset, decoded with its `tokenizer`, or
    documents of corpora and files. Errors as the readers'; InputError for a dataset without a tokenizer."""
    if len(paths) == 1 and is_dataset(paths[0]):
        from headwater.dataset import TokenDataset

        if tokenizer is None:
            raise InputError(
                "a packed dataset is read with the tokenizer it was packed with",
                where=str(paths[0]),
                mend="name the corpus it was packed from",
            )
        dataset = TokenDataset.open(paths[0])
        dataset.check_tokenizer(tokenizer)
        for stream in dataset.split("train").domains.values():
            for info, packed in stream.iter_documents():
                yield info.id, tokenizer.decode(dataset.text_tokens(packed).tolist())
        return
    for document in read_inputs(list(paths)):
        yield document.id, document.text


def check(
    tasks: Mapping[str, Sequence[Item]],
    documents: Iterable[tuple[str, str]],
    *,
    width: int = WIDTH,
    reporter: Reporter = SILENT,
) -> dict[str, TaskContamination]:
    """Look for all items of all tasks in one pass over the documents; `width`: units of the n-grams. Memory: the index
    and 8 MB of documents."""
    probes: list[Probe] = []
    of: dict[str, tuple[str, int, str]] = {}
    found = {}
    for task, items in tasks.items():
        short = 0
        for place, item in enumerate(items):
            texts = probe_texts(item)
            short += not texts
            for name, text in texts.items():
                key = f"{task}/{place}/{name}"
                of[key] = (task, place, name)
                probes.append(Probe(key, text))
        found[task] = TaskContamination(len(items), short)
    index = BenchmarkIndex(probes, DecontaminateSettings(width=width, shortest=SHORTEST, threshold=ANY))
    seen = 0
    with reporter.progress("look for questions in the training text", unit="documents") as bar:
        for batch in _batches(documents):
            seen += len(batch)
            for identity, text in (batch[number] for number in _marked(index, batch)):
                for match in index.find(text):
                    task, place, name = of[match.item.name]
                    known = found[task].items.get(place)
                    if known is None or match.score > known.share:
                        start, end = match.span
                        passage = text[start : min(end, start + PASSAGE)]
                        found[task].items[place] = Overlap(match.score, name, identity, passage)
            bar.advance(len(batch))
    for one in found.values():
        one.documents = seen
    return found


def probe_texts(item: Item) -> dict[str, str]:
    """Texts of an item that are looked for, by the name of their field; of a list only the right answer."""
    texts: dict[str, str] = {}
    for name, value in item.row.items():
        if isinstance(value, list | tuple) and value:
            place = item.gold if isinstance(item.gold, int) and 0 <= item.gold < len(value) else 0
            answer = value[place]
            if isinstance(answer, str) and count_units(answer) >= LONG_ANSWER:
                texts[name] = answer
        elif isinstance(value, str):
            texts[name] = value
    sizes = {name: count_units(text) for name, text in texts.items()}
    long = {name: texts[name] for name, size in sizes.items() if size >= WIDTH}
    return long or {name: texts[name] for name, size in sizes.items() if size >= SHORTEST}


def _batches(documents: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    batch: list[tuple[str, str]] = []
    size = 0
    for document in documents:
        batch.append(document)
        size += len(document[1])
        if size >= BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _marked(index: BenchmarkIndex, batch: Sequence[tuple[str, str]]) -> list[int]:
    texts = [text.encode("utf-8", "surrogatepass") for _, text in batch]
    offsets = np.zeros(len(texts) + 1, np.int64)
    np.cumsum([len(text) for text in texts], out=offsets[1:])
    return [int(number) for number in index.scan(np.frombuffer(bytearray(b"".join(texts)), np.uint8), offsets)]


def annotate(records: Sequence[dict[str, Any]], found: TaskContamination) -> None:
    """Put what was found into the items' records, as `contamination`."""
    for place, overlap in found.items.items():
        if place < len(records):
            records[place]["contamination"] = {**asdict(overlap), "contaminated": overlap.contaminated}


def clean_figures(
    records: Sequence[dict[str, Any]], found: TaskContamination, *names: str
) -> dict[str, dict[str, Figure]]:
    """Figures `without_contaminated` items and `without_overlap`ping ones; `names` as of `figures`. A set that is empty
    has none."""
    contaminated = set(found.contaminated)
    kept = {
        "without_contaminated": [record for place, record in enumerate(records) if place not in contaminated],
        "without_overlap": [record for place, record in enumerate(records) if place not in found.items],
    }
    return {name: figures(rows, *names)[0] for name, rows in kept.items() if any("failed" not in row for row in rows)}


def as_json(records: Sequence[dict[str, Any]], found: TaskContamination, source: str, *names: str) -> dict[str, Any]:
    """A task's contamination as plain values."""
    clean = clean_figures(records, found, *names)
    return {
        "training_text": source,
        "documents": found.documents,
        "width": WIDTH,
        "threshold": THRESHOLD,
        "checked": found.checked,
        "too_short": found.too_short,
        "contaminated": len(found.contaminated),
        "overlapping": len(found.items),
        "items": [
            {"id": records[place]["id"], **asdict(found.items[place])}
            for place in sorted(found.items)
            if place < len(records)
        ],
        "metrics": {name: {key: asdict(one) for key, one in values.items()} for name, values in clean.items()},
    }
