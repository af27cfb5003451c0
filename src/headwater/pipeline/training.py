"""The training stage: brings the trainer what only the pipeline knows, and the run its report.

In: a recipe, the committed dataset and tokenizer. Out: a finished run folder. Generation lies above training in the
house, so the sampler for texts on the way comes from here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from headwater.core.artifacts import Artifact
from headwater.core.errors import RecipeError, UserError
from headwater.core.progress import Reporter
from headwater.core.stage import StageContext
from headwater.pipeline.ranks import joined, launch_training, watched
from headwater.pipeline.schema import Recipe
from headwater.train.phases import plan_run
from headwater.train.run_folder import RunFolder

if TYPE_CHECKING:
    from torch import nn

    from headwater.tokenizer import Tokenizer
    from headwater.train.callbacks import Callback

SAMPLE_TEMPERATURE = 0.8


def train_stage(recipe: Recipe, inputs: Mapping[str, Artifact], out: Path, context: StageContext) -> None:
    """Train, or go on training, in the run folder `out`. Errors as `headwater.train.train_run`."""
    _warn_of_missing_split(recipe, inputs["dataset"].path, context.reporter)
    train_files(recipe, inputs["dataset"].path, inputs["tokenizer"].path, out, context.reporter)


def _warn_of_missing_split(recipe: Recipe, dataset: Path, reporter: Reporter) -> None:
    """Said before training rather than after it: without held-out text the evaluation cannot follow."""
    from headwater.dataset import TokenDataset

    splits = TokenDataset.open(dataset).splits
    if recipe.evaluate.split not in splits:
        reporter.warn(
            f"the dataset has no {recipe.evaluate.split} split (it has {', '.join(splits)}), so the run will stop at "
            "the evaluation; add documents, or raise its share in curate.split. `headwater export` works without"
        )


def train_files(recipe: Recipe, dataset: Path, tokenizer: Path | None, out: Path, reporter: Reporter) -> RunFolder:
    """Train on a packed dataset without a workspace; `recipe` gives model, training and monitor settings.

    Without `tokenizer` a run that exists in `out` uses its own. Raises UserError if there is neither, RecipeError if
    the settings give no length, and as `headwater.train.train_run`. A layout of several ranks is started on this
    machine, or joined where a launcher has started this process (see `headwater.pipeline.ranks`).
    """
    from headwater.train.run import train_run

    plan_run(recipe.train)  # refuses settings without a length before a folder is made
    if tokenizer is None:
        tokenizer = RunFolder(out).tokenizer_path
        if not tokenizer.is_dir():
            raise UserError(
                "no tokenizer is named", where="--tokenizer", mend="name the one the dataset was packed with"
            )
    text = recipe_yaml(recipe)
    if recipe.parallel.ranks > 1 and not joined() and RunFolder(out).final is None:
        launch_training(recipe, text, dataset, tokenizer, out, reporter)
        return RunFolder.open(out)
    with watched(recipe.parallel, out):
        return train_run(
            config=recipe.train,
            model=recipe.model,
            parallel=recipe.parallel,
            monitor=recipe.monitor,
            dataset=dataset,
            tokenizer=tokenizer,
            seed=recipe.seed,
            run_dir=out,
            reporter=reporter,
            recipe_text=text,
            callbacks=[*_samplers(recipe, tokenizer), *_benchmarks(recipe, tokenizer)],
            storage=recipe.dataset,
        )


def _samplers(recipe: Recipe, tokenizer: Path) -> list[Callback]:
    """What writes texts during the run; nothing for an encoder, which writes none."""
    from headwater.tokenizer import Tokenizer
    from headwater.train.sampling import SamplingCallback

    if recipe.model.architecture == "encoder":
        return []
    return [SamplingCallback(recipe.train.sampling, _Sampler(Tokenizer.load(tokenizer)))]


def _benchmarks(recipe: Recipe, tokenizer: Path) -> list[Callback]:
    """Tasks that are scored during the run, if any are named. RecipeError for an encoder, which continues no text."""
    during = recipe.evaluate.during_training
    if not during.tasks:
        return []
    if recipe.model.architecture == "encoder":
        raise RecipeError(
            "an encoder continues no text, so that no task can be scored during its training",
            where="evaluate.during_training.tasks",
            mend="leave it out",
        )
    from headwater.evaluate.in_run import BenchmarkCallback
    from headwater.tokenizer import Tokenizer

    return [BenchmarkCallback(during, Tokenizer.load(tokenizer))]


class _Sampler:
    """Continues prompts with the model as it is."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, model: nn.Module, prompts: Sequence[str], max_tokens: int, seed: int) -> list[str]:
        from headwater.engine import Engine, SamplingParams
        from headwater.model import Decoder

        assert isinstance(model, Decoder), "the trainer hands over the decoder itself, not a wrapper"
        params = SamplingParams(max_tokens=max_tokens, temperature=SAMPLE_TEMPERATURE, seed=seed)
        completions = Engine(model, self._tokenizer).generate(list(prompts), params)
        return [completion.text for completion in completions]


def recipe_yaml(recipe: Recipe) -> str:
    """The recipe with every value spelled out, which loads as the same recipe."""
    values: dict[str, Any] = recipe.model_dump(mode="json")
    values = {"schema": values.pop("schema_version"), **values}
    return yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=120)
