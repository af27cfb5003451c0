"""The ladder, decided from the ledger: limits are kept, and nothing that was skipped or slowed down is forgotten."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.dataset import StepOrder
from headwater.dataset.order import SampleRef
from headwater.train.config import TrainConfig
from headwater.train.ledger import NewEntry, RunLedger, record_plan
from headwater.train.phases import plan_run
from headwater.train.recovery_config import RecoveryConfig
from headwater.train.recovery_plan import (
    Trouble,
    choose_rung,
    held_before,
    onset_of,
    planned_change,
    rewind_entries,
    stand_out,
    times_before,
)

PLAN = plan_run(
    TrainConfig(
        global_batch=4,
        phases=[
            {"name": "short", "steps": 60, "seq_len": 16, "global_batch": 4},
            {"name": "long", "steps": 40, "seq_len": 32, "global_batch": 2, "mixture": {"web": 1.0}},
            {"name": "end", "steps": 100, "seq_len": 16, "global_batch": 4},
        ],
    )
)
STREAMS = {"web": 40_000, "books": 30_000}


def planned(folder: Path) -> RunLedger:
    return record_plan(RunLedger(folder / "ledger.jsonl"), PLAN, seed=7, dataset_fingerprint="abc")


def order_of(ledger: RunLedger) -> StepOrder:
    return StepOrder(STREAMS, seed=7, segments=ledger.step_segments())


def hold(ledger: RunLedger, step: int) -> None:
    ledger.append("hold", step=step, at=step - 1, data={"why": ["loss_spike"], "onset": step})


def go_back(ledger: RunLedger, step: int, to: int, samples: list[SampleRef], **more: Any) -> None:
    trouble = Trouble(step, to + 1, ("loss_spike",))
    ledger.append_group(rewind_entries(ledger, trouble, to=to, samples=samples, rung="rewind", **more))


def uses(order: StepOrder, first: int, last: int) -> list[tuple[int, str, int]]:
    samples = range(order.range(first).start, order.range(last).stop)
    return [(ref.seq_len, ref.domain, ref.draw) for ref in order.order.samples(samples)]


def test_rungs_are_taken_in_order_and_each_as_often_as_it_says(tmp_path: Path) -> None:
    ledger, config = planned(tmp_path), RecoveryConfig(rewind={"times": 1}, lower_lr={"times": 1})
    taken = []
    for step in range(30, 60):
        rung = choose_rung(config, ledger, step)
        taken.append(rung)
        if rung == "stop":
            break
        if rung == "skip":
            hold(ledger, step)
        else:
            entries = rewind_entries(ledger, Trouble(step, 20, ("loss_spike",)), rung=rung, to=10, samples=[])
            ledger.append_group(entries)
    assert taken == [*["skip"] * 3, "rewind", *["skip"] * 3, "lower_lr", *["skip"] * 3, "stop"]


def test_a_rung_of_zero_times_is_left_out(tmp_path: Path) -> None:
    ledger = planned(tmp_path)
    assert choose_rung(RecoveryConfig(skip={"times": 0}), ledger, 9) == "rewind"
    assert choose_rung(RecoveryConfig(skip={"times": 0}, rewind={"times": 0}), ledger, 9) == "lower_lr"
    none = RecoveryConfig(skip={"times": 0}, rewind={"times": 0}, lower_lr={"times": 0})
    assert choose_rung(none, ledger, 9) == "stop"


def test_what_is_long_ago_does_not_count(tmp_path: Path) -> None:
    ledger = planned(tmp_path)
    for step in (10, 20, 30):
        hold(ledger, step)
    assert choose_rung(RecoveryConfig(), ledger, 59) == "rewind"
    assert choose_rung(RecoveryConfig(), ledger, 60) == "skip"


def test_held_steps_with_few_good_ones_between_are_one_trouble(tmp_path: Path) -> None:
    ledger = planned(tmp_path)
    for step in (10, 30, 32, 40):
        hold(ledger, step)
    assert held_before(ledger, 41) == [30, 32, 40]
    assert held_before(ledger, 50) == []
    assert onset_of(ledger, Trouble(41, 41, ("loss_spike",))) == 30
    assert onset_of(ledger, Trouble(41, 25, ("loss_spike",))) == 25


def test_going_back_again_for_the_same_trouble_goes_further(tmp_path: Path) -> None:
    ledger = planned(tmp_path)
    assert times_before(ledger, 35) == 0
    go_back(ledger, 38, 30, [])
    assert times_before(ledger, 35) == 1
    assert times_before(ledger, 50) == 0


def test_a_rewind_skips_the_samples_and_no_others(tmp_path: Path) -> None:
    ledger = planned(tmp_path)
    before = order_of(ledger)
    guilty = [*before.batch(50)[:2], *before.batch(52)]
    go_back(ledger, 53, 40, guilty)
    after = order_of(RunLedger(ledger.path))
    assert uses(after, 1, 40) == uses(before, 1, 40)
    bad = {(ref.seq_len, ref.domain, ref.draw) for ref in guilty}
    for domain in STREAMS:
        kept = [use for use in uses(before, 41, 200) if use[1] == domain and use not in bad]
        read = [use for use in uses(after, 41, 200) if use[1] == domain]
        assert len(set(read)) == len(read)
        for seq_len in (16, 32):
            was, now = ([draw for length, _, draw in found if length == seq_len] for found in (kept, read))
            assert now[: len(was)] == was[: len(now)]


@settings(max_examples=15, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 199), st.integers(0, 60), st.lists(st.integers(0, 7), max_size=6)),
        min_size=1,
        max_size=5,
    )
)
def test_however_often_a_run_goes_back_no_sample_comes_twice_and_none_skipped_returns(
    rewinds: list[tuple[int, int, list[int]]],
) -> None:
    """Across phases of other lengths, and behind rewinds made before."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        ledger = planned(Path(folder))
        bad: set[tuple[int, str, int]] = set()
        for step, back, rows in rewinds:
            order, to = order_of(ledger), max(0, step - 1 - back)
            batches = [ref for s in range(max(to + 1, step - 3), step + 1) for ref in order.batch(s)]
            guilty = [batches[row % len(batches)] for row in rows]
            bad |= {(ref.seq_len, ref.domain, ref.draw) for ref in guilty}
            head = uses(order, 1, to) if to else []
            go_back(ledger, step, to, guilty)
            after = order_of(RunLedger(ledger.path))
            assert (uses(after, 1, to) if to else []) == head
            read = uses(after, to + 1, 200)
            assert len(set(read)) == len(read)
            assert not bad & set(read)


