"""What must agree between sections of a recipe, and what is still missing before it can run.

`check` refuses contradictions, with the place of the value to change. `missing_to_run` lists what `headwater run` needs
and a recipe made for other machines, or copied from a paper, does not have: sources, a length, hardware.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator
from pathlib import Path

from headwater.core.errors import RecipeError
from headwater.core.files import gib
from headwater.core.recipe import Loaded, RecipeProblems
from headwater.core.recipe_canonical import Problem
from headwater.parallel.context_method import length_problem, method_of
from headwater.parallel.divisibility import tensor_problems
from headwater.parallel.stages import choose_for_pipeline, compile_problem, micro_batch_problem
from headwater.pipeline.ranks import MOST_ON_CPU, joined
from headwater.pipeline.schema import Recipe
from headwater.train.objective import objective_problems

BYTES_PER_PARAMETER = 16
"""Weights, gradients and AdamW's two moments in fp32: what training holds at the least."""


def check(loaded: Loaded[Recipe]) -> Loaded[Recipe]:
    """The same recipe, if its sections agree. Raises RecipeError listing all that do not."""
    problems = [Problem(loaded.place(name), name, what, mend) for name, what, mend in _contradictions(loaded.config)]
    if problems:
        raise RecipeProblems(sorted(problems, key=lambda item: (item.place.line, item.place.column)), loaded.source)
    return loaded


