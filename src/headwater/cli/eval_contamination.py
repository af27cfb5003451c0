"""Contamination beside the scores of `headwater eval --tasks`: where the training text is known, or named."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headwater.core.progress import Reporter
    from headwater.evaluate.tasks.suite import SuiteResult


def add_contamination(
    found: SuiteResult, target: str, corpus: Sequence[Path], folder: Path | None, out: Path | None, reporter: Reporter
) -> None:
    """Check every item against `corpus`, or without one against the dataset the model was trained on, and put what is
    found into the result and into the records below `out`. Nothing happens if neither is known."""
    from headwater.evaluate.contamination import annotate, as_json, check, training_documents
    from headwater.evaluate.sources import is_dataset
    from headwater.evaluate.tasks.run import questions
    from headwater.tokenizer import Tokenizer

    paths = list(corpus)
    tokenizer = None
    if not paths:
        dataset = _trained_on(target)
        if dataset is None:
            reporter.decide("contamination is not checked", "it is not known what the model was trained on; --corpus")
            return
        paths = [dataset]
    if len(paths) == 1 and is_dataset(paths[0]):
        tokenizer = Tokenizer.load(_tokenizer_of(target))
    items = {name: questions(spec, folder=folder, limit=found.limit).items.items for name, spec in found.specs.items()}
    source = ", ".join(map(str, paths))
    for name, one in check(items, training_documents(paths, tokenizer), reporter=reporter).items():
        records, spec = found.results[name].records, found.specs[name]
        annotate(records, one)
        found.contamination[name] = as_json(records, one, source, spec.kind, spec.scorer)
        if out is not None and one.items:
            _write(out / "records" / f"{name}.jsonl", records)


def _trained_on(target: str) -> Path | None:
    """The dataset a run, a checkpoint or an export comes from, if it is still there."""
    from headwater.core.errors import HeadwaterError
    from headwater.pipeline.status import lineage_of
    from headwater.pipeline.tracing import dataset_of_model

    path = Path(target)
    try:
        return dataset_of_model(path)
    except HeadwaterError:
        pass
    for folder in (path.resolve(), path.resolve().parent):  # an export's artifact holds the model's folder
        try:
            place = _dataset_in(lineage_of(str(folder), folder.parent.parent))
        except HeadwaterError:
            continue
        if place is not None and Path(place).is_dir():
            return Path(place)
    return None


def _dataset_in(node: dict[str, Any]) -> str | None:
    if node.get("stage") == "dataset":
        return node.get("path")
    for child in node.get("inputs", {}).values():
        if (place := _dataset_in(child)) is not None:
            return place
    return None


def _tokenizer_of(target: str) -> Path:
    from headwater.core.errors import InputError
    from headwater.train.run_folder import RunFolder

    try:
        return RunFolder.of(Path(target)).tokenizer_path
    except InputError:
        return Path(target)  # an export carries its own


def _write(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """The records again, with what was found; the head stays, so that an evaluation can go on from them."""
    from headwater.core.files import atomic_write
    from headwater.core.jsonl import canonical_json, json_safe, read_jsonl

    head = next(iter(read_jsonl(path)))
    atomic_write(path, b"".join(canonical_json(json_safe(row)) + b"\n" for row in (head, *records)))
