"""From raw text to a model that is evaluated and exported, once, by one recipe; and what stands in its report."""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from headwater.core.errors import CorruptArtifactError
from headwater.core.progress import SILENT
from headwater.pipeline.runner import RunResult, run
from headwater.pipeline.schema import load
from headwater.pipeline.status import lineage_of, status
from headwater.pipeline.summary import summary, summary_text
from headwater.pipeline.tracing import trace
from headwater.train.run_folder import RunFolder
from tests.cli.conftest import call
from tests.pipeline.conftest import RECIPE, make_corpus

__all__ = ["call"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, RunResult]:
    """A recipe, its workspace, and the result of running it."""
    folder = tmp_path_factory.mktemp("whole")
    make_corpus(folder / "corpus")
    recipe = folder / "small.yaml"
    recipe.write_text(RECIPE.format(root=folder / "corpus"))
    return recipe, folder / "w", run(recipe, workspace=folder / "w", reporter=SILENT)


Whole = tuple[Path, Path, RunResult]


def test_every_stage_is_built_and_the_result_says_where_it_lies(whole: Whole) -> None:
    _, workspace, result = whole
    names = ["collect", "curate", "tokenizer", "dataset", "train", "evaluate", "export"]
    assert [stage.stage for stage in result.stages] == names
    assert all(stage.action == "built" for stage in result.stages)
    assert all(stage.path.is_dir() for stage in result.stages)
    assert result.run_folder.parent == workspace / "runs"
    assert result.run_folder.name.startswith("small-")
    assert (result.export_folder / "model.safetensors").is_file()
    assert json.loads((result.export_folder / "config.json").read_text())["vocab_size"] == 640
    json.dumps(result.to_json())


def test_the_command_that_serves_survives_blanks_in_the_path(whole: Whole, tmp_path: Path) -> None:
    folder = tmp_path / "a b" / "模型"
    shutil.copytree(whole[1], folder)
    moved = run(whole[0], workspace=folder, reporter=SILENT)
    assert shlex.split(summary(moved)["serve"]) == ["headwater", "serve", str(moved.export_folder)]


def test_a_result_that_lost_a_file_is_not_up_to_date(whole: Whole, tmp_path: Path) -> None:
    folder = tmp_path / "w"
    shutil.copytree(whole[1], folder)
    exported = folder / "export" / whole[2].export_folder.parent.name
    (exported / "model" / "model.safetensors").unlink()
    with pytest.raises(CorruptArtifactError, match=r"model\.safetensors is missing") as caught:
        run(whole[0], workspace=folder, reporter=SILENT)
    assert f"remove {exported} and run again" in caught.value.mend
    shutil.rmtree(exported)
    again = run(whole[0], workspace=folder, reporter=SILENT)
    assert [stage.stage for stage in again.stages if stage.action == "built"] == ["export"]


def test_the_summary_sets_the_model_beside_its_baselines(whole: Whole) -> None:
    facts = summary(whole[2])
    names = [row["name"] for row in facts["evaluation"]["rows"]]
    assert names[0] == "model"
    assert {"unigram", "5-gram"} <= set(names)
    assert sum(name.startswith("xz -9e") for name in names) == 2
    text = summary_text({**whole[2].to_json(), "summary": facts})
    for word in (
        "bits/byte",
        "perplexity",
        "unigram",
        "5-gram",
        "xz -9e",
        "a sample",
        "report.html",
        "headwater serve",
    ):
        assert word in text
    assert "beaten" in text.lower()


def test_the_report_has_curves_tables_samples_and_lineage_in_one_file(whole: Whole) -> None:
    page = (whole[2].run_folder / "report.html").read_text("utf-8")
    for word in ("held-out bits per byte", "Curation", "came in", "Dataset", "Lineage", "5-gram", "Learning rate"):
        assert word in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page


