"""`headwater run`: walks the stages, skips what is committed, goes on with what is partial, builds the rest.

In: a recipe and a workspace. Out: a `RunResult` with what was done and where everything lies. A run that finds
everything up to date imports no torch and takes about a second.

    run("recipes/quickstart.yaml", overrides=["train.steps=100"]).run_folder
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headwater.core.errors import UserError
from headwater.core.executor import Executor, make_executor
from headwater.core.progress import Reporter
from headwater.core.recipe import Loaded, RecipeProblems
from headwater.core.stage import StageContext
from headwater.curate.fetch.fetch import fetch_missing
from headwater.pipeline.checks import missing_to_run
from headwater.pipeline.ranks import following
from headwater.pipeline.report import update_report
from headwater.pipeline.resolve import Resolved, Resolver, brief_counts, run_path
from headwater.pipeline.schema import Recipe, load
from headwater.pipeline.stages import BY_NAME, STAGES, Stage, find_stage
from headwater.pipeline.stages import load as load_entry

FOLLOW_SECONDS = 0.5
"""How often a rank looks whether the first one is done with a stage."""


@dataclass(frozen=True, slots=True)
class StageResult:
    """What happened to one stage: `built`, `resumed` (a partial result was finished) or `up_to_date`."""

    stage: str
    action: str
    fingerprint: str
    path: Path
    counts: dict[str, Any]
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return {
            "stage": self.stage,
            "action": self.action,
            "fingerprint": self.fingerprint,
            "path": str(self.path),
            "counts": self.counts,
            "seconds": round(self.seconds, 3),
        }


@dataclass(frozen=True, slots=True)
class RunResult:
    """The stages that were walked, in order."""

    recipe: str
    workspace: Path
    stages: tuple[StageResult, ...]
    seconds: float
    resolved: dict[str, Resolved] = field(repr=False, default_factory=dict)

    @property
    def up_to_date(self) -> bool:
        """Whether nothing had to be done."""
        return all(stage.action == "up_to_date" for stage in self.stages)

    def path(self, stage: str) -> Path:
        """The folder of a stage's result. Raises UserError if this run did not get there."""
        for result in self.stages:
            if result.stage == stage:
                return result.path
        raise UserError(
            f"this run has no stage {stage!r}", mend="it has " + ", ".join(item.stage for item in self.stages)
        )

    @property
    def run_folder(self) -> Path:
        """The training run's folder."""
        return self.path("train")

    @property
    def export_folder(self) -> Path:
        """The Hugging Face folder."""
        return self.path("export") / "model"

    def to_json(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "workspace": str(self.workspace),
            "up_to_date": self.up_to_date,
            "seconds": round(self.seconds, 3),
            "stages": [stage.to_json() for stage in self.stages],
        }


def run(
    recipe: Path | str | Loaded[Recipe],
    *,
    workspace: Path | str | None = None,
    only: str | None = None,
    until: str | None = None,
    overrides: Sequence[str] = (),
    reporter: Reporter | None = None,
) -> RunResult:
    """Bring a recipe's results up to date.

    `only` does a single stage, whose inputs must be there; `until` does a stage and what it is made from. Raises
    `RecipeError` for a recipe that cannot run here, `UserError` for an unknown stage or missing inputs, `LockedError`
    while another process works on the same stage, and what a stage raises.
    """
    started = time.monotonic()
    loaded = recipe if isinstance(recipe, Loaded) else load(recipe, overrides)
    reporter = (reporter or Reporter()) if not following() else Reporter(quiet=True)
    folder = Path(workspace if workspace is not None else loaded.config.workspace)
    wanted = _wanted(only, until)
    problems = missing_to_run(loaded, training="train" in wanted)
    if problems:
        raise RecipeProblems(problems, loaded.source)
    if "collect" in wanted and not following():
        fetch_missing(loaded.config.collect, reporter)
    walk = _Walk(loaded, folder, reporter)
    try:
        visit = walk.follow if following() else walk.visit
        results = tuple(visit(stage, only) for stage in STAGES if stage.name in wanted and _ours(stage))
    finally:
        walk.close()
    if following():
        return RunResult(loaded.source, folder, results, time.monotonic() - started, walk.known)
    if any(result.action != "up_to_date" for result in results):
        update_report(loaded.config, walk.every_stage())
    results = tuple(result for result in results if only is None or result.stage == only)
    return RunResult(loaded.source, folder, results, time.monotonic() - started, walk.known)


def _ours(stage: Stage) -> bool:
    """Whether this process has a part in a stage: ranks of a launcher other than the first are there for training."""
    return not following() or STAGES.index(stage) <= STAGES.index(BY_NAME["train"])


def _wanted(only: str | None, until: str | None) -> set[str]:
    if only is not None and until is not None:
        raise UserError("only and until exclude each other", mend="give one of them")
    name = only or until
    if name is None:
        return set(BY_NAME)
    wanted: set[str] = set()
    pending = [find_stage(name)]
    while pending:
        stage = pending.pop()
        wanted.add(stage.name)
        pending.extend(BY_NAME[name] for name in stage.inputs)
    return wanted


