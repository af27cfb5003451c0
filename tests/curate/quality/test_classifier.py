"""The classifier a user fits."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest

from headwater.core.errors import InputError, UserError
from headwater.curate.config import CurateConfig
from headwater.curate.quality.classifier import FitSettings, auc, fit, load
from headwater.curate.quality.config import ClassifierConfig, QualityConfig
from headwater.curate.sift import CLASSIFIER, sift
from tests.conftest import RunCli
from tests.curate.helpers import read_zst, write_rows

GOOD_WORDS = "河水 田地 父亲 牛 山上 燕子 西风 村里 楼上 小船 the river, the fields, my father and the hill"
BAD_WORDS = "特惠 酒店 热线 低价 机票 抢购 包邮 满减 优惠券 cheap tickets, casino bonus, click and win money now"
GOOD, BAD = GOOD_WORDS.split(), BAD_WORDS.split()


def samples(words: list[str], count: int, seed: int) -> list[str]:
    """Texts drawn from words."""
    draw = random.Random(seed)
    return [" ".join(draw.choices(words, k=draw.randint(8, 40))) for _ in range(count)]


def test_two_kinds_of_text_are_told_apart_and_scores_are_probabilities(tmp_path: Path) -> None:
    report = fit(samples(GOOD, 150, 1), samples(BAD, 150, 2), tmp_path / "m.safetensors")
    assert report["held_out"]["auc"] > 0.99
    model = load(tmp_path / "m.safetensors")
    good, bad = model.scores(samples(GOOD, 100, 3)), model.scores(samples(BAD, 100, 4))
    assert good.min() > 0.5 > bad.max()
    assert ((good >= 0) & (good <= 1)).all()
    assert model.report == json.loads(json.dumps(report))


def test_scores_are_calibrated(tmp_path: Path) -> None:
    """Of texts that score p, about p are good: words are drawn from both lists, more or less of each."""
    draw = random.Random(5)

    def mixed(count: int) -> list[tuple[str, int]]:
        found = []
        for _ in range(count):
            label = draw.random() < 0.5
            share = 0.6 if label else 0.4
            words = [draw.choice(GOOD if draw.random() < share else BAD) for _ in range(12)]
            found.append((" ".join(words), int(label)))
        return found

    train, test = mixed(1500), mixed(1500)
    out = tmp_path / "m.safetensors"
    fit([t for t, y in train if y], [t for t, y in train if not y], out)
    scores = load(out).scores([text for text, _ in test])
    labels = np.array([label for _, label in test])
    for low, high in ((0.2, 0.4), (0.4, 0.6), (0.6, 0.8)):
        inside = (scores >= low) & (scores < high)
        assert inside.sum() > 50
        assert abs(labels[inside].mean() - scores[inside].mean()) < 0.12


def test_the_same_samples_in_any_order_give_the_same_file(tmp_path: Path) -> None:
    good, bad = samples(GOOD, 60, 1), samples(BAD, 60, 2)
    fit(good, bad, tmp_path / "a")
    fit(good[::-1] + good[:5], bad[::-1], tmp_path / "b")
    fit(good, bad, tmp_path / "c", FitSettings(seed=1))
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert (tmp_path / "a").read_bytes() != (tmp_path / "c").read_bytes()


def test_auc_is_the_chance_that_a_good_text_scores_higher() -> None:
    scores, labels = np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1])
    assert auc(scores, labels) == pytest.approx((1 + 0.5 + 1 + 1) / 4)
    assert auc(1 - scores, labels) == pytest.approx(0.125)


def test_it_is_a_rule_among_rules(tmp_path: Path) -> None:
    model = tmp_path / "m.safetensors"
    fit(samples(GOOD, 80, 1), samples(BAD, 80, 2), model)
    quality = QualityConfig(rules=(), classifier=ClassifierConfig(model=str(model), min_score=0.5))
    config = CurateConfig(quality=quality, language={"accepted": ()})  # type: ignore[arg-type]
    texts = [*samples(GOOD, 3, 7), *samples(BAD, 3, 8), "", "x = 1\nprint('cheap casino tickets')\n"]
    rows = [(str(n), text, "python" if "print" in text else "zh", "web", "{}") for n, text in enumerate(texts)]
    batch = sift(rows, config)
    assert [found.rule for found in batch.cleaned] == [""] * 3 + [CLASSIFIER] * 3 + ["clean.too-short", ""]
    assert batch.cleaned[3].version == 1
    assert "under 0.5" in batch.cleaned[3].detail


def test_too_few_samples_and_files_that_are_no_model_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="3 negative samples"):
        fit(samples(GOOD, 60, 1), ["a", "b", "c", "c"], tmp_path / "m")
    (tmp_path / "no").write_bytes(b"not a model")
    with pytest.raises(InputError, match="cannot read the quality classifier"):
        load(tmp_path / "no")
    with pytest.raises(InputError, match="cannot read the quality classifier"):
        load(tmp_path / "missing")
    with pytest.raises(UserError, match="bits is 40"):
        FitSettings(bits=40)


def test_a_file_fitted_anew_is_read_anew(tmp_path: Path) -> None:
    good, bad = samples(GOOD, 60, 1), samples(BAD, 60, 2)
    out = tmp_path / "new" / "folder" / "m"
    fit(good, bad, out)
    assert load(out).scores(good[:20]).min() > 0.5
    fit(bad, good, out)
    assert load(out).scores(good[:20]).max() < 0.5


def test_odd_texts_have_scores_too(tmp_path: Path) -> None:
    fit(samples(GOOD, 40, 1), samples(BAD, 40, 2), tmp_path / "m")
    odd = ["", " ", "\ud800", "😀" * 10, "字" * 200_000, "a" * 200_000, "\0\n\t"]
    scores = load(tmp_path / "m").scores(odd)
    assert np.isfinite(scores).all()


def test_fit_score_and_filter_from_the_command_line(tmp_path: Path, run_cli: RunCli) -> None:
    write_rows(tmp_path / "good.jsonl", [{"text": text} for text in samples(GOOD, 60, 1)])
    write_rows(tmp_path / "bad.jsonl", [{"text": text} for text in samples(BAD, 60, 2)])
    result = run_cli("curate", "classifier", "fit", "--positive", "good.jsonl", "--negative", "bad.jsonl", "--out",
                     "m.safetensors", "--json")  # fmt: skip
    assert result.json["held_out"]["auc"] > 0.95
    result = run_cli("curate", "classifier", "score", "good.jsonl", "--model", "m.safetensors", "--json")
    assert result.json["quantiles"]["0.05"] > 0.5
    rows = [{"id": n, "text": text} for n, text in enumerate([*samples(GOOD, 4, 5), *samples(BAD, 4, 6)])]
    write_rows(tmp_path / "new.jsonl", rows)
    run_cli("curate", "filter", "new.jsonl", "--rules", "none", "--classifier", "m.safetensors", "--out", "f", "--json")
    assert [row["id"] for row in read_zst(tmp_path / "f" / "kept.jsonl.zst")] == [0, 1, 2, 3]
    assert {row["rule"] for row in read_zst(tmp_path / "f" / "removed.jsonl.zst")} == {CLASSIFIER}
