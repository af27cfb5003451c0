"""What a finished run has to show: held-out figures beside the baselines, a sample, where the report lies, what next.

In: a `RunResult`. Out: plain JSON values and lines for a person. Reads `results.json` of the evaluation; no torch.
"""

from __future__ import annotations

import shlex
from typing import Any

from headwater.pipeline.report import NAME, evaluation_of, masked_evaluation_of
from headwater.pipeline.runner import RunResult


def summary(result: RunResult) -> dict[str, Any]:
    """The figures and places. Keys are null for stages this run did not reach."""
    stages = {stage.stage for stage in result.stages}
    evaluation = evaluation_of(result.resolved["evaluate"]) if "evaluate" in stages else None
    masked = masked_evaluation_of(result.resolved["evaluate"]) if "evaluate" in stages else None
    run = result.resolved["train"].run if "train" in stages else None
    report = run.path / NAME if run is not None else None
    writes = run is None or run.record["model"].get("architecture") != "encoder"
    return {
        "evaluation": evaluation or masked,
        "sample": _sample(evaluation),
        "run": str(run.path) if run is not None else None,
        "report": str(report) if report is not None and report.is_file() else None,
        "model": str(result.export_folder) if "export" in stages else None,
        "serve": f"headwater serve {shlex.quote(str(result.export_folder))}" if "export" in stages and writes else None,
    }


def _sample(evaluation: dict[str, Any] | None) -> dict[str, Any] | None:
    samples = evaluation["samples"] if evaluation is not None else []
    return samples[0] if samples else None


def summary_text(facts: dict[str, Any]) -> str:
    """The result of `headwater run` as lines."""
    found = facts["summary"]
    lines: list[str] = []
    if found["evaluation"] is not None:
        lines += [*evaluation_lines(found["evaluation"]), ""]
    if found["sample"] is not None:
        lines += ["a sample (the prompt is marked):", _indented(found["sample"]), ""]
    for label, key in (("run", "run"), ("report", "report"), ("model", "model"), ("serve it", "serve")):
        if found[key]:
            lines.append(f"{label:<9} {found[key]}")
    state = "everything is up to date" if facts["up_to_date"] else "done"
    return "\n".join([*lines, f"{state} ({facts['seconds']:.1f} s)"])


def evaluation_lines(evaluation: dict[str, Any]) -> list[str]:
    """Bits per byte and perplexity of the model by domain, and beside each baseline and compressor; of an encoder, what
    it makes of masked tokens."""
    if evaluation.get("kind") == "masked":
        return _masked_lines(evaluation)
    data, rows = evaluation["data"], evaluation["rows"]
    lines = [
        f"held-out text ({data['split']}): {data['documents']:,} documents, {data['bytes']:,} bytes, "
        f"{data['tokens']:,} tokens",
        f"  {'':<34} {'bits/byte':>10} {'perplexity':>11}",
    ]
    for row in rows:
        for number, piece in enumerate(row["slices"]):
            if number and (row is not rows[0] or piece["kind"] != "domain"):
                continue
            name = row["name"] if not number else f"  {piece['name']}"
            perplexity = piece.get("token_perplexity")
            shown = f"{perplexity:>11.2f}" if isinstance(perplexity, int | float) else f"{'':>11}"
            verdict = _verdict(evaluation, row) if not number else ""
            lines.append(f"  {name:<34} {piece['bits_per_byte']:>10.3f} {shown}{verdict}")
    return lines


def _masked_lines(evaluation: dict[str, Any]) -> list[str]:
    lines = [f"masked tokens of held-out text ({evaluation['split']}):", f"  {'':<34} {'loss':>10} {'accuracy':>11}"]
    for number, piece in enumerate(evaluation["slices"]):
        name = evaluation["name"] if not number else f"  {piece['name']}"
        lines.append(f"  {name:<34} {piece['loss']:>10.4f} {piece['accuracy']:>11.1%}")
    return [*lines, *(f"no {name}: {why}" for name, why in evaluation["not_made"].items())]


def _verdict(evaluation: dict[str, Any], row: dict[str, Any]) -> str:
    words = {
        "baseline": ("beaten", "NOT BEATEN"),
        "reference": ("the model is below it", "the model is above it"),
        "stretch": ("the model is below it", "the model is above it"),
    }
    for item in evaluation["comparison"]:
        if item["name"] == row["name"]:
            yes, no = words.get(item["role"], ("below it", "above it"))
            return f"  {yes if item['beaten'] else no}"
    return ""


def _indented(sample: dict[str, Any]) -> str:
    text = f"[{sample['prompt']}]{sample['text']}" if sample["prompt"] else sample["text"]
    shown = "".join(letter if letter.isprintable() or letter in "\n\t" else "\ufffd" for letter in text)
    return "\n".join(f"  | {line}" for line in shown.splitlines()[:14])
