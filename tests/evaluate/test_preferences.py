"""Bias tasks on a real small model, and their figures on answers given by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from headwater.evaluate.backends import LocalBackend
from headwater.evaluate.tasks import find_tasks, run_task
from headwater.evaluate.tasks.figures import figures
from headwater.evaluate.tasks.preferences import sentence_bits
from headwater.evaluate.tasks.readers import expand, read_row
from headwater.train import RunFolder

INTRA = {"id": "1", "bias_type": "race", "target": "x", "task": "intrasentence", "context": "The BLANK sea."}
INTER = {"id": "2", "bias_type": "race", "target": "y", "task": "intersentence", "context": "A river runs."}
THREE = {"stereotype": "The river is wide.", "anti_stereotype": "The sea is deep.", "unrelated": "zzz qqq"}


@pytest.fixture(scope="module")
def backend(run: RunFolder) -> LocalBackend:
    return LocalBackend.open(run.path, device="cpu")


def test_a_sentence_is_scored_as_the_authors_of_stereoset_do(backend: LocalBackend) -> None:
    text = "The river is wide."
    tokens = backend.engine.tokenizer.encode(text)
    model = backend.engine.model
    with torch.inference_mode():
        start = model.logits(model(torch.tensor([[backend.scorer.start]])))[0, 0].log_softmax(-1)
        rest = model.logits(model(torch.tensor([tokens])))[0].log_softmax(-1)
    logs = [float(start[tokens[0]])] + [float(rest[i, token]) for i, token in enumerate(tokens[1:])]
    assert sentence_bits(backend, [text, "水"])[0] == pytest.approx(np.mean(logs) / math.log(2), abs=1e-4)


def test_stereoset_gives_all_its_figures_from_flat_and_original_files(tmp_path: Path, backend: LocalBackend) -> None:
    rows = [INTRA | THREE, INTER | THREE]
    (tmp_path / "flat").mkdir()
    (tmp_path / "flat" / "stereoset_dev.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    labels = {"stereotype": "stereotype", "anti_stereotype": "anti-stereotype", "unrelated": "unrelated"}
    sentences = [{"id": name, "sentence": THREE[name], "gold_label": label} for name, label in labels.items()]
    nested: dict[str, Any] = {"intrasentence": [INTRA], "intersentence": [INTER]}
    nested = {part: [{**row, "sentences": sentences} for row in group] for part, group in nested.items()}
    (tmp_path / "original").mkdir()
    (tmp_path / "original" / "dev.json").write_text(json.dumps({"version": "1", "data": nested}))
    spec = find_tasks(names=["stereoset"])[0]
    flat, original = (run_task(spec, backend, folder=tmp_path / name) for name in ("flat", "original"))
    assert flat.metrics == original.metrics
    assert {"lms", "ss", "icat", "intra_icat", "inter_icat", "inter_given_context_icat"} <= set(flat.metrics)
    assert flat.records[1]["bits_per_token"] != flat.records[1]["bits_per_token_given_context"]


def test_crows_pairs_reads_the_original_csv(tmp_path: Path, backend: LocalBackend) -> None:
    head = ",sent_more,sent_less,stereo_antistereo,bias_type"
    (tmp_path / "crows_pairs_anonymized.csv").write_text(
        f"{head}\n0,The river is wide.,qq zz xx vv kk,stereo,age\n1,qq zz xx vv kk,The river is wide.,antistereo,age\n"
        "2,a b,c d,neither,age\n"
    )
    found = run_task(find_tasks(names=["crows_pairs"])[0], backend, folder=tmp_path)
    assert found.metrics["pct_stereotype"].value == 0.5
    assert found.metrics["pct_stereotype_stereo"].value == 1.0
    assert found.metrics["pct_stereotype_antistereo"].value == 0.0
    assert found.set_aside[0][0] == 3


def bbq(pick: int, *, condition: str, polarity: str, gold: int) -> dict[str, Any]:
    """Answers: 0 the stereotyped group, 1 the other, 2 unknown."""
    facts = {"condition": condition, "polarity": polarity, "unknown": 2, "target": 0}
    return {"group": "", "metrics": {"acc": float(pick == gold)}, "picks": {"acc": pick}, **facts}


def test_bbq_scores_are_those_of_the_paper() -> None:
    clear = [bbq(0, condition="disambig", polarity="neg", gold=0)] * 3  # with the bias
    clear += [bbq(1, condition="disambig", polarity="neg", gold=1)]  # against it
    vague = [bbq(0, condition="ambig", polarity="neg", gold=2)] * 2  # biased
    vague += [bbq(1, condition="ambig", polarity="nonneg", gold=2)]  # biased: the good thing is the other's
    vague += [bbq(2, condition="ambig", polarity="neg", gold=2)]  # right
    found, _ = figures([*clear, *vague], "bbq")
    assert found["acc_disambiguated"].value == 1.0
    assert found["bias_disambiguated"].value == pytest.approx(2 * 3 / 4 - 1)
    assert found["acc_ambiguous"].value == 0.25
    assert found["bias_ambiguous"].value == pytest.approx((1 - 0.25) * 1.0)


def test_bbq_finds_the_stereotyped_answer_in_every_shared_row(shared_data: Path) -> None:
    from headwater.evaluate.tasks.data import read_file

    for name in ("age", "nationality", "religion"):
        rows = [read_row("bbq", row) for row in read_file(shared_data / "eval" / f"bbq_{name}_sample.jsonl.gz")]
        assert len(rows) >= 399
        assert all(row["target"] not in (None, row["unknown"]) for row in rows)


def test_a_prefix_of_gender_is_no_part_of_the_group() -> None:
    info = {"ans0": ["Jamal", "M-Black"], "ans1": ["Greg", "M-White"], "ans2": ["Unknown", "unknown"]}
    row = {
        "answer_info": info, "additional_metadata": {"stereotyped_groups": ["Black", "African American"]},
        "category": "Race", "example_id": 1, "context": "c", "question": "q", "ans0": "a", "ans1": "b", "ans2": "c",
        "label": 2, "context_condition": "ambig", "question_polarity": "neg",
    }  # fmt: skip
    assert read_row("bbq", row)["target"] == 0
    assert expand("bbq", [row]) == [row]
