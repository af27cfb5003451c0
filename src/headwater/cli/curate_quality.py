"""`headwater curate clean|filter|rules|classifier`: texts put right, texts chosen, and what they are chosen by."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headwater.cli.common import (
    Debug,
    Force,
    Json,
    Quiet,
    Set,
    default_recipe,
    finish,
    make_reporter,
    require_beside,
    require_exists,
    require_out,
)
from headwater.cli.curate import SMALL_BYTES, report_lines, require_some

if TYPE_CHECKING:
    from headwater.curate.config import CurateConfig

Inputs = Annotated[
    list[Path],
    typer.Argument(
        help="Raw text: JSON Lines, Parquet, text, Markdown, HTML, WARC, WET files or folders.", show_default=False
    ),
]
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", help="Folder for kept, removed, quarantine and report.", show_default=False),
]
Kind = Annotated[str, typer.Option(help="What the files are; auto looks at each.")]
TextField = Annotated[str, typer.Option(help="Field of a row that holds the text.")]
IdField = Annotated[str, typer.Option(help="Field with a row's own id.")]
Lang = Annotated[str, typer.Option(help="Language of all, such as zh.", show_default=False)]
Domain = Annotated[str, typer.Option(help="Domain of all, such as web.", show_default=False)]

_NO_COMPARISON = {
    "dedup": {"exact": False, "minhash": False, "simhash": False, "ngram": False},
    "decontaminate": {"benchmarks": ()},
    "canaries": {"documents": 0},
}

classifier_app = typer.Typer(help="Fit a quality classifier from samples, and score texts with it.")


def register(app: typer.Typer) -> None:
    """Add the verbs of this module to `headwater curate`."""
    app.command("clean")(clean)
    app.command("filter")(filter_)
    app.command("rules")(rules)
    app.add_typer(classifier_app, name="classifier")


def clean(
    inputs: Inputs,
    out: Out = None,
    pii: Annotated[str, typer.Option(help="Personal data to mask: email, ip, phone, id, card, or none.")] = "all",
    min_characters: Annotated[int, typer.Option(help="Drop shorter texts, after cleaning.")] = 20,
    kind: Kind = "auto",
    text_field: TextField = "text",
    id_field: IdField = "id",
    lang: Lang = "",
    domain: Domain = "",
    force: Force = False,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Put texts right: HTML, mojibake, odd characters, Chinese punctuation, boilerplate lines, personal data.

    The cleaned text takes the place of the text; nothing is filtered but what is too short. `--set
    curate.clean.html=false` and the like turn parts off.
    """
    settings = default_recipe(set_)
    changed: dict[str, Any] = {"min_characters": min_characters}
    if pii != "all":
        changed["pii"] = () if pii == "none" else _names(pii)
    config = _only(
        settings.curate,
        clean={**settings.curate.clean.model_dump(), **changed},
        language={"accepted": ()},
        quality={"rules": ()},
        site_lines=settings.curate.site_lines.model_dump(),
    )
    _run(inputs, out, config, settings, kind, text_field, id_field, lang, domain, True, force, json_, quiet)


