"""The recipes that come with the project: they load, and describe themselves with the numbers they promise."""

from __future__ import annotations

from pathlib import Path

import pytest

from headwater.core.errors import RecipeError
from headwater.pipeline.describe import describe, describe_text, short
from headwater.pipeline.runner import run
from headwater.pipeline.schema import load, loads

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
ALL = sorted(RECIPES.glob("*.yaml"))
LARGE = ["llama-7b", "llama-13b", "llama-70b-32k", "dense-48l", "gpt3-175b-3d"]


@pytest.mark.parametrize("path", ALL, ids=lambda path: path.stem)
def test_a_recipe_loads_and_describes_itself(path: Path) -> None:
    loaded = load(path)
    assert loaded.config.name == path.stem
    assert loaded.config.description
    text = describe_text(describe(loaded))
    assert "parameters" in text
    assert "an optimizer step" in text


def test_llama_7b_is_what_its_name_says() -> None:
    facts = describe(load(RECIPES / "llama-7b.yaml"))
    recipe = load(RECIPES / "llama-7b.yaml").config
    assert facts["model"]["parameters"] == 6_738_415_616  # as transformers counts Llama-2-7B
    assert (facts["model"]["layers"], facts["model"]["width"], facts["model"]["heads"]) == (32, 4096, 32)
    assert (facts["model"]["feed_forward"], facts["model"]["vocabulary"]) == (11008, 32000)
    assert facts["train"]["batch_samples"] == facts["train"]["seq_len"] == 4096
    assert facts["train"]["batch_tokens"] == 16_777_216
    assert 0 <= facts["train"]["tokens"] - 2 * 10**12 < 16_777_216
    assert facts["train"]["steps"] == 119_210
    assert facts["train"]["warmup_steps"] == 2500
    assert (recipe.train.optimizer.weight_decay, recipe.train.optimizer.beta2) == (0.1, 0.95)
    assert recipe.train.clip_grad_norm == 1.0


@pytest.mark.parametrize(
    ("name", "parameters", "ranks"),
    [
        ("llama-13b", 13_015_864_320, 1024),
        ("llama-70b-32k", 68_976_648_192, 2048),
        ("dense-48l", 13_153_734_656, 128),
        ("gpt3-175b-3d", 175_206_838_272, 4096),
    ],
)
def test_large_recipes_have_the_parameters_and_ranks_they_promise(name: str, parameters: int, ranks: int) -> None:
    facts = describe(load(RECIPES / f"{name}.yaml"))
    assert facts["model"]["parameters"] == parameters
    assert facts["layout"]["ranks"] == ranks


def test_gpt3_is_64_by_8_by_8_and_says_its_idle_share() -> None:
    layout = describe(load(RECIPES / "gpt3-175b-3d.yaml"))["layout"]
    assert (layout["data_parallel"], layout["tp"], layout["pp"]) == (64, 8, 8)
    assert layout["micro_batches"] == 24
    assert layout["bubble_ratio"] == pytest.approx(7 / (4 * 24 + 7), abs=1e-4)


@pytest.mark.parametrize("name", LARGE)
def test_running_a_large_recipe_says_what_is_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RecipeError) as caught:
        run(RECIPES / f"{name}.yaml", workspace=tmp_path / "w")
    text = str(caught.value)
    assert "no file is there for web (corpus/web" in text
    assert "ranks" in text
    assert "headwater launch" in text
    assert "--set collect.root=DIR" in text
    assert not (tmp_path / "w").exists()


def test_a_model_too_large_for_this_machine_is_named_before_anything_starts() -> None:
    loaded = loads(
        "model: {hidden_size: 65536, num_hidden_layers: 64, num_attention_heads: 64}\ntrain: {steps: 1, device: cpu}"
    )
    missing = {item["field"]: item["what"] for item in describe(loaded)["missing_to_run"]}
    assert "this machine has" in missing["model"]
    assert "there is no source of text" in missing["collect.sources"]


def test_a_layout_runs_where_there_is_a_place_for_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(ranks: int) -> dict[str, str]:
        text = f"train: {{steps: 1, device: cpu, global_batch: 128}}\nparallel: {{dp_shard: {ranks}}}"
        return {item["field"]: item["what"] for item in describe(loads(text))["missing_to_run"]}

    assert "parallel" not in missing(2)
    assert "64 places for ranks on its CPU" in missing(128)["parallel"]
    monkeypatch.setenv("WORLD_SIZE", "128")
    monkeypatch.setenv("RANK", "3")
    assert "parallel" not in missing(128)  # the launcher has found places


def test_the_bilingual_mixture_is_in_tokens_of_five_domains() -> None:
    recipe = load(RECIPES / "zh-en-mix.yaml", ["collect.root=/data"]).config
    assert recipe.train.mixture == {"web": 45, "books": 25, "code": 15, "papers": 8, "other": 7}
    assert {source.domain for source in recipe.collect.sources} == set(recipe.train.mixture)
    assert set(recipe.curate.language.accepted) == {"zh", "en"}
    assert recipe.collect.root == "/data"


def test_numbers_are_shortened_to_three_digits() -> None:
    assert [short(number) for number in (999, 16_777_216, 2e12, 6_738_415_616, 175_206_838_272, 999_999)] == [
        "999", "16.8M", "2.00T", "6.74B", "175B", "1.00M",
    ]  # fmt: skip
