"""`headwater curate dedup|decontaminate`: single steps on files. Without one of these verbs, `headwater curate` is the
whole of it (`cli/curate.py`)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from headwater.cli import curate, curate_collect, curate_evidence, curate_quality
from headwater.cli.common import (
    Debug,
    Force,
    Json,
    Quiet,
    finish,
    make_reporter,
    require_beside,
    require_documents,
    require_exists,
    require_out,
)

WHOLE = "whole"


class VerbOrTargets(TyperGroup):
    """A first word that is no verb begins the targets of the whole curation."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "--help", "-h"):
            args = [WHOLE, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=VerbOrTargets,
    help="Clean text, keep the wanted languages, remove duplicates, and say why each document went: by a recipe or on "
    "files (`headwater curate RECIPE`, `headwater curate INPUTS... --out DIR`); or one step alone, by its verb.",
    pretty_exceptions_enable=False,
)
app.command(WHOLE)(curate.command)
curate_quality.register(app)
curate_evidence.register(app)
curate_collect.register(app)

Inputs = Annotated[
    list[Path], typer.Argument(help="JSON Lines (plain, gzip, Zstandard) or Parquet, or folders.", show_default=False)
]
Out = Annotated[
    Path | None, typer.Option("--out", "-o", help="Folder for kept, removed and report.", show_default=False)
]
TextField = Annotated[str, typer.Option(help="Field of a row that holds the text.")]
IdField = Annotated[str, typer.Option(help="Field with a row's own id.")]
FoldTraditional = Annotated[
    bool, typer.Option("--fold-traditional", help="Count traditional and simplified characters as the same.")
]


@app.command("dedup")
def dedup(
    inputs: Inputs,
    out: Out = None,
    method: Annotated[str, typer.Option(help="exact, minhash, simhash, ngram: one or more.")] = "exact,minhash",
    threshold: Annotated[float, typer.Option(help="A document goes from this similarity on.")] = 0.70,
    measure: Annotated[str, typer.Option(help="jaccard, or containment of the document that goes.")] = "jaccard",
    against: Annotated[
        list[Path] | None,
        typer.Option(help="Compare with this corpus too and remove none of it; may be repeated.", show_default=False),
    ] = None,
    priority: Annotated[str, typer.Option(help="Domains, the one to keep first.")] = "books,papers,code,other,web",
    passages: Annotated[str, typer.Option(help="ngram: cut repeated passages, or only report them.")] = "cut",
    passage_units: Annotated[int, typer.Option(help="ngram: shortest passage, in units.")] = 50,
    fold_traditional: FoldTraditional = False,
    text_field: TextField = "text",
    id_field: IdField = "id",
    domain_field: Annotated[str, typer.Option(help="Field with a row's domain.")] = "domain",
    workers: Annotated[int, typer.Option(help="Threads.")] = 1,
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Remove duplicates: every removal is checked against the document that stays, and says why."""
    from headwater.curate.dedup.files import dedup_files
    from headwater.curate.dedup.settings import DedupSettings

    folder = require_out(out, "the result")
    require_exists([*inputs, *(against or [])])
    require_beside([*inputs, *(against or [])], folder)
    settings = DedupSettings(
        methods=_names(method), threshold=threshold, measure=measure, priority=_names(priority), passages=passages,
        passage_units=passage_units, fold_traditional=fold_traditional, text_field=text_field, id_field=id_field,
        domain_field=domain_field, workers=workers,
    )  # fmt: skip
    report = dedup_files(
        inputs, folder, against=against or [], settings=settings, reporter=make_reporter(quiet=quiet), overwrite=force
    )
    rules = [(rule, counts["documents"]) for rule, counts in report["removed_by_rule"].items()]
    _require_rows(folder, report)
    finish({"out": str(folder), **report}, _lines(folder, report, rules), as_json=json_)


@app.command("decontaminate")
def decontaminate(
    inputs: Inputs,
    benchmark: Annotated[
        list[Path], typer.Option(help="A benchmark's rows, or a folder of them; may be repeated.", show_default=False)
    ],
    out: Out = None,
    threshold: Annotated[float, typer.Option(help="Share of a question that must be there.")] = 0.8,
    width: Annotated[int, typer.Option(help="Units in an n-gram.")] = 13,
    field: Annotated[
        list[str] | None,
        typer.Option(help="Field of a benchmark's rows that holds the question; may be repeated.", show_default=False),
    ] = None,
    fold_traditional: FoldTraditional = False,
    text_field: TextField = "text",
    id_field: IdField = "id",
    force: Force = False,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Remove documents that hold the questions of benchmarks, and name the question."""
    from headwater.curate.dedup.decontaminate import decontaminate_files
    from headwater.curate.dedup.settings import DecontaminateSettings

    folder = require_out(out, "the result")
    require_exists([*inputs, *benchmark])
    require_beside([*inputs, *benchmark], folder)
    settings = DecontaminateSettings(
        width=width, threshold=threshold, shortest=min(8, width), fields=tuple(field or ()),
        fold_traditional=fold_traditional, text_field=text_field, id_field=id_field,
    )  # fmt: skip
    report = decontaminate_files(
        inputs, folder, benchmarks=benchmark, settings=settings, reporter=make_reporter(quiet=quiet), overwrite=force
    )
    _require_rows(folder, report)
    finish(
        {"out": str(folder), **report}, _lines(folder, report, report["removed_by_benchmark"].items()), as_json=json_
    )


def _require_rows(folder: Path, report: dict[str, Any]) -> None:
    rows, empty = report["rows"], len(report["empty_files"])
    bad = {"unusable row": rows["unusable"]} if rows["unusable"] else {}
    passed = {name: count for name, count in (("blank line", rows["blank_lines"]), ("empty file", empty)) if count}
    require_documents(rows["documents"], folder, bad, passed, "the files and --text-field")


def _names(given: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.split(",") if name.strip())


def _lines(folder: Path, report: dict[str, Any], reasons: Any) -> str:
    rows = report["rows"]
    lines = [f"{rows['documents']:>12,} documents", *(f"{count:>12,} removed: {name}" for name, count in reasons)]
    if report.get("passages"):
        found = report["passages"]
        lines.append(f"{found['passages']:>12,} repeated passages in {found['documents']:,} documents")
    lines.append(f"{rows['kept']:>12,} kept")
    lines += curate.unread_lines(folder, report)
    return "\n".join([*lines, f"kept      {folder / 'kept.jsonl.zst'}", f"removed   {folder / 'removed.jsonl.zst'}"])
