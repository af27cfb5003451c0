"""`headwater curate audit|undo|remove|report`: whether removals hold, taking rules back, taking documents down, and a
page that shows where everything went."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.common import (
    Debug,
    Json,
    Quiet,
    Set,
    Workspace,
    finish,
    is_recipe,
    make_reporter,
    refuse,
    require_exists,
    require_out,
    write_named,
)
from headwater.core.errors import UserError

if TYPE_CHECKING:
    from headwater.core.artifacts import Artifact

Target = Annotated[
    Path,
    typer.Argument(
        help="A recipe, the folder of a corpus (WORKSPACE/curate/...), or what a verb on files wrote (--out).",
        show_default=False,
    ),
]


def register(app: typer.Typer) -> None:
    """Add the verbs of this module to `headwater curate`."""
    app.command("audit")(audit)
    app.command("undo")(undo)
    app.command("remove")(remove)
    app.command("report")(report)


def _files(target: Path, workspace: Path | None, set_: list[str] | None) -> Path | None:
    """The target, if it is what a verb on files wrote."""
    from headwater.curate.results import is_file_result

    if is_recipe(target) or not is_file_result(target):
        return None
    refuse("--set", bool(set_), "changes a recipe, and the result of a verb on files is given")
    refuse("--workspace", workspace is not None, "goes with a recipe; the result of a verb on files has none")
    return target


def _corpus(target: Path, workspace: Path | None, set_: list[str] | None) -> Artifact:
    from headwater.curate.removals import corpus_of
    from headwater.pipeline.corpus import corpus_of_recipe
    from headwater.pipeline.schema import load

    if is_recipe(target):
        return corpus_of_recipe(load(target, set_ or ()), workspace)
    refuse("--set", bool(set_), "changes a recipe, and a corpus is given")
    refuse("--workspace", workspace is not None, "goes with a recipe; a corpus lies in its workspace")
    return corpus_of(target)


def audit(
    target: Target,
    sample: Annotated[int, typer.Option(min=1, help="Removals to replay.")] = 200,
    seed: Annotated[int, typer.Option(help="Another number draws others.")] = 0,
    rule: Annotated[
        list[str] | None, typer.Option(help="Only removals by this rule; may be repeated.", show_default=False)
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(help="Write what was drawn here, with both texts, to read and to label.", show_default=False),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(help="A samples file in which people set `false` to true or false.", show_default=False),
    ] = None,
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Replay removals drawn at random: each is decided anew from its source text, by other code."""
    from headwater.curate.audit import audit as run_audit
    from headwater.curate.dedup.rows import dump

    folder = _files(target, workspace, set_) or _corpus(target, workspace, set_).path
    if labels is not None:
        require_exists([labels])
    found = run_audit(folder, sample=sample, seed=seed, rules=rule or (), labels=labels)
    if samples is not None:
        write_named(samples, b"".join(dump(one) + b"\n" for one in found["samples"]))
    failed = [one for one in found["samples"] if one["holds"] is False]
    shown = [{key: value for key, value in one.items() if "text" not in key} for one in failed]
    result = {**{key: value for key, value in found.items() if key != "samples"}, "failed": shown}
    finish(result, _audit_lines(found, failed), as_json=json_)


def _audit_lines(found: dict[str, Any], failed: list[dict[str, Any]]) -> str:
    lines = [
        f"{found['drawn']:,} of {found['removals']:,} removals drawn, {found['replayed']:,} replayed, "
        f"{found['false']:,} do not hold",
        f"false-removal rate {_interval(found)}",
    ]
    lines += [
        f"  {rule:<28} {row['replayed']:>6,} replayed {row['false']:>5,} false"
        for rule, row in found["by_rule"].items()
    ]
    lines += [f"  {one['id']} {one['rule']}: {one['why']}" for one in failed[:20]]
    if (said := found["labelled"]) is not None:
        lines.append(f"by people: {said['false']:,} of {said['labelled']:,} labelled are false, rate {_interval(said)}")
    return "\n".join(lines)


def _interval(row: dict[str, Any]) -> str:
    if row["false_rate"] is None:
        return "unknown: nothing was decided"
    (low, high), (least, most) = row["wilson_95"], row["clopper_pearson_95"]
    return f"{row['false_rate']:.2%} (95 %: Wilson {low:.2%} to {high:.2%}, Clopper-Pearson {least:.2%} to {most:.2%})"


