"""`headwater curate fetch`: brings the files of a recipe's sources here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.common import Debug, Json, Quiet, Set, finish, make_reporter


def register(app: typer.Typer) -> None:
    """Add the verbs of this module to `headwater curate`."""
    app.command("fetch")(fetch)


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
