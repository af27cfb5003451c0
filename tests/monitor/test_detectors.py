"""Each detector finds the fault it is for within its window, keeps quiet on healthy runs, and survives a resume."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from headwater.core.errors import InputError
from headwater.core.jsonl import json_safe, parse_json
from headwater.monitor.config import DetectorsConfig
from headwater.monitor.detectors import Alert, DetectorSet, RobustWindow, default_detectors
from headwater.monitor.detectors.table import filled
from tests.monitor.synthetic import clean_run

Rows = list[dict[str, Any]]
AT = 600
"""Steps before a fault."""


def observe(rows: Sequence[dict[str, Any]], detectors: DetectorSet | None = None, first: int = 1) -> list[Alert]:
    detectors = detectors or DetectorSet()
    return [alert for step, row in enumerate(rows, start=first) for alert in detectors.observe(step, row)]


def every(key: str, change: Callable[[float, int, random.Random], float], length: int | None = None) -> Any:
    def inject(rows: Rows) -> None:
        draw = random.Random(5)
        for age, row in enumerate(rows[AT : None if length is None else AT + length]):
            row[key] = change(row[key], age, draw)

    return inject


def sampled(key: str, name: str, value: float) -> Any:
    def inject(rows: Rows) -> None:
        for row in rows[AT:]:
            if key in row:
                row[key] = {**row[key], **({name: value} if name else dict.fromkeys(row[key], value))}

    return inject


def put(key: str, value: Any, length: int | None = None) -> Any:
    def inject(rows: Rows) -> None:
        for row in rows[AT : None if length is None else AT + length]:
            row[key] = value

    return inject


def rank_two_slow(rows: Rows) -> None:
    for row in rows[AT:]:
        row["rank_seconds"][2] *= 2


def nothing_learned(rows: Rows) -> None:
    draw = random.Random(5)
    for row in rows:
        row["loss"] = 9.2 + 0.05 * draw.gauss(0, 1)


def stuck(rows: Rows, at: int = AT) -> None:
    draw = random.Random(5)
    level = median(row["loss"] for row in rows[at - 9 : at])
    for row in rows[at:]:
        row["loss"] = level + 0.05 * draw.gauss(0, 1)


FAULTS: dict[str, tuple[Any, int]] = {
    "non_finite": (every("loss", lambda *_: math.nan, 1), 0),
    "loss_spike": (every("loss", lambda loss, *_: loss * 1.4, 1), 0),
    "moving_average": (every("loss", lambda loss, *_: loss * 1.9, 1), 0),
    "gradient_explosion": (every("grad_norm", lambda norm, *_: norm * 200, 1), 0),
    "gradient_vanishing": (every("grad_norm", lambda norm, *_: norm * 1e-8), 20),
    "divergence": (every("loss", lambda loss, age, _: loss * (1 + 0.001 * age)), 200),
    "oscillation": (every("loss", lambda loss, _age, draw: loss * (1 + draw.choice((-0.12, 0.12)))), 100),
    "plateau": (stuck, 900),  # early in a run it is 200 steps, below
    "slow_data": (every("data_wait_seconds", lambda waited, *_: waited + 0.25), 20),
    "slow_steps": (every("step_seconds", lambda seconds, *_: 2 * seconds), 60),
    "slow_rank": (rank_two_slow, 2),
    "memory_creep": (every("mem_allocated", lambda memory, age, _: memory + 4e6 * age), 150),
    "memory_near_limit": (every("mem_allocated", lambda *_: 15.5e9), 1),
    "old_checkpoint": (every("checkpoint_age_steps", lambda _age, age, __: age), 126),
    "disk_near_full": (every("disk_free_bytes", lambda *_: 1e9), 0),
    "changed_weights": (put("changed_weights", ["model.norm.weight"], 1), 0),
    "dead_heads": (sampled("head_activity_ratio", "1.0", 0.001), 150),
    "tensor_gradients": (sampled("param_grad_norm", "layer2", 3e5), 50),
    "no_updates": (sampled("update_ratio", "", 1e-6), 100),
}
"""By detector: the fault, and the steps within which it is found."""


def test_every_detector_has_a_fault() -> None:
    assert {detector.name for detector in default_detectors()} == {*FAULTS, "no_convergence"}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_within_its_window_and_not_before(name: str) -> None:
    inject, window = FAULTS[name]
    for seed in range(2):
        rows = clean_run(AT + window + 20, seed, tails=6)
        inject(rows)
        alerts = [alert for alert in observe(rows) if alert.detector == name]
        assert alerts, f"seed {seed}: not found"
        assert AT < alerts[0].step <= AT + 1 + window, f"seed {seed}: {alerts[0]}"
        assert alerts[0].message
        json.dumps(json_safe(alerts[0].evidence))


def test_a_loss_that_stays_that_of_a_guess_is_found_and_a_trained_model_is_not() -> None:
    rows = clean_run(260, 0)
    nothing_learned(rows)
    assert [alert.step for alert in observe(rows) if alert.detector == "no_convergence"] == [180]
    for row in rows:
        row["loss"] -= 6.5
    assert "no_convergence" not in {alert.detector for alert in observe(rows)}


def test_a_plateau_early_in_a_run_is_found_within_its_window() -> None:
    for seed in range(4):
        rows = clean_run(400, seed)
        stuck(rows, at=180)
        found = [alert for alert in observe(rows) if alert.detector == "plateau"]
        assert 180 < found[0].step <= 380, f"seed {seed}: {found}"
        assert found[0].onset > 100


def test_only_frequencies_learned_is_told_from_a_model_that_rests_there() -> None:
    for shuffled in (True, False):
        rows, draw = clean_run(300, 3), random.Random(5)
        for age, row in enumerate(rows):
            rests = 6.4 if shuffled or age < 200 else 6.4 - 0.004 * (age - 200)
            row["loss"] = max(rests, 9.2 - 0.05 * age) + 0.05 * draw.gauss(0, 1)
            row |= {"unigram_loss": 6.35, "lr_share": min(1.0, age / 20)}
        found = [alert.step for alert in observe(rows) if alert.detector == "no_convergence"]
        assert found == ([250] if shuffled else [])  # half of the rate at step 11, and 240 steps


def test_a_planned_change_is_no_fault() -> None:
    rows = clean_run(900, 4, tails=6)
    for row in rows[500:]:
        row |= {"loss": row["loss"] + 1.2, "phase": "another mixture"}
    assert observe(rows) == []
    early = [dict(row, unigram_loss=2.0, phase="run" if step < 150 else "other") for step, row in enumerate(rows[:400])]
    assert observe(early) == []
    rows[540]["loss"] += 2
    assert ("loss_spike", 541) in {(alert.detector, alert.step) for alert in observe(rows)}


def test_one_odd_gradient_is_no_explosion_and_a_row_of_them_is() -> None:
    rows = clean_run(700, 4)
    rows[500]["grad_norm"] *= 25
    assert observe(rows) == []
    for row in rows[600:606]:
        row["grad_norm"] *= 25
    (alert,) = observe(rows)
    assert (alert.detector, alert.step, alert.onset) == ("gradient_explosion", 604, 601)


def test_updates_that_leave_weights_as_they_were_are_found_in_five_steps() -> None:
    rows = clean_run(500, 4)
    for row in rows[400:]:
        row["weights_moved"] = False
    (alert,) = observe(rows)
    assert (alert.detector, alert.step, alert.onset) == ("no_updates", 405, 400)


def test_small_updates_at_a_small_rate_are_no_fault() -> None:
    rows = clean_run(900, 4)
    for age, row in enumerate(rows):
        row["lr_share"] = max(1e-4, 1 - age / 800)
        row |= {key: {n: v * row["lr_share"] for n, v in row[key].items()} for key in ("update_ratio",) if key in row}
    assert observe(rows) == []


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_slow_rank_is_compared_with_the_others(ranks: int) -> None:
    rows = clean_run(60, 1)
    for row in rows:
        row["rank_seconds"] = [0.3] * (ranks - 1) + [0.5]
    alerts = [alert for alert in observe(rows) if alert.detector == "slow_rank"]
    assert [(alert.step, alert.evidence["rank"]) for alert in alerts] == [(3, ranks - 1)]


def test_a_spike_does_not_hide_the_next_one_and_a_burst_is_said_once() -> None:
    rows = clean_run(700, 1)
    rows[599]["loss"] *= 20
    for row in rows[619:624]:
        row["loss"] *= 2
    assert [alert.step for alert in observe(rows) if alert.detector == "loss_spike"] == [600, 620]


def test_a_new_level_is_accepted_after_a_while() -> None:
    rows = clean_run(AT, 1) + clean_run(AT, 2)
    for row in rows[AT:]:
        row["loss"] += 6
    late = [alert for alert in observe(rows) if alert.step > AT + 100]
    assert not [alert for alert in late if alert.detector in ("loss_spike", "moving_average")]


def test_a_moment_of_a_busy_machine_is_not_a_slow_run() -> None:
    rows = clean_run(900, 1)
    for row in rows[500:530]:
        row["step_seconds"] *= 2
    for row in rows:
        row["step_seconds"] /= 10
    assert observe(rows) == []


def test_another_batch_size_is_not_a_slow_step() -> None:
    rows = clean_run(900, 1)
    for row in rows[500:]:
        row["step_tokens"] *= 2
        row["step_seconds"] *= 2
    assert observe(rows) == []


@pytest.mark.parametrize("tails", [None, 6], ids=["gaussian", "heavy"])
def test_healthy_runs_have_at_most_one_false_alarm_in_ten_thousand_steps(tails: int | None) -> None:
    alarms = [alert for seed in range(8) for alert in observe(clean_run(2_000, 100 + seed, tails=tails))]
    assert len(alarms) <= 1.6, alarms


def test_the_first_steps_of_many_runs_are_quiet_and_a_spike_in_them_is_seen() -> None:
    runs = [clean_run(90, 1_000 + seed, tails=6) for seed in range(100)]
    assert len([alert for rows in runs for alert in observe(rows)]) <= 1
    for rows in runs[:20]:
        rows[59]["loss"] += 2.0
        assert ("loss_spike", 60) in {(alert.detector, alert.step) for alert in observe(rows)}


@pytest.mark.soak
def test_over_a_hundred_thousand_healthy_steps_there_is_at_most_one_false_alarm_in_ten_thousand() -> None:
    alarms = [
        alert
        for tails in (None, 6)
        for seed in range(5)
        for alert in observe(clean_run(10_000, 200 + seed, tails=tails, noise=0.01 + 0.005 * seed))
    ]
    assert len(alarms) <= 10, alarms


@pytest.mark.parametrize("cut", [300, AT - 1, AT + 7, AT + 90])
def test_a_resume_in_the_middle_changes_no_alert(cut: int) -> None:
    rows = clean_run(AT + 200, 3, tails=6)
    for name in ("loss_spike", "gradient_vanishing", "slow_data", "slow_steps", "slow_rank", "memory_creep"):
        FAULTS[name][0](rows)
    FAULTS["dead_heads"][0](rows)
    straight = observe(rows)
    assert len({alert.detector for alert in straight}) >= 6
    before, after = DetectorSet(), DetectorSet()
    first = observe(rows[:cut], before)
    after.load_state_dict(parse_json(json.dumps(before.state_dict()).encode()))
    assert first + observe(rows[cut:], after, cut + 1) == straight
    assert after.state_dict().keys() == before.state_dict().keys()


def test_figures_that_are_missing_or_of_another_kind_are_passed_over() -> None:
    odd: Rows = [{}, {"loss": None}, {"loss": "three", "grad_norm": True, "rank_seconds": 3, "update_ratio": None}]
    assert observe(odd * 100) == []


def test_thresholds_of_the_recipe_are_those_of_the_detectors() -> None:
    rows = clean_run(500, 2)
    rows[400]["loss"] *= 1.3
    names = {alert.detector for alert in observe(rows, DetectorSet(default_detectors(DetectorsConfig())))}
    strict = DetectorsConfig(moving_average_factor=1.2, grad_norm_high=1e-3, data_wait_share=0.001)
    assert names == {"loss_spike"}
    found = {alert.detector for alert in observe(rows, DetectorSet(default_detectors(strict)))}
    assert found >= {"moving_average", "gradient_explosion", "slow_data"}


def test_a_robust_window_withstands_wrong_values() -> None:
    window = RobustWindow(101)
    for value in range(101):
        window.add(1e9 if value % 3 == 0 else 10 + (value % 5) / 10)
    assert 10 <= window.median <= 10.5
    assert window.score(10.2) < 1
    constant = RobustWindow(4, floor_ratio=0.0)
    constant.add(2.0)
    assert (constant.score(3.0), constant.score(2.0), constant.score(1.0)) == (math.inf, 0.0, -math.inf)


def test_a_state_of_another_version_leaves_no_half_filled_detector() -> None:
    before, after = DetectorSet(), DetectorSet()
    for step in range(1, 100):
        before.observe(step, {"loss": 3.0, "grad_norm": 1.0})
    state = before.state_dict()
    state["detectors"]["gradient_explosion"] = {"window": [1.0]}  # a key is missing
    del state["detectors"]["non_finite"]
    assert after.load_state_dict(state) == ["non_finite", "gradient_explosion"]
    fresh = {detector.name: detector.state_dict() for detector in DetectorSet().detectors}
    assert after.state_dict()["detectors"]["gradient_explosion"] == fresh["gradient_explosion"]
    assert after.state_dict()["detectors"]["loss_spike"] == before.state_dict()["detectors"]["loss_spike"]


def test_the_page_has_the_table_of_the_detectors() -> None:
    page = (Path(__file__).resolve().parents[2] / "docs" / "watch.md").read_text("utf-8")
    assert filled(page) == page, "run `python -m headwater.monitor.detectors.table docs/watch.md`"
    with pytest.raises(InputError, match="no place for the table"):
        filled("# another page")
