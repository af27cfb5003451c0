"""The doctor names what is wrong with a run, from records of real runs and from broken ones, and never stumbles."""

from __future__ import annotations

import json
import math
import os
import random
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.core.errors import CorruptArtifactError
from headwater.core.jsonl import json_safe
from headwater.core.locks import FolderLock
from headwater.diagnose import Diagnosis, diagnose, diagnosis_text
from headwater.diagnose.reading import read_record
from headwater.diagnose.symptoms import SYMPTOMS
from headwater.monitor.detectors import default_detectors
from headwater.monitor.detectors.model_health import TensorGradients
from headwater.pipeline.schema import loads
from headwater.train import RunFolder
from headwater.train.non_finite import NonFiniteError
from tests.cli.conftest import call
from tests.monitor.synthetic import clean_run
from tests.train.conftest import World, world
from tests.train.test_detection import BrokenWeight, PoisonedBatch, run_of

__all__ = ["call", "world"]

START = 1_700_000_000.0


def rows_of(steps: int, seed: int = 0) -> list[dict[str, Any]]:
    """A healthy record as the trainer writes it."""
    rows = clean_run(steps, seed)
    for step, row in enumerate(rows, start=1):
        row.pop("uniform_loss")
        row |= {"step": step, "tokens": 65_536 * step, "time": START + 0.5 * step, "lr": 1e-3, "gpu_util": 0.95}
    return rows


def write(folder: Path, rows: list[dict[str, Any]], events: list[dict[str, Any]] | None = None) -> RunFolder:
    """A run that was asked to stop, unless `events` say otherwise."""
    folder.mkdir(parents=True, exist_ok=True)
    record = {"model": {"vocab_size": 10_000}, "train": {"optimizer": {"lr": 1e-3}}, "steps": len(rows)}
    (folder / "run.json").write_text(json.dumps(record))
    (folder / "metrics.jsonl").write_text("".join(json.dumps(json_safe(row)) + "\n" for row in rows))
    events = events if events is not None else [{"event": "interrupted", "time": START, "step": len(rows)}]
    (folder / "events.jsonl").write_text("".join(json.dumps(event) + "\n" for event in events))
    return RunFolder.open(folder)


def symptoms(diagnosis: Diagnosis) -> list[str]:
    return [finding.symptom for finding in diagnosis.findings]


def from_step(first: int, key: str, change: Callable[[float, int], Any], last: int | None = None) -> Any:
    def inject(rows: list[dict[str, Any]]) -> None:
        for age, row in enumerate(rows[first - 1 : last]):
            row[key] = change(row[key], age)

    return inject


def swinging(loss: float, _: int, draw: random.Random = random.Random(1)) -> float:
    return loss * (1 + draw.choice((-0.15, 0.15)))


FAULTS: dict[str, Any] = {
    "loss_spike": from_step(400, "loss", lambda loss, _: 2 * loss, 400),
    "non_finite": from_step(400, "loss", lambda *_: math.nan, 400),
    "not_converging": from_step(1, "loss", lambda loss, age: 9.2 + 0.01 * (age % 3)),
    "oscillation": from_step(400, "loss", swinging),
    "memory": from_step(200, "mem_allocated", lambda memory, age: memory + 5e6 * age),
    "slow_data": from_step(400, "data_wait_seconds", lambda waited, _: waited + 0.25),
    "slow_steps": from_step(400, "step_seconds", lambda seconds, _: 2 * seconds),
    "low_gpu_utilisation": from_step(1, "gpu_util", lambda *_: 0.3),
    "gradient_vanishing": from_step(400, "grad_norm", lambda norm, _: norm * 1e-9),
    "gradient_explosion": from_step(400, "grad_norm", lambda norm, _: norm * 1000, 400),
}
ACCOMPANIED = {"not_converging", "oscillation"}
"""A loss that never falls is a plateau too, and one that swings has peaks."""


