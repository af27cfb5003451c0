"""`headwater curate fetch|mix|export`: files brought here, mixed by quotas, and a corpus written for others."""

from __future__ import annotations

from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from headwater.cli.common import (
    Debug,
    Force,
    Json,
    Quiet,
    Set,
    finish,
    make_reporter,
    require_beside,
    require_exists,
    require_out,
)
from headwater.cli.curate import unread_lines
from headwater.core.errors import UserError


def register(app: typer.Typer) -> None:
    """Add the verbs of this module to `headwater curate`."""
    app.command("fetch")(fetch)
    app.command("mix")(mix)
    app.command("export")(export)


def fetch(
    recipe: Annotated[Path, typer.Argument(help="A recipe.", show_default=False)],
    again: Annotated[bool, typer.Option("--again", help="Try once more what could not be fetched.")] = False,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fetch the files that the recipe's sources name by address, and go on where an earlier fetch broke off.

    `headwater run` does the same before it reads them.
    """
    from headwater.curate.fetch.fetch import RECEIPT, fetch_missing
    from headwater.pipeline.schema import load

    loaded = load(recipe, set_ or ())
    receipts = fetch_missing(loaded.config.collect, make_reporter(quiet=quiet), again=again)
    rows: list[dict[str, Any]] = [
        {
            "source": receipt.folder.name,
            "folder": str(receipt.folder),
            "files": len(receipt.files),
            "bytes": sum(file.size for file in receipt.files),
            "failed": [{"address": failure.address, "reason": failure.reason} for failure in receipt.failed],
            "license": receipt.license,
            "retrieved_first": receipt.retrieved[0],
            "retrieved_last": receipt.retrieved[1],
            "receipt": str(receipt.folder / RECEIPT / "receipt.json"),
        }
        for receipt in receipts
    ]
    lines = [f"{r['source']:<16} {r['files']:>8,} files {r['bytes']:>16,} bytes  {r['folder']}" for r in rows]
    lines += [f"  failed: {failure['address']}: {failure['reason']}" for row in rows for failure in row["failed"][:10]]
    finish({"sources": rows}, "\n".join(lines or ["no source of this recipe has a fetch block"]), as_json=json_)


def mix(
    inputs: Annotated[
        list[Path],
        typer.Argument(help="JSON Lines (plain, gzip, Zstandard) or Parquet, or folders.", show_default=False),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Folder for kept, removed and report.", show_default=False)
    ] = None,
    weights: Annotated[
        str, typer.Option(help="Shares of domains, such as web=0.6,books=0.4.", show_default="as large as each is")
    ] = "",
    total: Annotated[
        str, typer.Option(help="How much, in units or tokens, such as 2e9; 0: what the caps allow.")
    ] = "0",
    max_repeats: Annotated[
        str, typer.Option(help="Most passes over the rows: 4, or by domain books=4,web=1.", show_default="1")
    ] = "",
    fill: Annotated[
        bool, typer.Option("--fill", help="Others give what a domain lacks, instead of refusing the shares.")
    ] = False,
    priority: Annotated[str, typer.Option(help="--fill: domains that give first, in order.", show_default=False)] = "",
    languages: Annotated[
        str, typer.Option(help="Shares of languages, such as zh=0.5,en=0.5.", show_default=False)
    ] = "",
    language_temperature: Annotated[
        float | None, typer.Option(help="Shares of languages as their size to the power 1/T.", show_default=False)
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Count tokens of this tokenizer instead of units.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option(help="Another number chooses other rows.")] = 0,
    plan: Annotated[bool, typer.Option("--plan", help="Only say what would be taken.")] = False,
    force: Force = False,
    text_field: Annotated[str, typer.Option(help="Field of a row that holds the text.")] = "text",
    id_field: Annotated[str, typer.Option(help="Field with a row's own id.")] = "id",
    domain_field: Annotated[str, typer.Option(help="Field with a row's domain.")] = "domain",
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Take as many rows of each domain and language as wanted; repeat where allowed, refuse what cannot be had."""
    from headwater.pipeline.mix_files import MixOptions, mix_files
    from headwater.tokenizer import Tokenizer

    folder = Path("mixed") if plan and out is None else require_out(out, "the result")
    require_exists([*inputs, *([tokenizer] if tokenizer else [])])
    require_beside(inputs, folder)
    options = MixOptions(
        weights=_shares(weights, "--weights"), total=_whole(total, "--total"),
        max_repeats=_repeats(max_repeats), fill=fill,
        priority=tuple(name.strip() for name in priority.split(",") if name.strip()),
        languages=_shares(languages, "--languages"), language_temperature=language_temperature, seed=seed,
        text_field=text_field, id_field=id_field, domain_field=domain_field,
    )  # fmt: skip
    report = mix_files(
        inputs,
        folder,
        options,
        tokenizer=Tokenizer.load(tokenizer) if tokenizer else None,
        plan_only=plan,
        reporter=make_reporter(quiet=quiet),
        overwrite=force,
    )
    lines = [f"{'':<24} {'there is':>16} {'taken':>16} {'passes':>8}"]
    lines += [
        f"{cell['domain'] + ('/' + cell['lang'] if cell['lang'] else ''):<24} {cell['amount']:>16,} "
        f"{cell['taken']:>16,} {cell['passes']:>8.2f}"
        for cell in report["cells"]
    ]
    lines += unread_lines(None if plan else folder, report)
    lines += [f"{report['taken']:,} {report['unit']} in {report['rows']['kept']:,} rows"]
    finish({"out": None if plan else str(folder), **report}, "\n".join(lines), as_json=json_)


def _shares(given: str, option: str) -> dict[str, float]:
    """`web=0.6,books=0.4` as numbers. UserError, with the part, for anything else and for a name given twice."""
    found: dict[str, float] = {}
    for part in filter(None, map(str.strip, given.split(","))):
        name, _, value = map(str.strip, part.partition("="))
        number = _number(value)
        if not name or number is None:
            raise UserError(f"{part!r} is no NAME=NUMBER", where=option, mend="such as web=0.6,books=0.4")
        if name in found:
            raise UserError(f"{name} is given twice, the second time in {part!r}", where=option, mend="give it once")
        found[name] = number
    return found


def _repeats(given: str) -> dict[str, float]:
    """`4` as the cap of all domains, `books=4,web=1` as caps of some. UserError as `_shares`."""
    if "=" in given or not given.strip():
        return _shares(given, "--max-repeats")
    number = _number(given)
    if number is None:
        raise UserError(f"{given!r} is no number", where="--max-repeats", mend="such as 4, or books=4,web=1")
    return {"": number}


def _whole(given: str, option: str) -> int:
    """`2000000000` and `2e9` as a recipe reads them. UserError for what is no whole number."""
    from headwater.core.recipe_source import scalar

    number = scalar(given)
    if not isinstance(number, int) or isinstance(number, bool):
        raise UserError(f"{given!r} is no whole number", where=option, mend="such as 2000000000, or 2e9")
    return number


def _number(given: str) -> float | None:
    """A finite number; None for anything else."""
    try:
        number = float(given)
    except ValueError:
        return None
    return number if isfinite(number) else None


def export(
    corpus: Annotated[Path, typer.Argument(help="A corpus (WORKSPACE/curate/...).", show_default=False)],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="A new folder.", show_default=False)] = None,
    format: Annotated[Literal["parquet", "jsonl"], typer.Option(help="parquet or jsonl.")] = "jsonl",
    split: Annotated[
        list[str] | None, typer.Option(help="Only this split; may be repeated.", show_default=False)
    ] = None,
    domain: Annotated[
        list[str] | None, typer.Option(help="Only this domain; may be repeated.", show_default=False)
    ] = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write a curated corpus as Parquet or JSON Lines for other programs."""
    from headwater.curate.export import export_corpus

    folder = require_out(out, "the files")
    report = export_corpus(
        corpus,
        folder,
        format,
        splits=split or (),
        domains=domain or (),
        reporter=make_reporter(quiet=quiet),
    )
    lines = f"{report['documents']:,} documents in {len(report['files']):,} files: {folder}"
    finish({"out": str(folder), **report}, lines, as_json=json_)