def test_running_again_does_nothing_and_imports_no_torch(whole: Whole) -> None:
    recipe, workspace, _ = whole
    code = (
        "import sys\nfrom headwater.cli.main import run_command\n"
        f"code = run_command(['run', {str(recipe)!r}, '--workspace', {str(workspace)!r}, '--json'])\n"
        "heavy = ('torch', 'transformers', 'pyarrow', 'sentencepiece', 'tokenizers', 'fastapi')\n"
        "print([name for name in heavy if name in sys.modules], file=sys.stderr)\nsys.exit(code)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["up_to_date"] is True
    assert done.stderr.splitlines()[-1] == "[]"


def test_status_is_done_and_turns_stale_with_the_reason(whole: Whole) -> None:
    recipe, workspace, _ = whole
    assert status(load(recipe), workspace)["up_to_date"] is True
    facts = status(load(recipe, ["train.optimizer.lr=0.01", "export.dtype=float16"]), workspace)
    states = {stage["stage"]: (stage["state"], stage["note"]) for stage in facts["stages"]}
    assert states["dataset"][0] == "done"
    assert states["train"] == ("stale", "train.optimizer.lr: 0.0003 -> 0.01")
    assert states["evaluate"][0] == states["export"][0] == "stale"
    assert states["export"][1] == "export.dtype: float32 -> float16"


def test_a_bit_that_flipped_on_the_disk_is_found_when_contents_are_checked(whole: Whole, call: Any) -> None:
    recipe, workspace, result = whole
    (weights,) = result.export_folder.glob("*.safetensors")
    run = RunFolder(result.run_folder)
    state = next(path for path in run.checkpoints()[-1].path.iterdir() if path.name.endswith(".distcp"))
    on_recipe = ("status", recipe, "--workspace", workspace, "--verify")
    assert "everything is up to date" in call(*on_recipe).stdout
    kept = {path: path.read_bytes() for path in (weights, state)}
    try:
        for path, data in kept.items():
            path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        assert call("status", recipe, "--workspace", workspace, "--json").json["up_to_date"] is True, "sizes are right"
        told = call(*on_recipe, "--json", code=1).json
        damaged = {stage["stage"]: stage["note"] for stage in told["stages"] if stage["state"] == "damaged"}
        assert sorted(damaged) == ["export", "train"]
        assert "model.safetensors has other content than its SHA-256 says" in damaged["export"]
        assert f"{state}: content has changed" in damaged["train"]
        text = call("status", "--workspace", workspace, "--verify", code=1).stdout
        assert text.count("damaged") == 2
        assert "run again: the stage rebuilds it" in text
    finally:
        for path, data in kept.items():
            path.write_bytes(data)


def test_lineage_of_the_export_passes_the_checkpoint_and_ends_at_raw_content(whole: Whole) -> None:
    _, workspace, result = whole
    tree = lineage_of(str(result.export_folder), workspace)
    assert tree["stage"] == "export"
    checkpoint = tree["inputs"]["checkpoint"]
    assert checkpoint["kind"] == "checkpoint"
    assert checkpoint["checkpoint"] == "step-00000006"
    assert checkpoint["inputs"]["dataset"]["fingerprint"] == result.path("dataset").name
    assert checkpoint["inputs"]["tokenizer"]["fingerprint"] == result.path("tokenizer").name
    run_tree = lineage_of(result.run_folder.name, workspace)
    assert run_tree["inputs"] == checkpoint["inputs"]
    assert lineage_of(str(result.run_folder / "checkpoints" / "step-00000006"), workspace) == run_tree


def test_every_document_a_step_read_is_named_and_found_again(whole: Whole) -> None:
    opened = RunFolder.open(whole[2].run_folder)
    step = trace(opened, step=6)
    assert len(step["samples"]) == 4
    for part in step["samples"][0]["documents"]:
        found = trace(opened, document=part["id"])["documents"][0]
        assert any(reading["step"] == 6 for reading in found["readings"])


def test_the_runs_recipe_loads_as_the_same_recipe(whole: Whole) -> None:
    recipe, _, result = whole
    assert load(result.run_folder / "recipe.yaml").config == load(recipe).config


def test_another_name_finds_the_same_run_and_another_seed_does_not(whole: Whole) -> None:
    recipe, workspace, result = whole
    renamed = run(recipe, workspace=workspace, until="train", overrides=["name=other"], reporter=SILENT)
    assert renamed.up_to_date
    assert renamed.run_folder == result.run_folder
    states = {stage["stage"]: stage for stage in status(load(recipe, ["seed=1"]), workspace)["stages"]}
    assert states["train"]["note"] == "seed: 0 -> 1"


def test_the_model_is_exported_without_waiting_for_its_evaluation(whole: Whole) -> None:
    recipe, workspace, _ = whole
    exported = run(recipe, workspace=workspace, until="export", reporter=SILENT)
    assert [stage.stage for stage in exported.stages] == [
        "collect", "curate", "tokenizer", "dataset", "train", "export"
    ]  # fmt: skip
    assert exported.up_to_date


def test_a_stage_made_again_alone_leaves_the_rest_in_the_report(whole: Whole) -> None:
    recipe, workspace, result = whole
    again = run(recipe, workspace=workspace, only="export", overrides=["export.dtype=float16"], reporter=SILENT)
    assert again.stages[0].action == "built"
    page = (result.run_folder / "report.html").read_text("utf-8")
    assert "held-out bits per byte" in page
    assert again.stages[0].fingerprint in page
