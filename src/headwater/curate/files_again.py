"""A result of a verb on files made again without one of its rules, and its report in the shape of a curation's.

undo_files(Path("clean"), "gopher.bullet-lines", Path("clean-2"))["out"]["documents"]
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from headwater.core.errors import UserError
from headwater.core.executor import Executor
from headwater.core.progress import SILENT, Reporter
from headwater.curate.config import CollectConfig, CurateConfig
from headwater.curate.dedup.files import dedup_files
from headwater.curate.dedup.settings import DedupSettings
from headwater.curate.files import FileOptions, curate_files
from headwater.curate.removals import require_same_inputs
from headwater.curate.results import file_report
from headwater.curate.undo import check_rules

_METHODS = {"ngram-document": "ngram", "ngram-passage": "ngram", "ngram-repeat": "ngram"}


def undo_files(
    folder: Path,
    rule: str,
    out: Path,
    *,
    executor: Executor | None = None,
    reporter: Reporter = SILENT,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Run the verb that wrote `folder` once more, into `out`, with what `rule` removed kept unless another rule takes
    it. Returns the new report.

    Raises UserError for a rule that was not asked, or without which nothing is left to do; InputError for a folder no
    verb wrote, or whose inputs are gone or have changed.
    """
    report = file_report(folder)
    if out.resolve() == folder.resolve():
        raise UserError("the old result would be lost", where=str(out), mend="give another --out")
    if report["verb"] == "curate":
        return _curated(folder, report, rule, out, overwrite, executor, reporter)
    if report["verb"] == "dedup":
        return _deduplicated(folder, report, rule.removeprefix("dedup."), out, overwrite, reporter)
    raise UserError(
        f"{report['verb']} has one rule only", where=str(folder), mend="its inputs are the result without that rule"
    )


def _curated(
    folder: Path,
    report: Mapping[str, Any],
    rule: str,
    out: Path,
    overwrite: bool,
    executor: Executor | None,
    reporter: Reporter,
) -> dict[str, Any]:
    made_from = report["made_from"]
    config = CurateConfig.model_validate(made_from["curate"])
    check_rules(config, [rule])
    config = config.model_copy(update={"undo": tuple(dict.fromkeys([*config.undo, rule]))})
    collect = CollectConfig.model_validate(made_from["collect"])
    require_same_inputs(folder, report)
    inputs = [collect.folder / path for path in collect.sources[0].paths]
    options = FileOptions(**made_from["options"])
    return curate_files(inputs, out, config, options=options, executor=executor, reporter=reporter, overwrite=overwrite)


def _deduplicated(
    folder: Path, report: Mapping[str, Any], rule: str, out: Path, overwrite: bool, reporter: Reporter
) -> dict[str, Any]:
    said = report["settings"]
    method = _METHODS.get(rule, rule)
    if method not in said["methods"]:
        raise UserError(f"{rule!r} was not asked", where="RULE", mend=f"the methods were {', '.join(said['methods'])}")
    methods = tuple(name for name in said["methods"] if name != method)
    if not methods:
        raise UserError(f"{rule} was all that was asked", where="RULE", mend="the inputs are the result without it")
    require_same_inputs(folder, report)
    known = {field.name for field in fields(DedupSettings)}
    settings = DedupSettings(**{name: value for name, value in said.items() if name in known})
    settings = replace(settings, methods=methods)
    return dedup_files(
        report["inputs"], out, against=report["against"], settings=settings, reporter=reporter, overwrite=overwrite
    )


def curation_shape(report: Mapping[str, Any]) -> dict[str, Any]:
    """The report of any verb on files as `report_page` takes it; figures that the verb does not count are left out.

    Raises UserError for `mix`, which has a plan and no losses.
    """
    if report["verb"] == "curate":
        return {**report, "unusable": report["collected"]["quarantined"]}
    if report["verb"] not in ("dedup", "decontaminate"):
        raise UserError(f"{report['verb']} removes by quotas", mend="its report.json has the plan")
    rows, sizes, units = report["rows"], report["bytes"], report.get("units")
    kept_bytes = sizes["kept_documents"] if "kept_documents" in sizes else sizes["kept"]
    cut = sizes.get("cut_from_kept", 0)
    shape: dict[str, Any] = {
        "in": {"documents": rows["documents"], "bytes": sizes["documents"]},
        "out": {"documents": rows["kept"], "bytes": kept_bytes - cut},
        "dropped": {f"dedup.{rule}": lost for rule, lost in report["removed_by_rule"].items()}
        if report["verb"] == "dedup"
        else {"decontaminate.question": {"documents": rows["removed"], "bytes": sizes["documents"] - kept_bytes}},
        "cut": {"dedup.ngram-passage, ngram-repeat": {"bytes": cut}} if cut else {},
        "edited": {},
        "unusable": rows["unusable"],
        "by_language": _by(report.get("groups", ()), "lang"),
        "by_domain": _by(report.get("groups", ()), "domain"),
    }
    if units and not cut:  # the verb does not count those of what it cut
        shape["in"]["units"] = units["documents"]
        shape["out"]["units"] = units["kept_documents"]
    return shape


def _by(groups: Any, name: str) -> dict[str, Any]:
    table: dict[str, Any] = {}
    for group in groups:
        row = table.setdefault(
            group[name] or "not said",
            {"in": {"documents": 0, "bytes": 0}, "out": {"documents": 0, "bytes": 0}, "dropped": {}},
        )
        for side, word in (("in", "in"), ("out", "kept")):
            row[side]["documents"] += group[f"documents_{word}"]
            row[side]["bytes"] += group[f"bytes_{word}"]
        row["out"]["bytes"] -= group["bytes_cut"]
    return table