def _contradictions(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    model, train, parallel, tokenizer = recipe.model, recipe.train, recipe.parallel, recipe.tokenizer
    if model.vocab_size is not None and model.vocab_size != tokenizer.vocab_size:
        yield (
            "model.vocab_size",
            f"model.vocab_size is {model.vocab_size:,} and tokenizer.vocab_size {tokenizer.vocab_size:,}",
            "keep one of them: the other follows",
        )
    yield from objective_problems(train, model, parallel)
    longest = max([train.seq_len, *(phase.seq_len or 0 for phase in train.phases)])
    positions = model.max_position_embeddings
    if longest > positions:
        yield (
            "train.seq_len",
            f"samples of {longest:,} tokens are longer than model.max_position_embeddings, {positions:,}",
            f"set model.max_position_embeddings to {longest} or more, or shorten the samples",
        )
    if train.tokens is not None or train.steps is not None or train.phases:
        yield from _plan_problem(recipe)
    stages = parallel.pp * parallel.virtual_stages
    if parallel.pp > 1 and stages > model.num_hidden_layers:
        yield (
            "parallel.pp",
            f"pp {parallel.pp} x {parallel.virtual_stages} stages need {stages} layers; "
            f"the model has {model.num_hidden_layers}",
            "lower parallel.pp or parallel.virtual_stages",
        )
    lengths = {"train.seq_len": train.seq_len}
    for position, phase in enumerate(train.phases):
        if phase.seq_len is not None:
            lengths[f"train.phases[{position}].seq_len"] = phase.seq_len
    yield from tensor_problems(model, parallel, lengths)
    yield from _context_problems(recipe, lengths)
    batches = {"train.global_batch": train.global_batch}
    for position, phase in enumerate(train.phases):
        if phase.global_batch is not None:
            batches[f"train.phases[{position}].global_batch"] = phase.global_batch
    for name, batch in batches.items():
        try:
            number = parallel.accumulation(batch)
            if number is None and parallel.pp > 1:
                choose_for_pipeline(parallel, [batch // parallel.data_parallel], batch)
        except ValueError as error:
            what, _, mend = str(error).partition("\n  mend: ")
            yield name, what, mend
            continue
        if number is not None and (problem := micro_batch_problem(parallel, number)) is not None:
            yield "parallel.schedule", f"{name} {batch:,}: {problem[0]}", problem[1]
    if (problem := compile_problem(parallel, compiled=train.compile)) is not None:
        yield "parallel.schedule", *problem


def _context_problems(recipe: Recipe, lengths: dict[str, int]) -> Iterator[tuple[str, str, str]]:
    parallel, model = recipe.parallel, recipe.model
    if parallel.cp == 1:
        return
    try:
        method, _ = method_of(parallel, model)
    except ValueError as error:
        what, _, mend = str(error).partition("\n  mend: ")
        yield "parallel.cp_method", what, mend
        return
    for name, length in lengths.items():
        if (problem := length_problem(parallel, length, method)) is not None:
            yield "parallel.cp", f"{name}: {problem}", "lower parallel.cp, or change the length"


def _plan_problem(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    from headwater.train.phases import plan_run

    try:
        plan_run(recipe.train)
    except RecipeError as error:
        yield error.where or "train", error.what, error.mend


def missing_to_run(loaded: Loaded[Recipe], *, training: bool = True) -> list[Problem]:
    """Everything that keeps a valid recipe from running here and now; without `training`, from curating or packing its
    text here, which needs neither a length nor the machines of the training."""
    problems = list(_missing_sources(loaded.config))
    if training:
        problems += _missing_length(loaded.config)
        problems += _missing_hardware(loaded.config)
    return [Problem(loaded.place(name), name, what, mend) for name, what, mend in problems]


def _missing_length(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    train = recipe.train
    if train.tokens is None and train.steps is None and not train.phases:
        yield "train.tokens", "nothing says how long to train", "set train.tokens (for example 2e9) or train.steps"


def _missing_sources(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    collect = recipe.collect
    if not collect.sources:
        example = 'sources: [{name: web, paths: ["web/*.jsonl.zst"], domain: web}]'
        yield "collect.sources", "there is no source of text", f"add one under collect: {example}"
        return
    root = collect.folder
    absent = [
        f"{source.name} ({root / path})"
        for source in collect.sources
        for path in source.paths
        if not _matches(root, path)
    ]
    if absent:
        more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
        yield (
            "collect.sources",
            f"no file is there for {', '.join(absent[:3])}{more}",
            "name the folder of the corpus: --set collect.root=DIR",
        )


def _matches(root: Path, pattern: str) -> bool:
    whole = str(root / pattern)
    return Path(whole).exists() or next(glob.iglob(whole, recursive=True), None) is not None


def _missing_hardware(recipe: Recipe) -> Iterator[tuple[str, str, str]]:
    if joined():
        return  # on which machines is the launcher's business; the trainer looks at their memory
    layout = recipe.parallel
    have, what = _places(recipe.train.device)
    if have is not None and layout.ranks > have:
        yield (
            "parallel",
            f"the layout is {layout.describe()}; this machine has {have} {what}",
            "write what starts it on a cluster with `headwater launch`, or run it here in another layout: "
            "--set parallel={} is one process",
        )
        return
    if recipe.train.device in ("cuda", "mps") or (recipe.train.device == "auto" and _has_accelerator()):
        return  # the trainer's dry run measures the accelerator's memory itself
    parameters = recipe.sized_model.parameter_count(padded=True).total
    needed, here = parameters * BYTES_PER_PARAMETER * layout.dp_replicate, _memory_bytes()
    if here and needed > here:
        yield (
            "model",
            f"training {parameters:,} parameters holds at least {gib(needed)}; this machine has {gib(here)}",
            "use a machine with more memory, or a smaller model (--set model.num_hidden_layers=...)",
        )


def _places(device: str) -> tuple[int | None, str]:
    """(ranks that can be started here, what they are), asked without torch; None where only torch could tell."""
    if device != "cpu" and _has_accelerator():
        gpus = Path("/proc/driver/nvidia/gpus")
        return (len(list(gpus.iterdir())), "GPUs") if gpus.is_dir() else (None, "")
    return MOST_ON_CPU, "places for ranks on its CPU"


def _has_accelerator() -> bool:
    """Whether a GPU's driver is here, asked without torch."""
    import sys

    return Path("/proc/driver/nvidia/gpus").exists() or Path("/dev/kfd").exists() or sys.platform == "darwin"


def _memory_bytes() -> int:
    """Memory this process may use: the machine's, or its control group's limit if that is lower. 0 if unknown."""
    try:
        total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return 0
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        return total
    return min(total, int(limit)) if limit.isdigit() else total