def filter_(
    inputs: Inputs,
    out: Out = None,
    rules_: Annotated[
        str, typer.Option("--rules", help="Families or rules that are asked (see `headwater curate rules`), or none.")
    ] = "gopher,c4,fineweb,chinese,text,code",
    without: Annotated[
        str, typer.Option(help="Families or rules that are not asked after all.", show_default=False)
    ] = "",
    accept: Annotated[
        str, typer.Option(help="Languages to keep, such as zh,en; every language if not given.", show_default=False)
    ] = "",
    min_share: Annotated[float, typer.Option(help="Least share of a text in accepted languages.")] = 0.5,
    classifier: Annotated[
        Path | None, typer.Option(help="A classifier made by `headwater curate classifier fit`.", show_default=False)
    ] = None,
    min_score: Annotated[float, typer.Option(help="Least score of the classifier with which a text stays.")] = 0.5,
    kind: Kind = "auto",
    text_field: TextField = "text",
    id_field: IdField = "id",
    lang: Lang = "",
    domain: Domain = "",
    force: Force = False,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Keep the texts that pass language and quality rules, as they are, and say why the others went.

    `--set 'curate.quality.limits={gopher.length: {latin: [50, null]}}'` changes limits.
    """
    from headwater.curate.removals import AS_IT_IS

    if classifier is not None:
        require_exists([classifier])
    settings = default_recipe(set_)
    quality = {
        **settings.curate.quality.model_dump(),
        "rules": () if rules_ == "none" else _names(rules_),
        "without": _names(without),
        "classifier": {"model": str(classifier or ""), "min_score": min_score},
    }
    language = {**settings.curate.language.model_dump(), "accepted": _names(accept), "min_share": min_share}
    config = _only(settings.curate, **{**AS_IT_IS, "language": language, "quality": quality})
    _run(inputs, out, config, settings, kind, text_field, id_field, lang, domain, False, force, json_, quiet)


def _only(config: CurateConfig, **sections: Any) -> CurateConfig:
    """Settings that do what `sections` say and compare nothing."""
    from headwater.curate.config import CurateConfig

    code = {"code_domains": config.clean.code_domains}
    sections["clean"] = {**code, **sections["clean"]}
    return CurateConfig.model_validate({**_NO_COMPARISON, **sections})


def _run(
    inputs: list[Path], out: Path | None, config: CurateConfig, settings: Any, kind: str, text_field: str,
    id_field: str, lang: str, domain: str, rewrite_text: bool, force: bool, json_: bool, quiet: bool,
) -> None:  # fmt: skip
    from headwater.core.executor import make_executor
    from headwater.curate import FileOptions, curate_files

    folder = require_out(out, "the result")
    require_exists(inputs)
    require_beside(inputs, folder)
    options = FileOptions(
        kind=kind, text_field=text_field, id_field=id_field, lang=lang, domain=domain, rewrite_text=rewrite_text
    )
    small = all(path.is_file() for path in inputs) and sum(path.stat().st_size for path in inputs) < SMALL_BYTES
    executor = make_executor(
        "inline" if small else settings.executor.kind, settings.executor.workers, settings.executor.address
    )
    try:
        report = curate_files(
            inputs, folder, config, options=options, executor=executor, reporter=make_reporter(quiet=quiet),
            overwrite=force,
        )  # fmt: skip
    finally:
        executor.close()
    edits = [f"{counts['number']:>12,} {kind} in {counts['documents']:,}" for kind, counts in report["edits"].items()]
    require_some(folder, report)
    finish({"out": str(folder), **report}, "\n".join([report_lines(folder, report), *edits]), as_json=json_)


def _names(given: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in given.split(",") if name.strip())


def rules(json_: Json = False, debug: Debug = False) -> None:
    """List the quality rules: name, version, limits for each kind of text, and what each measures."""
    from headwater.curate.quality.registry import all_rules

    found = [
        {
            "rule": rule.name,
            "version": rule.version,
            "limits": {kind: [_finite(limit) for limit in limits] for kind, limits in rule.limits.items()},
            "says": " ".join(rule.says.split()),
        }
        for rule in all_rules().values()
    ]
    lines = []
    for row in found:
        limits = "; ".join(f"{kind} {_shown(*bounds)}" for kind, bounds in row["limits"].items())  # type: ignore[attr-defined]
        lines.append(f"{row['rule']:<40} {row['version']}  {limits}\n    {row['says']}")
    finish({"rules": found}, "\n".join(lines), as_json=json_)


def _finite(limit: float) -> float | None:
    return limit if abs(limit) != float("inf") else None


def _shown(low: float | None, high: float | None) -> str:
    if low is None:
        return f"at most {high:g}"
    return f"at least {low:g}" if high is None else f"{low:g} to {high:g}"


@classifier_app.command("fit")
def fit(
    positive: Annotated[list[Path], typer.Option(help="Texts wanted: files or folders; may be repeated.")],
    negative: Annotated[list[Path], typer.Option(help="Texts not wanted; may be repeated.")],
    out: Annotated[Path | None, typer.Option("--out", "-o", help="The model's file.", show_default=False)] = None,
    epochs: Annotated[int, typer.Option(help="Passes over the samples.")] = 5,
    bits: Annotated[int, typer.Option(help="Logarithm of the number of weights.")] = 18,
    seed: Annotated[int, typer.Option(help="Of the order of samples.")] = 0,
    text_field: TextField = "text",
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Fit a classifier; a fifth of the samples is held out to calibrate and to measure it."""
    from headwater.curate.quality.classifier import FitSettings
    from headwater.curate.quality.classifier import fit as fit_classifier
    from headwater.curate.quality.samples import sample_texts

    path = require_out(out, "the model")
    require_exists([*positive, *negative])
    settings = FitSettings(bits=bits, epochs=epochs, seed=seed)
    good, bad = sample_texts(positive, text_field), sample_texts(negative, text_field)
    report = fit_classifier(good.texts, bad.texts, path, settings)
    unusable = good.unusable + bad.unusable
    held, samples = report["held_out"], report["samples"]
    lines = [
        f"{samples['positive']:>12,} positive samples, {samples['negative']:,} negative",
        f"{held['auc']:>12.4f} AUC on {held['positive'] + held['negative']:,} samples held out",
        f"{held['accuracy']:>12.4f} right at 0.5; Brier score {held['brier']:.4f}",
        f"model     {path}",
    ]
    if unusable:
        lines.insert(1, f"{unusable:>12,} rows could not be used")
    finish({"out": str(path), **report, "unusable_rows": unusable}, "\n".join(lines), as_json=json_)


@classifier_app.command("score")
def score(
    inputs: Annotated[list[Path], typer.Argument(help="Texts: files or folders.", show_default=False)],
    model: Annotated[Path, typer.Option(help="A classifier's file.")],
    text_field: TextField = "text",
    json_: Json = False,
    debug: Debug = False,
) -> None:
    """Print how the classifier's scores lie, to choose a least score by."""
    import numpy as np

    from headwater.curate.quality.classifier import load
    from headwater.curate.quality.samples import sample_texts

    require_exists([*inputs, model])
    found = sample_texts(inputs, text_field)
    scores = load(model).scores(found.texts)
    shares = {str(share): float(np.quantile(scores, share)) for share in (0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99)}
    result = {
        "documents": len(found.texts),
        "unusable_rows": found.unusable,
        "quantiles": shares if len(scores) else {},
    }
    lines = [f"{len(found.texts):>12,} documents"]
    lines += (
        [f"{float(share):>12.0%} score below {value:.4f}" for share, value in shares.items()] if len(scores) else []
    )
    finish(result, "\n".join(lines), as_json=json_)