@pytest.mark.parametrize("name", FAULTS)
def test_a_symptom_is_named_with_evidence_and_a_change_of_the_recipe(tmp_path: Path, name: str) -> None:
    rows = rows_of(600)
    FAULTS[name](rows)
    diagnosis = diagnose(write(tmp_path / "run", rows))
    assert name in symptoms(diagnosis)
    assert len(diagnosis.findings) == 1 or name in ACCOMPANIED, symptoms(diagnosis)
    found = next(item for item in diagnosis.findings if item.symptom == name)
    assert found.evidence
    assert found.causes
    assert found.evidence[0].startswith("step ")
    assert any(remedy.sets for remedy in found.remedies)
    text = diagnosis_text(diagnosis)
    assert found.title in text
    assert " --set " in text
    json.dumps(diagnosis.to_json())


def test_every_detector_belongs_to_a_symptom_and_every_remedy_is_a_recipe() -> None:
    listed = {detector for symptom in SYMPTOMS.values() for detector in symptom.detectors}
    assert {detector.name for detector in default_detectors()} <= listed
    for known in ({}, {"lr": 6e-4, "warmup_steps": 500, "global_batch": 64}):
        for symptom in SYMPTOMS.values():
            for remedy in symptom.remedies(known):
                loads("schema: 1", remedy.sets, name="--set")


def test_a_healthy_record_is_healthy(tmp_path: Path) -> None:
    diagnosis = diagnose(write(tmp_path / "run", rows_of(1_000, 4)))
    assert diagnosis.healthy, diagnosis_text(diagnosis)
    assert "nothing wrong" in diagnosis_text(diagnosis)
    assert "goes on when the same command is run again" in diagnosis_text(diagnosis)


def test_the_learning_rate_advised_is_half_of_the_runs(tmp_path: Path) -> None:
    rows = rows_of(600)
    FAULTS["oscillation"](rows)
    assert "--set train.optimizer.lr=0.0005" in diagnosis_text(diagnose(write(tmp_path / "run", rows)))


def test_what_the_run_has_already_is_not_advised(tmp_path: Path) -> None:
    rows = rows_of(600)
    FAULTS["gradient_explosion"](rows)
    FAULTS["loss_spike"](rows)
    run = write(tmp_path / "run", rows)
    assert "--set train.clip_grad_norm=1.0" in diagnosis_text(diagnose(run))
    known = {"lr": 1e-3, "clip_grad_norm": 0.5}
    record = {"model": {"vocab_size": 10_000, "qk_norm": True}, "train": {**known, "z_loss": 0.0}, "steps": 600}
    (run.path / "run.json").write_text(json.dumps(record))
    text = diagnosis_text(diagnose(run))
    assert "keep logits small: --set train.z_loss=1e-4\n" in text
    assert "clip gradients" not in text
    (run.path / "run.json").write_text(json.dumps({**record, "train": {**known, "z_loss": 0.0001}}))
    assert "keep logits small" not in diagnosis_text(diagnose(run))


@pytest.mark.parametrize(
    ("ahead", "checkpoint", "words", "advice"),
    [
        (60.0, [], "has worked on the run for 60 s, and none", "begins anew, as no checkpoint had been written"),
        (-90.0, [{"event": "checkpoint", "step": 50}], "which a clock ahead of", "goes on from the last checkpoint"),
    ],
)
def test_a_run_that_was_killed_says_since_when_and_from_where_it_goes_on(
    tmp_path: Path, ahead: float, checkpoint: list[dict[str, Any]], words: str, advice: str
) -> None:
    rows = rows_of(100)
    run = write(tmp_path / "run", rows, [{"event": "started", "time": START, "device": "cpu"}, *checkpoint])
    text = diagnosis_text(diagnose(run, now=rows[-1]["time"] + ahead))
    assert words in text
    assert advice in text


def test_steps_that_fp16_skipped_are_not_faults(tmp_path: Path) -> None:
    rows = rows_of(300)
    for row in rows[100:103]:
        row |= {"grad_norm": math.inf, "loss": math.nan, "clip_factor": 0.0}
    assert diagnose(write(tmp_path / "run", rows)).healthy


