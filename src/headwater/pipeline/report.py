"""The run's report: what training recorded, and beside it what only the pipeline knows.

In: a `RunResult` that reached training. Out: `report.html` in the run's folder: curves, held-out figures beside the
baselines, what curation kept and dropped, samples, lineage, the recipe. One file, no request to anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headwater.core.jsonl import parse_json
from headwater.monitor.report import KNOWN, write_report
from headwater.pipeline.resolve import Resolved
from headwater.pipeline.schema import Recipe

NAME = "report.html"


def update_report(recipe: Recipe, resolved: Mapping[str, Resolved]) -> Path | None:
    """Write the report of a finished run, given every stage of its recipe; None if the run is not finished yet."""
    training = resolved["train"]
    if training.run is None or not training.done:
        return None
    evaluation = evaluation_of(resolved["evaluate"])
    extra: dict[str, Any] = {
        "title": recipe.name,
        "subtitle": recipe.description or f"run {training.run.run_id}",
        "tables": [
            *_evaluation_tables(evaluation),
            *_masked_tables(masked_evaluation_of(resolved["evaluate"])),
            *_data_tables(resolved),
        ],
        "lineage": [
            {"stage": name, "fingerprint": item.fingerprint, "note": str(item.path)}
            for name, item in resolved.items()
            if item.done
        ],
    }
    if evaluation is not None:
        extra["headline"] = _headline(evaluation)
        extra["samples"] = [
            {
                "prompt": item["prompt"],
                "text": item["text"],
                "note": f"after training · {item.get('domain') or 'prompt'}",
            }
            for item in evaluation["samples"]
        ]
    training.run.write_json(KNOWN, extra)  # so that a report written anew later says it too
    return write_report(training.run.path, training.run.path / NAME, extra)


def evaluation_of(resolved: Resolved) -> dict[str, Any] | None:
    """What the evaluate stage found (the layout of `headwater.evaluate.results`); None if it is not done, or of an
    encoder."""
    found = _results(resolved)
    return None if found is None or found.get("kind") == "masked" else found


def masked_evaluation_of(resolved: Resolved) -> dict[str, Any] | None:
    """What the evaluate stage found of an encoder (`headwater.evaluate.masked`); None if there is no such result."""
    found = _results(resolved)
    return found if found is not None and found.get("kind") == "masked" else None


def _results(resolved: Resolved) -> dict[str, Any] | None:
    if resolved.artifact is None:
        return None
    found: dict[str, Any] = parse_json(resolved.artifact.file("results.json").read_bytes())
    return found


def _headline(evaluation: Mapping[str, Any]) -> list[dict[str, str]]:
    model = evaluation["rows"][0]["slices"][0]
    tiles = [
        {
            "label": "held-out bits per byte",
            "value": f"{model['bits_per_byte']:.3f}",
            "note": evaluation["data"]["split"],
        },
    ]
    for item in evaluation["comparison"]:
        mark = "beaten" if item["beaten"] else "not beaten"
        tiles.append({"label": item["name"], "value": f"{item['bits_per_byte']:.3f}", "note": f"bits per byte, {mark}"})
    return tiles


def _evaluation_tables(evaluation: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if evaluation is None:
        return []
    rows = [
        [row["name"], piece["name"], piece["bits_per_byte"], piece.get("token_perplexity"), piece["bytes"]]
        for row in evaluation["rows"]
        for piece in row["slices"]
    ]
    data = evaluation["data"]
    note = (
        f"{data['documents']:,} documents, {data['bytes']:,} bytes, {data['tokens']:,} tokens of the {data['split']} "
        f"split. Protocol {evaluation['protocol']['fingerprint']}."
    )
    columns = ["", "text", "bits per byte", "perplexity per token", "bytes"]
    return [{"title": "Held-out text", "columns": columns, "rows": rows, "note": note}]


def _masked_tables(masked: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    if masked is None:
        return []
    rows = [[piece["name"], piece["loss"], piece["accuracy"], piece["masked"]] for piece in masked["slices"]]
    columns = ["text", "loss of masked tokens (nats)", "accuracy", "masked tokens"]
    note = " ".join(f"No {name}: {why}." for name, why in masked["not_made"].items())
    return [{"title": f"Masked tokens of the {masked['split']} split", "columns": columns, "rows": rows, "note": note}]


def _data_tables(resolved: Mapping[str, Resolved]) -> list[dict[str, Any]]:
    """What curation took and left, and the tokens of each domain."""
    tables: list[dict[str, Any]] = []
    curated = resolved["curate"].artifact if "curate" in resolved else None
    if curated is not None:
        counts = curated.counts
        rows = [["came in", *_triple(counts["in"])]]
        rows += [[f"dropped: {rule}", *_triple(lost)] for rule, lost in sorted(counts["dropped"].items())]
        rows += [["taken by cleaning", None, counts["edited"]["bytes"], counts["edited"]["units"]]]
        rows += [["kept", *_triple(counts)]]
        columns = ["", "documents", "bytes", "units"]
        note = "A unit is one CJK character or one word or number."
        tables.append({"title": "Curation", "columns": columns, "rows": rows, "note": note})
    packed = resolved["dataset"].artifact if "dataset" in resolved else None
    if packed is not None:
        rows = [
            [split, domain, item["documents"], item["tokens"], item["bytes"]]
            for split, domains in packed.counts["splits"].items()
            for domain, item in domains.items()
        ]
        tables.append(
            {"title": "Dataset", "columns": ["split", "domain", "documents", "tokens", "bytes"], "rows": rows}
        )
    return tables


def _triple(counts: Mapping[str, Any]) -> list[Any]:
    return [counts["documents"], counts["bytes"], counts["units"]]