def test_a_lower_rate_outlives_a_later_rewind_behind_it(tmp_path: Path) -> None:
    ledger = planned(tmp_path)
    go_back(ledger, 53, 40, [], lower_lr=(0.5, 150))
    assert [ledger.lr_factor(step) for step in (40, 41, 150, 151)] == [1.0, 0.5, 0.5, 1.0]
    go_back(ledger, 60, 30, [], lower_lr=(0.1, 100))
    assert [round(ledger.lr_factor(step), 3) for step in (31, 41, 100, 101)] == [0.1, 0.05, 0.05, 0.5]


def test_a_group_torn_by_a_kill_is_as_if_it_had_never_been(tmp_path: Path) -> None:
    ledger = planned(tmp_path)
    hold(ledger, 52)
    whole, path = ledger.path.read_bytes(), ledger.path
    go_back(ledger, 53, 40, order_of(ledger).batch(52), lower_lr=(0.5, 80))
    done = path.read_bytes()
    assert len(list(RunLedger(path))) == len(list(ledger))
    for cut in range(len(whole), len(done) - 1, 3):
        path.write_bytes(done[:cut])
        torn = RunLedger(path)
        assert torn.held(52), "the entry before the group is there"
        assert not torn.rewinds()
        if cut % 20 == 0:
            again = order_of(torn).batch(52)
            go_back(torn, 53, 40, again, lower_lr=(0.5, 80))
            assert path.read_bytes() == done


def test_checkpoints_that_a_rewind_went_back_behind_are_off_the_way(tmp_path: Path) -> None:
    ledger = planned(tmp_path)
    early = ledger.head
    hold(ledger, 52)
    late = ledger.head
    go_back(ledger, 53, 40, [])
    assert ledger.leads_on_from(40, early)
    assert not ledger.leads_on_from(48, early)
    assert not ledger.leads_on_from(52, late)
    assert ledger.leads_on_from(52, ledger.head), "made again after the rewind"
    assert not ledger.leads_on_from(40, "1" * 64)
    assert not ledger.held(52)


def test_samples_far_above_good_ones_stand_out() -> None:
    good = [3.0 + 0.1 * (number % 5) for number in range(16)]
    assert stand_out([3.2, 7.0, 3.9, math.inf, math.nan], good) == [False, True, False, True, False]
    assert stand_out([3.2, 7.0], []) == [False, False]
    assert stand_out([3.2], [math.inf, math.nan]) == [False]


@pytest.mark.parametrize(("step", "changed"), [(60, False), (61, True), (92, True), (93, False), (101, True)])
def test_the_steps_after_a_planned_change_are_told(step: int, changed: bool) -> None:
    assert planned_change(PLAN, step) is changed


def test_a_ledger_without_a_rewind_reads_as_before(tmp_path: Path) -> None:
    ledger = planned(tmp_path)
    ledger.append_group([NewEntry("lr", 31, 30, {"factor": 0.5, "until": 40})])
    assert ledger.append("lr", step=31, at=30, data={"factor": 0.5, "until": 40}).number == len(ledger) - 1
    assert len(RunLedger(ledger.path)) == len(ledger)