class _Walk:
    """One pass over the stages. The executor starts with the first stage that has to be built."""

    def __init__(self, loaded: Loaded[Recipe], workspace: Path, reporter: Reporter) -> None:
        self.loaded = loaded
        self.recipe = loaded.config
        self.resolver = Resolver(self.recipe, workspace)
        self.reporter = reporter
        self.known: dict[str, Resolved] = {}
        self._executor: Executor | None = None

    @property
    def executor(self) -> Executor:
        if self._executor is None:
            config = self.recipe.executor
            self._executor = make_executor(config.kind, config.workers, config.address)
        return self._executor

    def close(self) -> None:
        if self._executor is not None:
            self._executor.close()

    def every_stage(self) -> dict[str, Resolved]:
        """All stages, those this walk left out as they are: the report of a run speaks of the whole recipe."""
        found = dict(self.known)
        for stage in STAGES:
            if stage.name not in found:
                found[stage.name] = self.resolver.resolve(stage, found)
        return found

    def follow(self, stage: Stage, only: str | None) -> StageResult:
        """As `visit`, by a rank other than the first: it takes part in training, and waits for what the first makes.
        The launcher ends it if the first fails."""
        started = time.monotonic()
        resolved = self.resolver.resolve(stage, self.known)
        if stage.name == "train" and not resolved.done:
            self._build(stage, resolved)
        while not resolved.done:
            time.sleep(FOLLOW_SECONDS)
            resolved = self.resolver.resolve(stage, self.known)
        self.known[stage.name] = resolved
        return self._result(resolved, "up_to_date", started)

    def visit(self, stage: Stage, only: str | None) -> StageResult:
        started = time.monotonic()
        resolved = self.resolver.resolve(stage, self.known)
        if resolved.done:
            self.known[stage.name] = resolved
            if only is None or only == stage.name:
                self.reporter.stage(stage.name, f"up to date{_brief(resolved)}")
            return self._result(resolved, "up_to_date", started)
        if only is not None and only != stage.name:
            raise UserError(
                f"stage {only} needs the result of {stage.name}, which is {resolved.state}",
                where=f"{self.resolver.workspace}/{stage.name}",
                mend=f"run that first: headwater run {self.loaded.source} --only {stage.name}, or leave out --only",
            )
        action = "resumed" if resolved.state == "partial" else "built"
        note = {"partial": going_on(resolved), "stale": f"again, because {resolved.note}"}.get(resolved.state, "")
        self.reporter.stage(stage.name, stage.what + (f" ({note})" if note else ""))
        self._build(stage, resolved)
        finished = self.resolver.resolve(stage, self.known)
        if not finished.done:
            raise UserError(
                f"stage {stage.name} ended before it was finished ({finished.note or finished.state})",
                where=str(finished.path or ""),
                mend="run the same command again to go on",
            )
        self.known[stage.name] = finished
        return self._result(finished, action, started)

    def _build(self, stage: Stage, resolved: Resolved) -> None:
        entry = load_entry(stage.entry)
        context = StageContext(workspace=self.resolver.workspace, executor=self.executor, reporter=self.reporter)
        inputs = {name: known.artifact for name, known in self.known.items() if known.artifact is not None}
        inputs = {name: inputs[name] for name in stage.inputs if name in inputs}
        if stage.name == "train":
            entry(
                self.recipe, inputs, run_path(self.resolver.workspace, self.recipe.name, resolved.fingerprint), context
            )
            return
        config = getattr(self.recipe, stage.section)
        writer = self.resolver.store.writer(
            stage.name,
            resolved.fingerprint,
            version=stage.version,
            identity=self.resolver.identity(stage),
            inputs=resolved.inputs,
        )
        with writer as out:
            if "train" in stage.inputs:
                checkpoint = self.known["train"].run
                counts = entry(config, inputs, out, context, checkpoint)
            else:
                counts = entry(config, inputs, out, context)
            out.commit(counts)

    def _result(self, resolved: Resolved, action: str, started: float) -> StageResult:
        counts = dict(resolved.artifact.counts) if resolved.artifact is not None else {}
        if resolved.run is not None:
            counts = dict(resolved.run.final_record)
        assert resolved.path is not None
        return StageResult(
            resolved.stage.name, action, resolved.fingerprint, resolved.path, counts, time.monotonic() - started
        )


def going_on(resolved: Resolved) -> str:
    """From where a stage that was begun goes on."""
    if resolved.run is None:
        return "going on"
    status = resolved.run.status()
    if not status.step:
        return "begun before, but no checkpoint was written: from the first step"
    return f"going on from step {status.step:,} of {status.steps:,}"


def _brief(resolved: Resolved) -> str:
    """The counts worth a glance, for the line of a stage that is up to date."""
    if resolved.run is not None:
        return f": {resolved.note}"
    shown = brief_counts(resolved.artifact.counts) if resolved.artifact is not None else ""
    return f": {shown}" if shown else ""
