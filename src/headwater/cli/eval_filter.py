"""`headwater eval filter`: harmful prompts and outputs found by a lexicon and a classifier; the classifier fitted."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from headwater.cli.common import Debug, Json, finish, refuse, require_exists
from headwater.core.errors import UserError


def command(
    texts: Annotated[
        list[Path] | None,
        typer.Argument(help="Files to look at: JSON Lines or CSV with prompt or text, or .txt.", show_default=False),
    ] = None,
    classifier: Annotated[
        Path | None, typer.Option(help="A fitted classifier beside the lexicon.", show_default=False)
    ] = None,
    threshold: Annotated[float, typer.Option(help="Probability from which the classifier flags.")] = 0.5,
    fit: Annotated[
        Path | None, typer.Option(help="Fit a classifier and write it here (.safetensors).", show_default=False)
    ] = None,
    harmful: Annotated[
        list[Path] | None, typer.Option(help="With --fit: files of harmful texts.", show_default=False)
    ] = None,
    safe: Annotated[
        list[Path] | None, typer.Option(help="With --fit: files of harmless texts.", show_default=False)
    ] = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Say which texts are harmful, or with --fit make a classifier and say how good it is on texts held out."""
    if not 0 < threshold < 1:
        raise UserError(f"{threshold} is no threshold", where="--threshold", mend="give a number between 0 and 1")
    if fit is not None:
        refuse("TEXTS", bool(texts), "are looked at without --fit")
        refuse("--classifier", classifier is not None, "is used without --fit")
        _fit(fit, harmful or [], safe or [], threshold, as_json=json_)
        return
    refuse("--harmful", bool(harmful), "goes with --fit")
    refuse("--safe", bool(safe), "goes with --fit")
    if not texts:
        raise UserError("no file is named", where="TEXTS", mend="name files to look at, or --fit")
    from headwater.evaluate.harm.filter import LONGEST, open_filter
    from headwater.evaluate.harm.fit import read_texts, set_aside_line

    require_exists([*texts, *([classifier] if classifier else [])])
    found_by = open_filter(classifier, threshold=threshold)
    found: dict[str, Any] = {"files": {}}
    lines: list[str] = []
    for path in texts:
        read = read_texts(path)
        verdicts = found_by.check_all(read.texts)
        flagged: list[dict[str, Any]] = [
            {"row": row, "score": one.score, "categories": list(one.categories), "matches": list(one.matches)}
            for row, one in zip(read.rows, verdicts, strict=True)
            if one.flagged
        ]
        cut = [row for row, text in zip(read.rows, read.texts, strict=True) if len(text) > LONGEST]
        found["files"][str(path)] = {
            "texts": len(verdicts),
            "flagged": len(flagged),
            "rows": flagged,
            "set_aside": read.set_aside,
            "cut": cut,
        }
        lines.append(f"{path}: {len(flagged):,} of {len(verdicts):,} texts flagged")
        lines += [f"  {one['row']}: {', '.join(one['categories'])} {one['score']:.2f}" for one in flagged[:20]]
        lines += [f"  ... {len(flagged) - 20:,} more: --json has all"] if len(flagged) > 20 else []
        lines += [line] if (line := set_aside_line(str(path), read.set_aside)) else []
        lines += [f"{path}: of {len(cut):,} texts the first {LONGEST:,} characters were looked at"] if cut else []
    finish(found, "\n".join(lines), as_json=json_)


def _fit(out: Path, harmful: list[Path], safe: list[Path], threshold: float, *, as_json: bool) -> None:
    from headwater.evaluate.harm.fit import fit_filter, set_aside_line

    require_exists([*harmful, *safe])
    report = fit_filter(harmful, safe, out, threshold=threshold)
    lines = [
        f"{report['file']}: fitted on {report['fitted_on']['harmful']:,} harmful and {report['fitted_on']['safe']:,} "
        "harmless texts; on those held out:",
        "| | precision | recall | false alarms |",
        "|---|---:|---:|---:|",
    ]
    for name, facts in report["held_out"].items():
        values = ("–" if facts[key] is None else f"{facts[key]:.1%}" for key in ("precision", "recall", "false_alarms"))
        lines.append(f"| {name} | {' | '.join(values)} |")
    lines += [set_aside_line(name, rows) for name, rows in report["set_aside"].items()]
    finish(report, "\n".join(lines), as_json=as_json)
