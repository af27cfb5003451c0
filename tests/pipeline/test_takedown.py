"""From documents to take down to the datasets, runs and steps that saw them."""

from pathlib import Path

import pyarrow.parquet as pq

from headwater.curate.remake import remake
from headwater.pipeline.corpus import corpus_of_recipe, tokens_of, who_saw
from headwater.pipeline.runner import run
from headwater.pipeline.schema import load
from headwater.pipeline.tracing import trace
from headwater.train.run_folder import RunFolder


def test_a_takedown_names_every_run_and_step_that_read_the_document(recipe: Path, tmp_path: Path) -> None:
    workspace = tmp_path / "ws"
    done = run(recipe, workspace=workspace, until="train")
    corpus = corpus_of_recipe(load(recipe), workspace)
    name = next(name for name in corpus.files("corpus/train/"))
    ids = pq.read_table(corpus.file(name), columns=["id"]).column("id").to_pylist()
    training = RunFolder.open(done.run_folder)
    read = {one: trace(training, document=one)["documents"][0]["steps"] for one in ids[:20]}
    victim = max(read, key=lambda one: len(read[one]))
    assert read[victim], "the run read some of them"
    seen = who_saw(workspace, [victim, "0" * 32])
    assert [(row["run"], row["documents"]) for row in seen["runs"]] == [
        (training.run_id, [{"id": victim, "steps": read[victim]}])
    ]
    assert [row["documents"] for row in seen["datasets"]] == [[{"id": victim, "split": "train"}]]
    assert seen["unknown"] == []
    assert sum(tokens_of(corpus)[training.record["dataset"]]["train"].values()) > 0

    without = remake(corpus, takedown=frozenset({victim}))
    kept = [
        one
        for name in without.files("corpus/")
        for one in pq.read_table(without.file(name), columns=["id"]).column("id").to_pylist()
    ]
    assert victim not in kept
    file = tmp_path / "ids.txt"
    file.write_text(victim + "\n")
    again = run(recipe, workspace=workspace, until="curate", overrides=[f"curate.takedown=[{file}]"])
    assert again.path("curate").name == without.fingerprint, "the recipe that says so is up to date"
    assert again.up_to_date