def test_a_process_that_holds_a_run_and_does_no_step_is_stalled(tmp_path: Path) -> None:
    run = write(tmp_path / "run", rows_of(100), [{"event": "started", "time": START}])
    with FolderLock(run.path):
        assert diagnose(run, now=START + 60).healthy
        assert symptoms(diagnose(run, now=START + 500)) == ["stalled"]
        line = run.metrics_path.read_text().splitlines()[-1].replace('"step": 100', '"step": 101')
        with open(run.metrics_path, "a") as record:
            steps = threading.Timer(0.3, lambda: (record.write(line + "\n"), record.flush()))
            steps.start()
            ahead = diagnose(run, now=START + 500)  # the clock was set, or is ahead of the other machine's
            steps.join()
        assert ahead.healthy
        assert "and the run goes on" in " ".join(ahead.notes)
    write(tmp_path / "run", rows_of(100), [{"event": "started", "time": START}])
    assert symptoms(diagnose(run)) == ["died"]
    late = {"event": "alert", "time": START, "detector": "slow_data", "step": 90, "message": "slow"}
    assert symptoms(diagnose(write(tmp_path / "run", rows_of(100), [late]))) == ["slow_data", "died"]
    write(tmp_path / "run", rows_of(100))
    assert diagnose(run).healthy


def test_a_record_of_anything_is_read(tmp_path: Path) -> None:
    run = write(tmp_path / "run", rows_of(200))
    lines = run.metrics_path.read_bytes().splitlines(keepends=True)
    lines[10] = b'{"step": 11, "loss": 3.\n'
    lines[20] = b"\x00\xff\xfe\n"
    lines[30] = b"[1, 2]\n"
    lines[40] = b'{"loss": 3.0}\n'
    lines[50] = b'{"step": 51, "loss": "three", "grad_norm": null, "step_seconds": [], "time": "noon"}\n'
    lines[60] = b"[" * 100_000 + b"\n"
    lines[70] = b'{"step": NaN}\n'
    lines[80] = b'{"step": 81, "loss": 3.0, "grad_norm": 1, "step_seconds": 1, "tokens": 1' + b"0" * 400 + b"}\n"
    lines[90] = lines[80].replace(b"81", b"91").replace(b'"grad_norm": 1,', b'"grad_norm": 1' + b"0" * 400 + b",")
    run.metrics_path.write_bytes(b"".join(lines) + b'{"step": 201, "lo')
    diagnosis = diagnose(run)
    assert diagnosis.healthy, diagnosis_text(diagnosis)
    notes = " ".join(diagnosis.notes)
    assert "lines 11, 21, 31, 41, 61 and 1 more of the record cannot be read" in notes
    assert "the last line is torn" in notes
    assert "loss is missing in 1 of 194 lines" in notes
    assert diagnosis.step == 200


