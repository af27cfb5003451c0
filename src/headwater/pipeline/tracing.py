"""Which documents a training step read, and which steps read a document: `headwater trace`.

In: a run's folder and the dataset it was trained on. Out: plain JSON values and lines for a person. By arithmetic: the
ledger gives the order, the dataset's index the documents; nothing is scanned and no torch is imported.

    trace(RunFolder.open("workspace/runs/quickstart-0123456789abcdef"), step=100)
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater.core.artifacts import ArtifactStore
from headwater.core.errors import InputError, UserError
from headwater.train.run_folder import RunFolder

if TYPE_CHECKING:
    from headwater.dataset.dataset import TokenDataset

SHOWN = 40
"""Lines of a kind printed to a terminal; `--json` has all."""


def trace(
    run: RunFolder, *, step: int | None = None, document: str | None = None, dataset: Path | None = None
) -> dict[str, Any]:
    """The samples and documents of `step`, or every reading of `document` (its id) within the run's steps.

    `dataset` is needed only if the run's dataset is not in the workspace around it. Raises UserError unless exactly one
    of step and document is given, or for a step outside the run; InputError for a dataset that is missing or another.
    """
    from headwater.dataset.steps import StepOrder
    from headwater.dataset.trace import trace_document, trace_step

    if (step is None) == (document is None):
        raise UserError("say what to trace", mend="give one of --step N and --document ID")
    record, status = run.record, run.status()
    opened = dataset_of_run(run, dataset)
    split = opened.split("train")
    order = StepOrder(split.sizes, seed=int(record["seed"]), segments=run.ledger().step_segments())
    facts = {"run": run.run_id, "dataset": str(opened.path), "steps": status.steps, "done": status.step}
    if step is not None:
        if not 1 <= step <= status.steps:
            raise UserError(f"step {step} is outside this run", where=str(run.path), mend=f"give 1 to {status.steps}")
        return {**facts, **trace_step(split, order, step).as_json()}
    assert document is not None
    return {**facts, "documents": [found.as_json() for found in trace_document(split, order, document, status.steps)]}


def dataset_of_model(path: Path) -> Path:
    """The dataset a run, or the run a checkpoint belongs to, was trained on. Raises InputError if `path` is neither, or
    the dataset is not in the workspace around it."""
    try:
        run = RunFolder.of(path)
    except InputError:
        raise InputError(
            "this model does not say what it was trained on",
            where=str(path),
            mend="name the text to score it on, after the model",
        ) from None
    return dataset_of_run(run, None).path


def dataset_of_run(run: RunFolder, given: Path | None) -> TokenDataset:
    """A run's dataset: `given`, if it is the right one, or that of the workspace around it. Raises InputError."""
    from headwater.dataset.dataset import TokenDataset

    wanted = str(run.record.get("dataset", ""))
    if given is None:
        artifact = ArtifactStore(run.path.resolve().parent.parent).find("dataset", wanted)
        if artifact is None:
            raise InputError(
                f"the run's dataset {wanted} is not in the workspace around it",
                where=str(run.path),
                mend="name its folder with --dataset",
            )
        return TokenDataset.open(artifact)
    opened = TokenDataset.open(given)
    if opened.fingerprint != wanted:
        raise InputError(
            f"this dataset is {opened.fingerprint}; the run was trained on {wanted}",
            where=str(given),
            mend="name the dataset the run was trained on",
        )
    return opened


def trace_text(facts: dict[str, Any]) -> str:
    """What was found, as lines."""
    return "\n".join(_step_lines(facts) if "samples" in facts else _document_lines(facts))


def _step_lines(facts: dict[str, Any]) -> list[str]:
    samples = facts["samples"]
    when = "" if facts["step"] <= facts["done"] else " (not done yet)"
    lines = [
        f"step {facts['step']:,} of {facts['steps']:,}{when}: {len(samples):,} samples of {facts['seq_len']:,} tokens"
    ]
    for sample in samples[:SHOWN]:
        lines.append(
            f"  sample {sample['sample']:,}: {sample['domain']}, epoch {sample['epoch']}, window {sample['window']:,}"
        )
        for part in sample["documents"]:
            end = part["first"] + part["tokens"]
            lines.append(
                f"    {part['id']}  tokens {part['first']:,}-{end:,} of {part['document_tokens']:,}  {part['source']}"
            )
    return [*lines, *_more(len(samples), "samples")]


def _document_lines(facts: dict[str, Any]) -> list[str]:
    lines: list[str] = []
    for found in facts["documents"]:
        readings = found["readings"]
        lines.append(
            f"document {found['id']}: {found['domain']}, {found['source']}, {found['tokens']:,} tokens, read in "
            f"{len(found['steps']):,} of {facts['steps']:,} steps; {found['unread_tokens']:,} tokens never"
        )
        for reading in readings[:SHOWN]:
            end = reading["first"] + reading["tokens"]
            later = "" if reading["step"] <= facts["done"] else " (not done yet)"
            lines.append(
                f"  step {reading['step']:,}, sample {reading['sample']:,}, epoch {reading['epoch']}: "
                f"tokens {reading['first']:,}-{end:,}{later}"
            )
        lines += _more(len(readings), "readings")
    return lines


def _more(count: int, what: str) -> list[str]:
    return [f"  ... {count - SHOWN:,} more {what}: --json has all"] if count > SHOWN else []
