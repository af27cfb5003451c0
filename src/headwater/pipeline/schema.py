"""The recipe: one section a stage, composed from the parts' own configurations.

In: a YAML or JSON file and `--set` overrides. Out: a frozen `Recipe`, checked across its sections, with the place of
every value. Loading imports neither torch nor any data library.

    loaded = load("recipes/quickstart.yaml", ["train.steps=10"])
    loaded.config.model.hidden_size
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from pydantic import model_validator

from headwater.core.config import Section, field
from headwater.core.executor_config import ExecutorConfig
from headwater.core.recipe import Loaded, load_recipe, loads_recipe
from headwater.curate.config import CollectConfig, CurateConfig
from headwater.dataset.config import DatasetConfig
from headwater.evaluate.config import EvaluateConfig
from headwater.model.config import ModelConfig
from headwater.monitor.config import MonitorConfig
from headwater.parallel.config import ParallelConfig, with_virtual_stages
from headwater.pipeline.export_config import ExportConfig
from headwater.serve.config import ServeConfig
from headwater.tokenizer.config import TokenizerConfig
from headwater.train.config import TrainConfig

_FOLLOWING = ("model", "tokenizer", "train", "parallel")


class Recipe(Section):
    """From raw text to a served model. Every section may be left out; its defaults then hold."""

    schema_version: Literal[1] = field(1, kind="operational", aliases=("schema",))
    """Version of this schema; `schema: 1` in a recipe."""

    name: str = field("run", kind="operational", min_length=1, max_length=64, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")
    """Short name, used for the run's folder and the exported model: letters, digits, `.`, `_`, `-`. A recipe without
    one is called as its file."""

    description: str = field("", kind="operational")
    """What the recipe is for, in a sentence."""

    workspace: str = field("workspace", kind="operational", min_length=1)
    """Folder of artifacts and runs, relative to where the command is run; `--workspace` wins over it."""

    seed: int = field(0, ge=0)
    """Seed of the training run: initial weights, order of the data, dropout."""

    collect: CollectConfig = field(default_factory=CollectConfig)
    """Raw files to documents."""

    curate: CurateConfig = field(default_factory=CurateConfig)
    """Documents to a clean corpus with train, validation and test splits."""

    tokenizer: TokenizerConfig = field(default_factory=TokenizerConfig)
    """The vocabulary, trained on the corpus."""

    dataset: DatasetConfig = field(default_factory=DatasetConfig)
    """Token shards."""

    model: ModelConfig = field(default_factory=ModelConfig, aliases=("model_config",))
    """The decoder's shape."""

    train: TrainConfig = field(default_factory=TrainConfig, aliases=("training_config", "training"))
    """How the model is trained."""

    parallel: ParallelConfig = field(default_factory=ParallelConfig, kind="operational", aliases=("parallelism",))
    """How training is laid out over processes."""

    evaluate: EvaluateConfig = field(default_factory=EvaluateConfig, aliases=("evaluation",))
    """Held-out evaluation."""

    export: ExportConfig = field(default_factory=ExportConfig)
    """The Hugging Face folder."""

    serve: ServeConfig = field(default_factory=ServeConfig, kind="operational")
    """The OpenAI-style server."""

    monitor: MonitorConfig = field(default_factory=MonitorConfig, kind="operational")
    """Where a run's figures go."""

    executor: ExecutorConfig = field(default_factory=ExecutorConfig, kind="operational")
    """How the data stages use this machine."""

    cluster: str | None = field(None, kind="operational")
    """The machines a recipe is meant for, as GPU:PER_NODExNODES (`a100-80gb:8x512`) or a cluster file; what
    `headwater plan` starts from."""

    @property
    def sized_model(self) -> ModelConfig:
        """The model with its vocabulary: the tokenizer's size, where the recipe leaves it to that."""
        return self.model.model_copy(update={"vocab_size": self.model.vocab_size or self.tokenizer.vocab_size})

    @model_validator(mode="before")
    @classmethod
    def _follow(cls, data: Any) -> Any:
        """What a block copied from a paper leaves open: the tokenizer is trained to the model's vocabulary, and the
        model has positions for the samples it is trained on."""
        if not isinstance(data, dict) or not all(isinstance(data.get(name, {}), dict) for name in _FOLLOWING):
            return data
        if "parallel" in data:
            layers = data.get("model", {}).get("num_hidden_layers", ModelConfig().num_hidden_layers)
            if isinstance(layers, int):
                data = {**data, "parallel": with_virtual_stages(data["parallel"], layers)}
        model, tokenizer, train, _ = (data.get(name, {}) for name in _FOLLOWING)
        if model.get("vocab_size") is not None and "vocab_size" not in tokenizer:
            data = {**data, "tokenizer": {**tokenizer, "vocab_size": model["vocab_size"]}}
        phases = train.get("phases") if isinstance(train.get("phases"), list) else []
        lengths = [block.get("seq_len") for block in (train, *phases) if isinstance(block, dict)]
        longest = max((length for length in lengths if isinstance(length, int)), default=0)
        if "max_position_embeddings" not in model and longest > ModelConfig().max_position_embeddings:
            data = {**data, "model": {**model, "max_position_embeddings": longest}}
        return data


def load(path: Path | str, overrides: Sequence[str] = ()) -> Loaded[Recipe]:
    """Load and check a recipe. Raises `RecipeError` that lists every mistake with its place."""
    from headwater.pipeline.checks import check

    loaded = load_recipe(Path(path), Recipe, overrides)
    if not loaded.is_set("name"):
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", Path(path).stem).strip("-._")[:64]
        loaded = replace(loaded, config=loaded.config.model_copy(update={"name": name or "run"}))
    return check(loaded)


def loads(text: str, overrides: Sequence[str] = (), name: str = "recipe") -> Loaded[Recipe]:
    """Load and check a recipe given as text."""
    from headwater.pipeline.checks import check

    return check(loads_recipe(text, Recipe, overrides, name))