def test_a_record_that_counts_from_0_is_read(tmp_path: Path) -> None:
    first = {"step": 0, "tokens": 0, "loss": 9.0, "grad_norm": 1.0}
    diagnosis = diagnose(write(tmp_path / "run", [first, *rows_of(200)]))
    assert diagnosis.healthy, diagnosis_text(diagnosis)


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.sampled_from(["NaN", "Infinity", "x"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
KEYS = st.sampled_from([*clean_run(50, 0)[-1], "step", "time", "tokens", "lr", "gpu_util", "clip_factor"])
EVENT = st.dictionaries(st.sampled_from(["event", "detector", "step", "message", "severity", "time"]), ANYTHING)


@settings(max_examples=30)
@given(st.lists(st.dictionaries(KEYS, ANYTHING), max_size=6), st.lists(ANYTHING | EVENT, max_size=4))
def test_values_of_any_kind_are_no_crash(odd: list[dict[str, Any]], events: list[Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        rows = rows_of(50)
        for row, change in zip(rows[20:], odd, strict=False):
            row |= change
        run = write(Path(folder) / "run", [json_safe(row) for row in rows], [json_safe(event) for event in events])
        diagnosis_text(diagnose(run))


def test_two_writers_are_told_and_each_step_counts_once(tmp_path: Path) -> None:
    rows = rows_of(200)
    both = [row for pair in zip(rows[:-50], rows[50:], strict=True) for row in pair]
    diagnosis = diagnose(write(tmp_path / "run", both))
    assert any("two processes wrote this record" in note for note in diagnosis.notes)
    assert len(read_record(tmp_path / "run" / "metrics.jsonl").rows) == 200


@pytest.mark.parametrize(
    ("jump", "words"), [(-3600.0, "the clock went back by 3,600 s"), (86_400.0, "86,400 s passed before step 101")]
)
def test_a_clock_that_jumps_is_told(tmp_path: Path, jump: float, words: str) -> None:
    rows = rows_of(200)
    for row in rows[100:]:
        row["time"] += jump
    diagnosis = diagnose(write(tmp_path / "run", rows))
    assert diagnosis.healthy
    assert any(words in note for note in diagnosis.notes)


def test_lines_of_another_file_are_told_and_left_out(tmp_path: Path) -> None:
    rows = rows_of(200)
    mixed: list[dict[str, Any]] = []
    for row in rows:
        mixed.append(row)
        if row["step"] % 50 == 0:
            mixed += [{"time": row["time"], "event": "checkpoint", "step": row["step"]}, {"step": 7, "text": "河水"}]
    diagnosis = diagnose(write(tmp_path / "run", mixed))
    assert diagnosis.healthy
    assert any("lines 51, 52, 103" in note and "another kind of file" in note for note in diagnosis.notes)


def test_large_gradients_of_single_parameters_are_not_told_as_vanishing(tmp_path: Path) -> None:
    large = TensorGradients().observe(90, {"param_grad_norm": {"model.norm.weight": 3e6, "lm_head.weight": 0.1}})
    assert large is not None
    event = {"time": START, "event": "alert", "detector": large.detector, "severity": large.severity, "step": 90,
             "message": large.message, "evidence": large.evidence}  # fmt: skip
    (found,) = diagnose(write(tmp_path / "run", rows_of(100), [event, {"event": "interrupted"}])).findings
    assert (found.symptom, found.severity) == ("gradient_explosion", "critical")


@pytest.mark.parametrize(
    ("detector", "symptom"),
    [
        ("out_of_memory", "out_of_memory"),
        ("overflow", "overflow"),
        ("changed_weights", "hardware"),
        ("disk_full", "disk"),
        ("hang", "stalled"),
        ("slow_rank", "slow_steps"),
        ("dead_heads", "heads"),
        ("no_updates", "no_updates"),
        ("old_checkpoint", "old_checkpoint"),
        ("tensor_gradients", "gradient_vanishing"),
    ],
)
def test_what_the_trainer_said_is_told_with_a_remedy(tmp_path: Path, detector: str, symptom: str) -> None:
    alert = {"event": "alert", "detector": detector, "severity": "critical", "step": 90, "message": "so it was"}
    diagnosis = diagnose(write(tmp_path / "run", rows_of(100), [{**alert, "time": START}, {"event": "interrupted"}]))
    (found,) = diagnosis.findings
    assert (found.symptom, found.severity, found.evidence) == (symptom, "critical", ("step 90: so it was",))
    assert found.causes
    assert any(remedy.sets for remedy in found.remedies)


def test_a_gpu_that_nobody_measured_is_told(tmp_path: Path) -> None:
    rows = rows_of(100)
    for row in rows:
        row["gpu_util"] = None
    events = [{"event": "started", "time": START, "device": "cuda"}, {"event": "interrupted", "time": START}]
    assert "nvidia-ml-py" in diagnosis_text(diagnose(write(tmp_path / "run", rows, events)))
    assert "nvidia-ml-py" not in diagnosis_text(diagnose(write(tmp_path / "cpu", rows, events[1:])))


def test_a_run_that_stopped_itself_says_why(tmp_path: Path) -> None:
    rows = rows_of(100)
    run = write(tmp_path / "run", rows, [{"event": "stopped", "time": START, "step": 101}])
    report = {"step": 101, "what": "loss_spike again: the run has stopped", "mend": "train anew", "done": []}
    (run.path / "stopped.json").write_text(json.dumps(report))
    diagnosis = diagnose(run)
    assert symptoms(diagnosis) == ["stopped"]
    assert "step 101: loss_spike again: the run has stopped; train anew" in diagnosis_text(diagnosis)
    (run.path / "stopped.json").write_text("{to")
    assert symptoms(diagnose(run)) == []


def test_a_folder_with_nothing_but_its_name_is_no_crash(tmp_path: Path) -> None:
    run = write(tmp_path / "run", [])
    (run.path / "events.jsonl").write_bytes(b'{"event": "alert"}\n{"event": "alert", "detector": 3}\n{bro\n7\n{"ev')
    assert "no step is recorded yet" in diagnosis_text(diagnose(run))
    os.unlink(run.path / "events.jsonl")
    os.unlink(run.metrics_path)
    assert "events.jsonl is missing" in diagnosis_text(diagnose(run))


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("run.json", b'{"st\xff"', "it is no text from byte 5 on"),
        ("run.json", b'{"steps": ', "it is no JSON from line 1, column 11 on"),
        ("run.json", b"[]", "it holds no object"),
        ("run.json", b'{"steps": "many"}', "its `steps` is 'many', which is no whole number"),
        ("final.json", b'{"step": null, "checkpoint": "step-1"}', "its `step` is None, which is no whole number"),
    ],
)
def test_a_damaged_file_of_the_run_is_named_with_the_mend(tmp_path: Path, name: str, damage: bytes, words: str) -> None:
    run = write(tmp_path / "run", rows_of(10))
    (run.path / name).write_bytes(damage)
    with pytest.raises(CorruptArtifactError) as caught:
        diagnose(run)
    assert caught.value.what == f"the file is damaged: {words}"
    assert caught.value.where == str(run.path / name)
    assert "put back a copy" in caught.value.mend


def test_a_step_takes_the_doctor_less_than_two_milliseconds(tmp_path: Path) -> None:
    rows = rows_of(5_000)
    run = write(tmp_path / "run", rows)
    started = time.process_time()
    diagnose(run)
    assert (time.process_time() - started) / 5_000 < 0.002


def test_a_run_with_a_far_too_high_learning_rate_is_told_so(world: World, tmp_path: Path, call: Any) -> None:
    run_of(world, tmp_path / "run", steps=250, optimizer={"lr": 5.0}, schedule={"name": "constant"})
    told = call("doctor", "run", "--json", code=1, cwd=tmp_path)
    names = [finding["symptom"] for finding in told.json["findings"]]
    assert {"not_converging", "loss_spike", "oscillation"} & set(names), names
    assert any("train.optimizer.lr=2.5" in remedy["sets"] for f in told.json["findings"] for remedy in f["remedies"])


def test_a_poisoned_batch_and_a_broken_weight_are_told(world: World, tmp_path: Path, call: Any) -> None:
    run_of(world, tmp_path / "poisoned", PoisonedBatch(50))
    told = call("doctor", "poisoned", code=1, cwd=tmp_path)
    assert "loss spike (critical)\n  step 50: loss" in told.stdout
    assert "headwater trace" in told.stdout
    with pytest.raises(NonFiniteError) as caught:
        run_of(world, tmp_path / "broken", BrokenWeight(5, "model.layers.0.mlp.up_proj.weight"))
    told = call("doctor", "broken", code=1, cwd=tmp_path)
    assert "NaN or infinity in loss or gradient (critical)" in told.stdout
    assert caught.value.tensor in told.stdout


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path, call: Any) -> None:
    assert "no training run here" in call("doctor", ".", code=2, cwd=tmp_path).stderr
