"""Walking the stages: what is skipped, resumed, rebuilt and refused. Real stages on a small corpus."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headwater.core.artifacts import ArtifactStore
from headwater.core.errors import InputError, LockedError, RecipeError, UserError
from headwater.core.locks import FolderLock
from headwater.core.progress import SILENT
from headwater.pipeline.resolve import Resolved, Resolver
from headwater.pipeline.runner import RunResult, going_on, run
from headwater.pipeline.schema import load
from headwater.pipeline.stages import BY_NAME
from headwater.pipeline.status import lineage_of, lineage_text, overview, status, status_text
from headwater.train import RunFolder

CORPUS_STAGES = ["collect", "curate", "tokenizer", "dataset"]


def pack(recipe: Path, *overrides: str, until: str = "dataset", only: str | None = None) -> RunResult:
    """Run up to the dataset, in the workspace beside the recipe."""
    return run(
        recipe,
        workspace=recipe.parent / "w",
        until=None if only else until,
        only=only,
        overrides=overrides,
        reporter=SILENT,
    )


def actions(result: RunResult) -> dict[str, str]:
    return {stage.stage: stage.action for stage in result.stages}


def files(folder: Path) -> dict[str, bytes]:
    """Content of all artifacts, provenance and caches aside."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != "provenance.json" and not any(part.startswith(".") for part in path.parts)
    }


def test_a_second_run_finds_everything_up_to_date(recipe: Path) -> None:
    first = pack(recipe)
    assert actions(first) == dict.fromkeys(CORPUS_STAGES, "built")
    before = files(recipe.parent / "w")
    second = pack(recipe)
    assert second.up_to_date
    assert [stage.fingerprint for stage in second.stages] == [stage.fingerprint for stage in first.stages]
    assert files(recipe.parent / "w") == before


def test_operational_settings_and_the_corpus_place_make_nothing_stale(recipe: Path) -> None:
    pack(recipe)
    moved = recipe.parent / "elsewhere"
    (recipe.parent / "corpus").rename(moved)
    for path in moved.rglob("*"):
        os.utime(path)
    again = pack(recipe, f"collect.root={moved}", "executor={kind: process, workers: 2}", "name=other", "serve.port=1")
    assert again.up_to_date


def test_any_executor_gives_the_same_bytes(recipe: Path) -> None:
    pack(recipe)
    run(
        recipe,
        workspace=recipe.parent / "v",
        until="dataset",
        overrides=["executor={kind: process, workers: 2}"],
        reporter=SILENT,
    )
    assert files(recipe.parent / "w") == files(recipe.parent / "v")


def test_a_changed_setting_rebuilds_its_stage_and_what_stands_on_it(recipe: Path) -> None:
    pack(recipe)
    changed = pack(recipe, "tokenizer.vocab_size=600")
    assert actions(changed) == {
        "collect": "up_to_date",
        "curate": "up_to_date",
        "tokenizer": "built",
        "dataset": "built",
    }
    assert pack(recipe).up_to_date  # the first results are still there


def test_new_and_changed_raw_files_are_noticed(recipe: Path) -> None:
    first = pack(recipe)
    (recipe.parent / "corpus" / "books" / "99.txt").write_text("A new book about the river and the hills and the mill.")
    second = pack(recipe)
    assert actions(second)["collect"] == "built"
    assert second.stages[0].counts["documents"] == first.stages[0].counts["documents"] + 1


def test_status_tells_done_stale_missing_and_why(recipe: Path) -> None:
    workspace = recipe.parent / "w"
    assert {stage["state"] for stage in status(load(recipe), workspace)["stages"]} == {"missing", "waiting"}
    pack(recipe)
    facts = status(load(recipe, ["curate.clean.min_characters=30"]), workspace)
    states = {stage["stage"]: stage["state"] for stage in facts["stages"]}
    assert states == {
        "collect": "done", "curate": "stale", "tokenizer": "stale", "dataset": "stale",
        "train": "missing", "evaluate": "waiting", "export": "waiting",
    }  # fmt: skip
    notes = {stage["stage"]: stage["note"] for stage in facts["stages"]}
    assert notes["curate"] == "curate.clean.min_characters: 20 -> 30"
    assert notes["tokenizer"] == "curate is another"
    text = status_text(facts)
    assert "stale: there is a result, but of another recipe or other inputs" in text
    assert "next: headwater run" in text


