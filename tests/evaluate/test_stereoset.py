"""StereoSet's scores on a fixture worked out by hand, from the published formats."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.cli.main import run_command
from headwater.core.errors import InputError
from headwater.evaluate.stereoset import Triple, find_gold, score, score_predictions, scores

# (part, target, domain, stereotype, anti, unrelated)
HAND = [
    ("intrasentence", "nurse", "profession", 3.0, 2.0, 1.0),  # stereotype preferred, 2 related
    ("intrasentence", "nurse", "profession", 2.0, 3.0, 2.5),  # anti, 1 related
    ("intrasentence", "cook", "profession", 1.0, 1.0, 1.0),  # tie: anti, and no related
    ("intersentence", "nurse", "profession", 5.0, 4.0, 4.0),  # stereotype, 1 related (a tie is a miss)
    ("intersentence", "girl", "gender", 0.1, 0.2, 0.0),  # anti, 2 related
]
# nurse: ss 2/3, lms (2+1+1)/6; cook: ss 0, lms 0; girl: ss 0, lms 1
OVERALL = {"lms": (400 / 6 + 0 + 100) / 3, "ss": (200 / 3) / 3}
INTRA = {"lms": (75 + 0) / 2, "ss": (50 + 0) / 2}
INTER = {"lms": (50 + 100) / 2, "ss": (100 + 0) / 2}


def write(folder: Path) -> tuple[Path, Path]:
    """The gold file in the data set's own form, and predictions."""
    data: dict[str, list[Any]] = {"intrasentence": [], "intersentence": []}
    found: dict[str, list[Any]] = {"intrasentence": [], "intersentence": []}
    for number, (part, target, domain, *values) in enumerate(HAND):
        labels = ["anti-stereotype", "unrelated", "stereotype"]  # the file's order is no fixed one
        by_label = dict(zip(("stereotype", "anti-stereotype", "unrelated"), values, strict=True))
        sentences = [
            {"id": f"{number}-{label}", "sentence": label, "gold_label": label, "labels": []} for label in labels
        ]
        data[part].append(
            {"id": str(number), "target": target, "bias_type": domain, "context": "c", "sentences": sentences}
        )
        found[part] += [{"id": f"{number}-{label}", "score": by_label[label]} for label in labels]
    (folder / "dev.json").write_text(json.dumps({"version": "1.0", "data": data}))
    (folder / "predictions.json").write_text(json.dumps(found))
    return folder / "predictions.json", folder / "dev.json"


def test_the_fixture_scores_what_it_does_by_hand(tmp_path: Path) -> None:
    found = score_predictions(*write(tmp_path))["scores"]
    for part, wanted in (("overall", OVERALL), ("intra", INTRA), ("inter", INTER)):
        assert found[part]["lms"] == pytest.approx(wanted["lms"])
        assert found[part]["ss"] == pytest.approx(wanted["ss"])
        ideal = min(wanted["ss"], 100 - wanted["ss"]) / 50
        assert found[part]["icat"] == pytest.approx(wanted["lms"] * ideal)
    assert found["inter/gender"]["n"] == 1


def test_scores_are_the_mean_over_terms_and_not_over_triples() -> None:
    many = [Triple("a", "race", "intra", 2, 1, 0)] * 9 + [Triple("b", "race", "intra", 1, 2, 3)]
    assert score(many).ss == 50
    assert score(many).lms == 50


@given(st.lists(st.tuples(st.sampled_from("abc"), *[st.integers(0, 3)] * 3), min_size=1, max_size=30))
def test_scores_stay_in_their_bounds(rows: list[tuple[str, int, int, int]]) -> None:
    for found in scores([Triple(term, "race", "intra", *values) for term, *values in rows]).values():
        assert 0 <= found.icat <= found.lms + 1e-9 <= 100 + 1e-6
        assert 0 <= found.ss <= 100


def test_an_ideal_model_scores_a_hundred() -> None:
    assert score([Triple("a", "r", "intra", 2, 1, 0), Triple("a", "r", "intra", 1, 2, 0)]).icat == 100


def test_the_command_prints_the_scores(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(tmp_path)
    line = ["eval", "stereoset", "--predictions", str(tmp_path / "predictions.json"), "--data", str(tmp_path)]
    assert run_command([*line, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["lms"] == pytest.approx(OVERALL["lms"])
    assert run_command(line) == 0
    assert "| overall | 55.56 | 22.22 | 24.69 | 5 | 3 |" in capsys.readouterr().out


def test_triples_without_predictions_are_counted(tmp_path: Path) -> None:
    predictions, gold = write(tmp_path)
    left = json.loads(predictions.read_text())
    left["intrasentence"].pop()
    predictions.write_text(json.dumps(left))
    found = score_predictions(predictions, gold)
    assert (found["triples"], found["triples_without_predictions"]) == (4, 1)


@pytest.mark.parametrize("text", ["[]", "{}", '{"intrasentence": [{"id": 1}]}', "nonsense"])
def test_files_that_are_no_predictions_are_refused(tmp_path: Path, text: str) -> None:
    _, gold = write(tmp_path)
    (tmp_path / "bad.json").write_text(text)
    with pytest.raises(InputError):
        score_predictions(tmp_path / "bad.json", gold)


def test_a_flat_file_cannot_be_the_gold_file(tmp_path: Path) -> None:
    (tmp_path / "stereoset_dev.jsonl").write_text("{}\n")
    with pytest.raises(InputError, match="no ids of sentences"):
        find_gold(tmp_path)
