"""Objectives through the whole way: a masked model is trained, evaluated, exported and loaded by transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForMaskedLM, AutoTokenizer

from headwater.core.errors import InputError, UserError
from headwater.core.jsonl import parse_json
from headwater.core.progress import SILENT
from headwater.engine import load_model
from headwater.model import Encoder, load_hf
from headwater.pipeline.runner import RunResult, run
from headwater.pipeline.schema import loads
from headwater.pipeline.summary import summary, summary_text
from headwater.train.run_folder import RunFolder
from headwater.train.weights import load_weights
from tests.pipeline.conftest import RECIPE, make_corpus

MASKED = [
    "model.architecture=encoder",
    "model.local_attention=16",
    "model.tie_word_embeddings=true",
    "train.objective=mlm",
    "train.steps=30",
    "train.optimizer.lr=5e-3",
    "train.validation.every=10",
    "train.sampling.every=null",
    "train.precision=fp32",
]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("objectives")
    make_corpus(folder / "corpus")
    (folder / "small.yaml").write_text(RECIPE.format(root=folder / "corpus"))
    return folder


@pytest.fixture(scope="module")
def masked(place: Path) -> RunResult:
    cache = [f"dataset.cache_dir={place / 'cache'}", "dataset.cache_read_ahead_steps=4"]
    return run(place / "small.yaml", workspace=place / "w", overrides=[*MASKED, *cache], reporter=SILENT)


def record(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_masked_model_learns_and_is_validated_by_loss_and_accuracy(masked: RunResult) -> None:
    lines = record(masked.run_folder)
    validated = [line for line in lines if "val_loss" in line]
    assert validated[-1]["val_loss"]["all"] < validated[0]["val_loss"]["all"]
    assert 0 <= validated[-1]["val_accuracy"]["all"] <= 1
    assert validated[-1]["val_accuracy"].keys() == validated[-1]["val_loss"].keys() == {"all", "books", "web"}
    assert not any(key in line for line in lines for key in ("val_perplexity", "val_bits_per_byte"))
    assert all(line["bits_per_byte"] is None for line in lines)
    assert not (masked.run_folder / "samples.jsonl").exists()


def test_the_share_of_cached_samples_is_in_the_record(masked: RunResult, place: Path) -> None:
    ratios = [line["cache_hit_ratio"] for line in record(masked.run_folder)]
    assert ratios[-1] == 1.0
    assert all(0 <= ratio <= 1 for ratio in ratios)
    assert list((place / "cache").rglob("*.tokens"))


def test_the_evaluation_tells_loss_and_accuracy_and_why_there_is_no_more(masked: RunResult) -> None:
    found = parse_json((masked.path("evaluate") / "results.json").read_bytes())
    assert [piece["name"] for piece in found["slices"]] == ["all", "books", "web"]
    whole = found["slices"][0]
    assert whole["masked"] == sum(piece["masked"] for piece in found["slices"][1:]) > 0
    assert whole["masked"] / whole["tokens"] == pytest.approx(0.15, abs=0.05)
    assert whole["loss"] < 6.5  # ln 640, with nothing learned
    assert set(found["not_made"]) == {"baselines", "samples"}
    facts = {"summary": summary(masked), "up_to_date": False, "seconds": 1.0}
    assert "masked tokens of held-out text" in summary_text(facts)
    assert facts["summary"]["serve"] is None
    assert "Masked tokens of the validation split" in (masked.run_folder / "report.html").read_text()


def test_the_export_is_a_modernbert_that_fills_masks_as_ours_does(masked: RunResult) -> None:
    theirs = AutoModelForMaskedLM.from_pretrained(masked.export_folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(masked.export_folder)
    assert theirs.config.model_type == "modernbert"
    assert theirs.config.pad_token_id == tokenizer.pad_token_id
    ours = load_hf(masked.export_folder, dtype=torch.float32)
    assert isinstance(ours, Encoder)
    tokens = tokenizer("the river runs <mask> from the hills", return_tensors="pt")["input_ids"]
    assert tokenizer.mask_token_id in tokens[0].tolist()
    with torch.no_grad():
        expected = theirs.float()(tokens).logits
        torch.testing.assert_close(ours.logits(ours(tokens)), expected, atol=1e-5, rtol=1e-5)


def test_a_masked_run_that_was_stopped_goes_on_bit_for_bit(masked: RunResult, place: Path) -> None:
    workspace = place / "again"
    stops = [*MASKED, "train.checkpoint.every=7", "train.checkpoint.keep=9"]
    done = run(place / "small.yaml", workspace=workspace, overrides=stops, reporter=SILENT)
    folder = RunFolder.open(done.run_folder)
    for ref in folder.checkpoints():  # as if killed soon after step 14
        if ref.step > 14:
            for path in sorted(ref.path.rglob("*"), reverse=True):
                path.unlink() if path.is_file() else path.rmdir()
            ref.path.rmdir()
    (done.run_folder / "final.json").unlink()
    (done.run_folder / "checkpoints" / "newest.json").unlink(missing_ok=True)
    again = run(place / "small.yaml", workspace=workspace, overrides=stops, reporter=SILENT)
    first, second = load_weights(masked.run_folder), load_weights(again.run_folder)
    assert first.tensors.keys() == second.tensors.keys()
    assert all(torch.equal(first.tensors[name], second.tensors[name]) for name in first.tensors)


def test_an_encoder_neither_generates_nor_serves(masked: RunResult) -> None:
    for path in (masked.run_folder, masked.export_folder):
        with pytest.raises(InputError, match="fills masks"):
            load_model(path)


def test_fill_in_the_middle_trains_on_the_named_domains(place: Path) -> None:
    overrides = ["train.objective=fim", 'train.objective.fim_domains=["books"]', "train.objective.fim_rate=1.0"]
    found = run(place / "small.yaml", workspace=place / "fim", until="train", overrides=overrides, reporter=SILENT)
    plain = run(place / "small.yaml", workspace=place / "fim", until="train", reporter=SILENT)
    assert found.run_folder != plain.run_folder
    one, other = record(found.run_folder), record(plain.run_folder)
    assert [line["tokens"] for line in one] == [line["tokens"] for line in other]
    assert [line["domain_tokens"] for line in one] == [line["domain_tokens"] for line in other]
    assert one[-1]["loss"] != other[-1]["loss"]
    with pytest.raises(UserError, match="no domain code"):
        run(place / "small.yaml", workspace=place / "fim", overrides=["train.objective=fim"], reporter=SILENT)


ENCODER = {"architecture": "encoder"}


@pytest.mark.parametrize(
    ("sections", "says"),
    [
        ({"train": {"objective": "mlm"}}, "a decoder reads left to right"),
        ({"model": ENCODER}, "an encoder sees the token"),
        ({"model": ENCODER, "train": {"objective": "mlm"}, "parallel": {"cp": 2}}, "both"),
        ({"model": ENCODER, "train": {"objective": "mlm", "sampling": {"every": 5}}}, "nothing to sample"),
        ({"train": {"objective": {"name": "causal", "mask_rate": 0.3}}}, "no effect on objective causal"),
        ({"train": {"objective": {"name": "mlm", "mask_token_rate": 0.9, "random_token_rate": 0.2}}}, "more than 1"),
        ({"train": {"objective": "mml"}}, "did you mean mlm"),
    ],
)
def test_what_does_not_go_together_is_refused(sections: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError, match=says):
        loads(yaml.safe_dump({"schema": 1, **sections}))


def test_the_name_alone_stands_for_the_section() -> None:
    short = loads("schema: 1\nmodel: {architecture: encoder}\ntrain: {objective: mlm, mlm_probability: 0.3}\n").config
    long = loads("schema: 1\nmodel: {architecture: encoder}\ntrain: {objective: {name: mlm, mask_rate: 0.3}}\n").config
    assert short == long