def test_a_training_that_was_begun_says_from_where_it_goes_on(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text('{"steps": 1960}')
    begun = Resolved(BY_NAME["train"], {}, "k", "partial", run=RunFolder(tmp_path))
    assert going_on(begun) == "begun before, but no checkpoint was written: from the first step"
    checkpoint = tmp_path / "checkpoints" / "step-00001480"
    checkpoint.mkdir(parents=True)
    (checkpoint / "manifest.json").write_text("{}")
    assert going_on(begun) == "going on from step 1,480 of 1,960"


def test_the_overview_of_a_workspace_lists_committed_and_partial(recipe: Path) -> None:
    pack(recipe)
    workspace = recipe.parent / "w"
    (workspace / "dataset" / "0123456789abcdef.partial").mkdir()
    found = {(item["stage"], item["state"]) for item in overview(workspace)["artifacts"]}
    assert found == {*((stage, "done") for stage in CORPUS_STAGES), ("dataset", "partial")}


def test_only_one_stage_runs_if_its_inputs_are_there_and_says_which_are_not(recipe: Path) -> None:
    with pytest.raises(UserError, match="stage tokenizer needs the result of collect, which is missing") as caught:
        pack(recipe, only="tokenizer")
    assert "--only collect" in caught.value.mend
    assert actions(pack(recipe, only="collect")) == {"collect": "built"}
    assert actions(pack(recipe, only="curate")) == {"curate": "built"}
    assert actions(pack(recipe, only="tokenizer")) == {"tokenizer": "built"}
    assert actions(pack(recipe, only="tokenizer")) == {"tokenizer": "up_to_date"}
    with pytest.raises(UserError, match="did you mean tokenizer"):
        pack(recipe, only="tokeniser")
    with pytest.raises(UserError, match="exclude each other"):
        run(recipe, only="collect", until="curate")


def test_a_stage_that_another_process_works_on_is_refused_and_shown_as_running(recipe: Path) -> None:
    workspace = recipe.parent / "w"
    pack(recipe, until="collect")
    key = next(
        item for item in Resolver(load(recipe).config, workspace).all() if item.stage.name == "curate"
    ).fingerprint
    partial = ArtifactStore(workspace).path("curate", key).with_name(f"{key}.partial")
    partial.mkdir(parents=True)
    with FolderLock(partial):
        with pytest.raises(LockedError, match="writes here since"):
            pack(recipe)
        states = {stage["stage"]: stage["state"] for stage in status(load(recipe), workspace)["stages"]}
        assert states["curate"] == "running"
    states = {stage["stage"]: stage["state"] for stage in status(load(recipe), workspace)["stages"]}
    assert states["curate"] == "partial"
    assert actions(pack(recipe, until="curate"))["curate"] == "resumed"


def test_lineage_leads_from_the_dataset_back_to_the_raw_files(recipe: Path) -> None:
    result = pack(recipe)
    workspace = recipe.parent / "w"
    tree = lineage_of(str(result.path("dataset")), workspace)
    collect = tree["inputs"]["curate"]["inputs"]["collect"]
    assert {role: node["kind"] for role, node in collect["inputs"].items()} == {
        "raw:books": "content",
        "raw:web": "content",
    }
    assert lineage_of(tree["fingerprint"][:6], workspace)["fingerprint"] == tree["fingerprint"]
    assert lineage_of(str(result.path("dataset") / "dataset.json"), Path("nowhere")) == tree
    lines = lineage_text(tree).splitlines()
    assert lines[0].startswith(f"dataset {tree['fingerprint']}")
    assert any(line.strip().startswith("raw:web: raw content") for line in lines)
    with pytest.raises(InputError, match="no path, fingerprint or run"):
        lineage_of("ffffffffffffffff", workspace)


def test_missing_sources_are_named_before_a_workspace_is_made(recipe: Path) -> None:
    with pytest.raises(RecipeError, match=r"no file is there for web \(.*nowhere/web.jsonl\), books"):
        pack(recipe, "collect.root=nowhere")
    assert not (recipe.parent / "w").exists()


def test_text_is_curated_where_the_training_could_not_run_or_has_no_length_yet(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "The river runs down from the hills to the sea."}) + "\n")
    text = """schema: 1
collect: {sources: [{name: a, paths: [a.jsonl]}]}
curate: {quality: {rules: []}}
model: {hidden_size: 65536, num_hidden_layers: 64, num_attention_heads: 64}
train: {device: cpu}
executor: {kind: inline}
"""
    (tmp_path / "large.yaml").write_text(text)
    place = [f"collect.root={tmp_path}"]
    result = run(tmp_path / "large.yaml", workspace=tmp_path / "w", until="curate", overrides=place, reporter=SILENT)
    assert [stage.stage for stage in result.stages] == ["collect", "curate"]
    with pytest.raises(RecipeError, match=r"nothing says how long to train(.|\n)*this machine has"):
        run(tmp_path / "large.yaml", workspace=tmp_path / "w", overrides=place, reporter=SILENT)


def test_an_up_to_date_run_is_quick_and_imports_no_torch(recipe: Path) -> None:
    pack(recipe)
    code = (
        "import sys, headwater\n"
        f"result = headwater.run({str(recipe)!r}, workspace={str(recipe.parent / 'w')!r}, until='dataset')\n"
        "assert result.up_to_date\n"
        "heavy = ('torch', 'transformers', 'pyarrow', 'sentencepiece', 'tokenizers', 'fastapi')\n"
        "print([name for name in heavy if name in sys.modules])\n"
    )
    seconds = []
    for _ in range(3):  # the best of three: other processes may be busy
        started = time.monotonic()
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        seconds.append(time.monotonic() - started)
        assert done.returncode == 0, done.stderr
        assert done.stdout.strip() == "[]"
    assert min(seconds) < 3