def undo(
    rule: Annotated[str, typer.Argument(help="The rule to take back, such as dedup.minhash.", show_default=False)],
    target: Target,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Of files: folder for the new result; the old one stays.", show_default=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Of files: overwrite another result in --out.")] = False,
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Make the corpus, or a result on files, again with what a rule removed in it."""
    from headwater.curate.remake import remake

    if (folder := _files(target, workspace, set_)) is not None:
        _undo_files(rule, folder, require_out(out, "the new result"), force, json_, quiet)
        return
    corpus = _corpus(target, workspace, set_)
    refuse("--out", out is not None, "goes with the result of a verb on files; a corpus is made in its workspace")
    refuse("--force", force, "goes with the result of a verb on files; a corpus is never overwritten")
    made = remake(corpus, undo=[rule], reporter=make_reporter(quiet=quiet))
    rules = ", ".join(made.identity["undo"])
    result = {
        "corpus": str(made.path),
        "fingerprint": made.fingerprint,
        "was": corpus.fingerprint,
        "undo": made.identity["undo"],
        "documents": made.counts["documents"],
        "restored": made.counts["documents"] - corpus.counts["documents"],
    }
    text = (
        f"{result['restored']:,} documents restored, {result['documents']:,} in all: {made.path}\n"
        f"in a recipe: curate: {{undo: [{rules}]}}"
    )
    finish(result, text, as_json=json_)


def _undo_files(rule: str, folder: Path, out: Path, force: bool, json_: bool, quiet: bool) -> None:
    from headwater.curate.files_again import curation_shape, undo_files
    from headwater.curate.results import file_report

    before = curation_shape(file_report(folder))["out"]["documents"]
    made = undo_files(folder, rule, out, reporter=make_reporter(quiet=quiet), overwrite=force)
    after = curation_shape(made)["out"]["documents"]
    result = {"out": str(out), "was": str(folder), "undo": rule, "documents": after, "restored": after - before}
    finish(result, f"{after - before:,} documents restored, {after:,} in all: {out}", as_json=json_)


def remove(
    target: Target,
    ids: Annotated[
        list[Path], typer.Option(help="File with ids of documents, one a line; may be repeated.", show_default=False)
    ],
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Take documents down: make the corpus without them, and name the datasets, runs and steps that saw them."""
    from headwater.curate.remake import copies_of, ids_in, remake
    from headwater.pipeline.corpus import who_saw

    require_exists(ids)
    if _files(target, workspace, set_) is not None:
        raise UserError(
            "no run was trained on a result of a verb on files",
            where=str(target),
            mend="take the rows out of the inputs; of a corpus that was made of them, give the recipe",
        )
    corpus = _corpus(target, workspace, set_)
    wanted = ids_in(ids)
    copies = copies_of(corpus, wanted)
    made = remake(corpus, takedown=wanted, reporter=make_reporter(quiet=quiet))
    taken = made.counts["dropped"].get("takedown.id", {"documents": 0})["documents"]
    result = {
        "corpus": str(made.path),
        "fingerprint": made.fingerprint,
        "was": corpus.fingerprint,
        "asked": len(wanted),
        "taken_down": taken,
        "copies_that_stay": copies,
        **who_saw(corpus.path.resolve().parent.parent, wanted),
    }
    finish(result, _remove_lines(result), as_json=json_)


def _remove_lines(result: dict[str, Any]) -> str:
    lines = [f"{result['taken_down']:,} documents taken down in all, {result['asked']:,} asked for: {result['corpus']}"]
    lines += [
        f"  {row['id']} had gone by {row['rule']} already; {row['kept_id']}, which says the same, stays: "
        "add its id to take it down too"
        for row in result["copies_that_stay"]
    ]
    lines += [f"dataset {row['dataset']} holds {len(row['documents']):,} of them" for row in result["datasets"]]
    for run in result["runs"]:
        lines.append(f"run {run['run']} read {len(run['documents']):,} of them in {run['steps_done']:,} steps:")
        lines += [f"  {row['id']}: step {', '.join(f'{step:,}' for step in row['steps'])}" for row in run["documents"]]
    lines += [f"run {name}: its dataset is gone, so nobody can say" for name in result["unknown"]]
    if not result["runs"] and not result["unknown"]:
        lines.append("no run has read any of them")
    return "\n".join(lines)


def report(
    target: Target,
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("curation.html"),
    samples: Annotated[int, typer.Option(min=0, help="Removals to show of each rule.")] = 3,
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Write a page that shows where documents, bytes, units and tokens went, and removals to read."""
    from headwater.core.jsonl import parse_json
    from headwater.curate.audit import some_of_each_rule
    from headwater.curate.decisions import CANARIES
    from headwater.curate.files_again import curation_shape
    from headwater.curate.report_page import report_page
    from headwater.curate.results import file_report
    from headwater.pipeline.corpus import tokens_of

    if (folder := _files(target, workspace, set_)) is not None:
        shape = curation_shape(file_report(folder))
        drawn = some_of_each_rule(folder, samples) if samples else []
        write_named(out, report_page(shape, None, drawn, {}, f"Result in {folder}").encode())
        finish({"page": str(out), "result": str(folder), "report": shape}, f"wrote {out}", as_json=json_)
        return
    corpus = _corpus(target, workspace, set_)
    found = parse_json(corpus.file("report.json").read_bytes())
    canaries = parse_json(corpus.file(CANARIES).read_bytes()) if CANARIES in corpus.files() else None
    tokens = tokens_of(corpus)
    drawn = some_of_each_rule(corpus.path, samples) if samples else []
    page = report_page(found, canaries, drawn, tokens, f"Curation of corpus {corpus.fingerprint}")
    write_named(out, page.encode())
    result = {"page": str(out), "corpus": str(corpus.path), "report": found, "canaries": canaries, "tokens": tokens}
    finish(result, f"wrote {out}", as_json=json_)
