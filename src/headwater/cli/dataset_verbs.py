"""`headwater dataset export|import`: packed tokens to and from Megatron's `.bin`/`.idx`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, Quiet, Set, default_recipe, finish, make_reporter, require_out

app = typer.Typer(
    help="Packed tokens to and from the format of Megatron-LM. (TFRecord is `dataset.format: tfrecord` in a recipe.)",
    pretty_exceptions_enable=False,
)

Out = Annotated[Path | None, typer.Option("--out", "-o", help="A new folder.", show_default=False)]


@app.command("export")
def export(
    dataset: Annotated[Path, typer.Argument(help="A packed dataset (WORKSPACE/dataset/...).", show_default=False)],
    out: Out = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write each split and domain as SPLIT-DOMAIN.bin and .idx, documents with their end token."""
    from headwater.dataset import TokenDataset
    from headwater.dataset.megatron import export_megatron

    folder = require_out(out, "the pairs")
    counts = export_megatron(TokenDataset.open(dataset), folder, make_reporter(quiet=quiet))
    lines = [
        f"{name:<24} {row['documents']:>12,} documents {row['tokens']:>16,} tokens" for name, row in counts.items()
    ]
    finish({"out": str(folder), "pairs": counts}, "\n".join(lines), as_json=json_)


@app.command("import")
def import_(
    prefix: Annotated[Path, typer.Argument(help="A .bin and .idx pair, with or without suffix.", show_default=False)],
    tokenizer: Annotated[Path, typer.Option(help="The tokenizer the tokens were made with.", show_default=False)],
    out: Out = None,
    split: Annotated[str, typer.Option(help="The split it becomes.")] = "train",
    domain: Annotated[str, typer.Option(help="The domain it becomes.")] = "other",
    lang: Annotated[str, typer.Option(help="Language of all documents.", show_default=False)] = "",
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make a dataset of ours from Megatron's files; `--set dataset.format=tfrecord` and the like change its form."""
    from headwater.dataset.megatron import import_megatron
    from headwater.tokenizer import Tokenizer

    folder = require_out(out, "the dataset")
    counts = import_megatron(
        prefix,
        Tokenizer.load(tokenizer),
        folder,
        split=split,
        domain=domain,
        lang=lang,
        config=default_recipe(set_).dataset,
        reporter=make_reporter(quiet=quiet),
    )
    lines = f"{counts['documents']:,} documents, {counts['tokens']:,} tokens: {folder}"
    finish({"out": str(folder), **counts}, lines, as_json=json_)
