"""The run ledger: append-only, chained, and never about what is already done."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import CorruptArtifactError
from headwater.train.config import TrainConfig
from headwater.train.ledger import GENESIS, RunLedger, record_plan
from headwater.train.phases import plan_run

CONFIG = TrainConfig(
    steps=100,
    global_batch=32,
    seq_len=256,
    mixture={"web": 0.7, "code": 0.3},
    batch_ramp={"start": 16, "increment": 8, "steps": 10},
    phases=[
        {"name": "stable", "share": 0.8},
        {"name": "decay", "share": 0.2, "mixture": {"code": 1.0}, "seq_len": 512, "rope_theta": 1e6},
    ],
)


def planned(path: Path) -> RunLedger:
    ledger = RunLedger(path)
    record_plan(ledger, plan_run(CONFIG), seed=7, dataset_fingerprint="abc")
    return ledger


def test_the_plan_reads_back_as_the_plan(tmp_path: Path) -> None:
    planned(tmp_path / "ledger.jsonl")
    ledger = RunLedger(tmp_path / "ledger.jsonl")
    settings = ledger.order_settings()
    segments = plan_run(CONFIG).segments
    assert [(s.step, s.phase, s.seq_len, s.global_batch, s.mixture, s.rope_theta) for s in settings] == [
        (s.first_step, s.phase, s.seq_len, s.global_batch, s.mixture, s.rope_theta) for s in segments
    ]
    assert [(s.first_step, s.global_batch, s.seq_len, s.weights) for s in ledger.step_segments()] == [
        (s.first_step, s.global_batch, s.seq_len, s.mixture) for s in segments
    ]


def test_recording_the_plan_twice_changes_nothing(tmp_path: Path) -> None:
    ledger = planned(tmp_path / "ledger.jsonl")
    before = (tmp_path / "ledger.jsonl").read_bytes()
    record_plan(ledger, plan_run(CONFIG), seed=7, dataset_fingerprint="abc")
    record_plan(RunLedger(tmp_path / "ledger.jsonl"), plan_run(CONFIG), seed=7, dataset_fingerprint="abc")
    assert (tmp_path / "ledger.jsonl").read_bytes() == before


def test_a_plan_cut_short_by_a_kill_is_completed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    planned(path)
    whole = path.read_bytes()
    for cut in (10, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:cut])
        planned(path)
        assert path.read_bytes().rstrip() == whole.rstrip()


def test_an_entry_cannot_alter_a_step_that_is_done(tmp_path: Path) -> None:
    ledger = planned(tmp_path / "ledger.jsonl")
    with pytest.raises(ValueError, match="already done"):
        ledger.append("order", step=50, at=50, data={"mixture": {"web": 1.0}})


def test_a_change_holds_until_the_plan_sets_the_field_again(tmp_path: Path) -> None:
    ledger = planned(tmp_path / "ledger.jsonl")
    ledger.append("order", step=51, at=50, data={"mixture": {"web": 1.0}})
    by_step = {s.step: s for s in ledger.order_settings()}
    assert by_step[51].mixture == {"web": 1.0}
    assert by_step[51].global_batch == 32
    decay = max(by_step)
    assert by_step[decay].mixture == {"code": 1.0}


def test_skipped_draws_begin_a_segment(tmp_path: Path) -> None:
    ledger = planned(tmp_path / "ledger.jsonl")
    ledger.append("skip", step=41, at=40, data={"domain": "web", "draws": [900, 901]})
    segments = {s.first_step: s for s in ledger.step_segments()}
    assert segments[41].skipped == {"web": [900, 901]}
    assert segments[41].weights == {"web": 0.7, "code": 0.3}
    assert not segments[1].skipped


def test_a_rewind_supersedes_what_was_recorded_after_its_target_but_not_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    ledger = planned(path)
    ledger.append("lr", step=31, at=30, data={"factor": 0.5, "until": 60})
    ledger.append("lr", step=56, at=55, data={"factor": 0.1, "until": 90})
    assert ledger.lr_factor(58) == 0.05
    ledger.append("rewind", step=61, at=60, data={"to": 40})
    ledger = RunLedger(path)
    assert ledger.lr_factor(58) == 0.5
    assert [e.kind for e in ledger if e.number in ledger.superseded()] == ["lr"]
    assert len(ledger.order_settings()) == len(plan_run(CONFIG).segments)


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    planned(path)
    whole = path.read_bytes()
    for position in range(0, len(whole) - 1, 37):
        damaged = bytearray(whole)
        damaged[position] ^= 1
        path.write_bytes(damaged)
        if position <= whole[:-1].rfind(b"\n"):
            with pytest.raises(CorruptArtifactError):
                RunLedger(path)


def test_a_missing_line_in_the_middle_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "ledger.jsonl"
    planned(path)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:2] + lines[3:]))
    with pytest.raises(CorruptArtifactError, match="chain"):
        RunLedger(path)


@given(st.lists(st.tuples(st.integers(0, 90), st.integers(1, 10), st.floats(0.1, 1)), max_size=6))
def test_what_happens_later_never_changes_earlier_settings(changes: list[tuple[int, int, float]]) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        ledger = planned(Path(folder) / "ledger.jsonl")
        for at, ahead, weight in sorted(changes):
            before = ledger.step_segments()
            ledger.append("order", step=at + ahead, at=at, data={"mixture": {"web": weight, "code": 1.0}})
            after = ledger.step_segments()
            kept = [s for s in before if s.first_step < at + ahead]
            assert after[: len(kept)] == kept


def test_a_checkpoint_of_another_history_is_told_apart(tmp_path: Path) -> None:
    ledger = planned(tmp_path / "a.jsonl")
    other = RunLedger(tmp_path / "b.jsonl")
    record_plan(other, plan_run(CONFIG), seed=8, dataset_fingerprint="abc")
    assert ledger.contains(ledger.head)
    assert ledger.contains(GENESIS)
    assert not ledger.contains(other.head)
