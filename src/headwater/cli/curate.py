"""`headwater curate`: clean, filter and deduplicate, by a recipe or straight on files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.common import (
    Debug,
    Json,
    Quiet,
    Set,
    Workspace,
    default_recipe,
    finish,
    make_reporter,
    one_recipe,
    refuse,
    require_beside,
    require_documents,
    require_out,
    stage_lines,
)
from headwater.curate.records import QUARANTINE


def command(
    targets: Annotated[
        list[Path],
        typer.Argument(
            help="A recipe; or raw text: JSON Lines, Parquet, text, Markdown, HTML, WARC, WET files or folders.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Files: folder for kept, removed, quarantine and report.", show_default=False),
    ] = None,
    kind: Annotated[str, typer.Option(help="Files: what they are; auto looks at each.")] = "auto",
    text_field: Annotated[str, typer.Option(help="Files: field of a row that holds the text.")] = "text",
    id_field: Annotated[str, typer.Option(help="Files: field with a row's own id.")] = "id",
    lang: Annotated[str, typer.Option(help="Files: language of all, such as zh.", show_default=False)] = "",
    domain: Annotated[str, typer.Option(help="Files: domain of all, such as web.", show_default=False)] = "",
    rewrite_text: Annotated[
        bool, typer.Option("--rewrite-text", help="Files: put the cleaned text in place of the text.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Files: overwrite another result in --out.")] = False,
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Clean text, keep the wanted languages, remove duplicates, and say why each document went.

    On files, `--set curate.language.accepted=[zh]` and the like change the settings.
    """
    reporter = make_reporter(quiet=quiet)
    recipe = one_recipe(targets)
    if recipe is not None:
        from headwater.pipeline.runner import run

        refuse("--out", out is not None, "goes with files; a recipe's results go into its workspace")
        refuse("--rewrite-text", rewrite_text, "goes with files; a recipe's corpus holds the cleaned text")
        refuse("--force", force, "goes with files; a recipe's results are never overwritten")
        for option, given in (
            ("--kind", kind != "auto"),
            ("--text-field", text_field != "text"),
            ("--id-field", id_field != "id"),
            ("--lang", bool(lang)),
            ("--domain", bool(domain)),
        ):
            refuse(option, given, "goes with files; a recipe's sources say it")
        result = run(recipe, workspace=workspace, until="curate", overrides=set_ or (), reporter=reporter)
        finish(result.to_json(), stage_lines(result), as_json=json_)
        return

    from headwater.core.executor import make_executor
    from headwater.curate import FileOptions, curate_files

    refuse("--workspace", workspace is not None, "goes with a recipe; files go into --out")
    folder = require_out(out, "the result")
    require_beside(targets, folder)
    settings = default_recipe(set_)
    options = FileOptions(
        kind=kind, text_field=text_field, id_field=id_field, lang=lang, domain=domain, rewrite_text=rewrite_text
    )
    small = sum(path.stat().st_size for path in targets if path.is_file()) < SMALL_BYTES and not any(
        path.is_dir() for path in targets
    )
    executor = make_executor(
        "inline" if small else settings.executor.kind, settings.executor.workers, settings.executor.address
    )
    try:
        report = curate_files(
            targets, folder, settings.curate, options=options, executor=executor, reporter=reporter, overwrite=force
        )
    finally:
        executor.close()
    require_some(folder, report)
    finish({"out": str(folder), **report}, report_lines(folder, report), as_json=json_)


SHOWN_FILES = 5
SMALL_BYTES = 4 << 20
"""Input below this is done in this process: starting workers would take longer."""


def report_lines(folder: Path, report: dict[str, Any]) -> str:
    """What a run on files did, for people."""
    lines = [f"{'':<28} {'documents':>12} {'bytes':>16} {'units':>14}", _row("came in", report["in"])]
    lines += [_row(f"dropped: {rule}", lost) for rule, lost in sorted(report["dropped"].items())]
    lines += [_row(f"cut: {rule}", lost, documents=False) for rule, lost in sorted(report["cut"].items())]
    if any(report["edited"].values()):
        lines.append(_row("taken by cleaning", report["edited"], documents=False))
    lines.append(_row("kept", report["out"]))
    quarantined = report["collected"]["quarantined"]
    if quarantined:
        lines.append(f"{quarantined:,} records could not be read: {folder / QUARANTINE}")
    return "\n".join([*lines, f"kept      {folder / 'kept.jsonl.zst'}", f"removed   {folder / 'removed.jsonl.zst'}"])


def unread_lines(folder: Path | None, report: dict[str, Any]) -> list[str]:
    """What of the inputs of a verb on rows is no document, for people; without a folder nothing was written."""
    rows, empty = report["rows"], report["empty_files"]
    place = f": {folder / QUARANTINE}" if folder is not None else ""
    lines = [f"{rows['unusable']:>12,} rows could not be used{place}"] if rows["unusable"] else []
    if empty:
        more = f" and {len(empty) - SHOWN_FILES:,} more" if len(empty) > SHOWN_FILES else ""
        lines.append(f"{len(empty):>12,} files hold no row: {', '.join(empty[:SHOWN_FILES])}{more}")
    return lines


def require_some(folder: Path, report: dict[str, Any]) -> None:
    """Raises InputError if there was no document at all."""
    source = report["collected"]["sources"]["input"]
    bad, passed = (
        {reason: row["records"] for reason, row in source[kind].items()} for kind in ("quarantined", "passed_over")
    )
    require_documents(source["documents"], folder, bad, passed)


def _row(name: str, counts: dict[str, int], documents: bool = True) -> str:
    number = f"{counts['documents']:,}" if documents else ""
    return f"{name:<28} {number:>12} {counts['bytes']:>16,} {counts['units']:>14,}"
