"""The result of an evaluation as plain JSON (`results.json`) and Markdown (`results.md`).

    {"format": 1,
     "model": {"name", "path", "parameters", ...},
     "data": {"source", "split", "documents", "tokens", "units", "bytes", "fingerprint", "left_out"},
     "protocol": {..., "fingerprint"},
     "rows": [{"name", "kind", "description", "slices": [{"kind", "name", "bits_per_byte", ...}], "details"}],
     "comparison": [{"name", "role", "bits_per_byte", "model_bits_per_byte", "ratio", "beaten", "sentence"}],
     "samples": [{"prompt", "text", "domain", "tokens", "finish", "temperature", "seed"}],
     "notes": ["what could not be had, and why"]}

The first row is the model; a slice's `kind` is overall, domain or language, the first being overall.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any, Literal

from headwater.core.jsonl import canonical_json, pretty_json
from headwater.evaluate.compressors import XzResult
from headwater.evaluate.heldout import HeldOut
from headwater.evaluate.perplexity import PerplexityReport

FORMAT = 1

RowKind = Literal["model", "baseline", "reference", "stretch"]
"""baseline: to be beaten; reference: to compare with; stretch: a hard one to get below."""


@dataclass(frozen=True)
class Row:
    """One model or compressor and its slices (as JSON objects, overall first)."""

    name: str
    kind: RowKind
    description: str
    slices: tuple[dict[str, Any], ...]
    details: dict[str, Any] = field(default_factory=dict)

    @property
    def bits_per_byte(self) -> float | None:
        return self.slices[0]["bits_per_byte"]

    def of(self, kind: str, name: str) -> dict[str, Any] | None:
        """The slice of that kind and name, if there is one."""
        return next((piece for piece in self.slices if (piece["kind"], piece["name"]) == (kind, name)), None)

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "description": self.description,
            "slices": list(self.slices),
            "details": self.details,
        }


def row_of_report(name: str, kind: RowKind, description: str, report: PerplexityReport, **details: Any) -> Row:
    """A row from a scored model."""
    return Row(name, kind, description, tuple(piece.as_json() for piece in report.slices), details)


def rows_of_xz(results: dict[str, XzResult]) -> list[Row]:
    """Two rows from xz by slice ("" is overall, others are domains)."""
    rows = []
    for name, kind, attribute, text in (
        ("xz -9e, each document", "reference", "per_document", "every document compressed alone"),
        ("xz -9e, concatenated", "stretch", "concatenated", "all documents of the slice compressed as one file"),
    ):
        slices = tuple(
            {
                "kind": "domain" if domain else "overall",
                "name": domain or "all",
                "bytes": result.text_bytes,
                "compressed_bytes": getattr(result, attribute + "_bytes"),
                "bits_per_byte": _rounded(getattr(result, attribute)),
            }
            for domain, result in sorted(results.items())
        )
        rows.append(Row(name, kind, text, slices))  # type: ignore[arg-type]
    return rows


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def compare(rows: list[Row]) -> list[dict[str, Any]]:
    """The first row beside every other, by bits per byte of all documents."""
    model, comparison = rows[0], []
    for row in rows[1:]:
        ours, theirs = model.bits_per_byte, row.bits_per_byte
        if ours is None or theirs is None:
            continue
        beaten = ours < theirs
        comparison.append(
            {
                "name": row.name,
                "role": row.kind,
                "bits_per_byte": theirs,
                "model_bits_per_byte": ours,
                "ratio": round(ours / theirs, 6),
                "beaten": beaten,
                "sentence": f"{ours:.3f} against {theirs:.3f} bits per byte: {'beaten' if beaten else 'not beaten'}",
            }
        )
    return comparison


def data_of(held_out: HeldOut) -> dict[str, Any]:
    """What was scored."""
    return {
        "source": held_out.source,
        "split": held_out.split,
        "documents": len(held_out.documents),
        "tokens": held_out.tokens,
        "units": sum(document.units for document in held_out.documents),
        "bytes": held_out.bytes,
        "fingerprint": held_out.fingerprint,
        "left_out": held_out.left_out,
    }


def with_fingerprint(protocol: dict[str, Any]) -> dict[str, Any]:
    """The protocol and 16 hex digits over it: equal fingerprints mean comparable numbers."""
    return {**protocol, "fingerprint": hashlib.sha256(canonical_json(protocol)).hexdigest()[:16]}


@dataclass(frozen=True)
class EvaluationResult:
    """Everything an evaluation found; `as_json` is the layout in the module's docstring."""

    model: dict[str, Any]
    data: dict[str, Any]
    protocol: dict[str, Any]
    rows: tuple[Row, ...]
    samples: tuple[dict[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def comparison(self) -> list[dict[str, Any]]:
        return compare(list(self.rows))

    def as_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "model": self.model,
            "data": self.data,
            "protocol": self.protocol,
            "rows": [row.as_json() for row in self.rows],
            "comparison": self.comparison,
            "samples": list(self.samples),
            "notes": list(self.notes),
        }

    def json_bytes(self) -> bytes:
        return pretty_json(self.as_json())

    def markdown(self) -> str:
        """The same for people."""
        parts = [
            f"# Evaluation of {self.model['name']}",
            _data_line(self.data),
            "## Beside the baselines",
            _overall_table(self.rows, self.comparison),
        ]
        for kind, title in (("domain", "By domain"), ("language", "By language")):
            names = [piece["name"] for piece in self.rows[0].slices if piece["kind"] == kind]
            if names:
                parts.append(f"## {title}")
                for measure, label, digits in _MEASURES:
                    if any(piece.get(measure) is not None for row in self.rows for piece in row.slices):
                        parts += [f"{label}:", _slice_table(self.rows, kind, names, measure, digits)]
        parts += list(self.notes)
        parts += ["## Protocol", _protocol(self.protocol)]
        if self.samples:
            parts += ["## Generated text", *map(_sample, self.samples)]
        return "\n\n".join(parts) + "\n"


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    return f"{value:,.{digits}f}" if value < 1e6 else f"{value:.2e}"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def _overall_table(rows: tuple[Row, ...], comparison: list[dict[str, Any]]) -> str:
    verdict = {item["name"]: "beaten" if item["beaten"] else "not beaten" for item in comparison}
    body = []
    for row in rows:
        first = row.slices[0]
        values = [_number(first.get(name), digits) for name, digits in _COLUMNS]
        body.append([row.name, *values, verdict.get(row.name, "")])
    return _table(
        ["", "bits per byte", "token perplexity", "word perplexity", "byte perplexity", "model beats it"], body
    )


_MEASURES = (
    ("bits_per_byte", "Bits per byte", 3),
    ("token_perplexity", "Perplexity per token", 2),
    ("word_perplexity", "Perplexity per unit (word, number or CJK character)", 1),
    ("byte_perplexity", "Perplexity per byte", 3),
)
_COLUMNS = tuple((name, digits) for name, _, digits in _MEASURES)


def _slice_table(rows: tuple[Row, ...], kind: str, names: list[str], measure: str, digits: int) -> str:
    shown = [row for row in rows if any(piece["kind"] == kind for piece in row.slices)]
    body = []
    for name in names:
        cells = [row.of(kind, name) for row in shown]
        body.append([name, *(_number(cell.get(measure), digits) if cell else "–" for cell in cells)])
    return _table(["", *(row.name for row in shown)], body)


def _data_line(data: dict[str, Any]) -> str:
    line = (
        f"{data['documents']:,} documents of {data['source']}"
        + (f" ({data['split']} split)" if data["split"] else "")
        + f": {data['tokens']:,} tokens, {data['units']:,} words and characters, {data['bytes']:,} bytes; "
        f"fingerprint `{data['fingerprint']}`."
    )
    if data["left_out"]:
        reasons = ", ".join(f"{name} {value}" for name, value in data["left_out"].items())
        line += f" Left out: {reasons}."
    return line


def _protocol(protocol: dict[str, Any]) -> str:
    return "\n".join(f"- {name}: `{value}`" for name, value in protocol.items())


def _sample(sample: dict[str, Any]) -> str:
    text = sample["prompt"] + "⟦" + sample["text"] + "⟧"
    fence = "```"
    while fence in text:
        fence += "`"
    note = f"temperature {sample['temperature']:g}, seed {sample['seed']}; the model's part is in ⟦ ⟧"
    return f"{sample['domain']} ({note}):\n\n{fence}text\n{text}\n{fence}"
