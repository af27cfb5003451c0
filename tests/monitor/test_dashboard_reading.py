"""What the dashboard makes of a run's files: every point that matters, as they grow, whatever is wrong with them."""

from __future__ import annotations

import json
import math
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headwater.core.jsonl import json_safe
from headwater.core.locks import FolderLock
from headwater.monitor import MetricsRecord, cut_after
from headwater.monitor.tensor_series import TENSOR_METRICS
from headwater.monitor.terminal import summary_text
from headwater.monitor.web import RunList, RunReader
from headwater.monitor.web.columns import LEFT_TO_MAPS, Columns
from headwater.monitor.web.events import happenings
from headwater.monitor.web.heat import split_name
from headwater.monitor.web.thin import extremes, means
from headwater.train.ledger import RunLedger
from tests.monitor.records import START, write_run


def lines_of(view: dict[str, Any], panel: str) -> dict[str, dict[str, Any]]:
    found = [one for one in view["panels"] if one["id"] == panel]
    return {line["name"]: line for one in found for line in one["lines"]}


def read(folder: Path) -> dict[str, Any]:
    reader = RunReader(folder)
    reader.refresh()
    return reader.view()


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=3000), st.integers(4, 400))
def test_thinning_keeps_the_extremes_and_the_ends(values: list[float], limit: int) -> None:
    array = np.array(values)
    kept = extremes(array, limit)
    assert len(kept) <= limit
    assert (np.diff(kept) > 0).all()
    assert array[kept].max() == array.max()
    assert array[kept].min() == array.min()
    assert (kept[0], kept[-1]) == (0, len(values) - 1)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=1000), st.integers(1, 50))
def test_means_stand_for_all_values(values: list[float], limit: int) -> None:
    array = np.array(values)
    places, found = means(array, limit)
    assert len(found) <= limit or len(values) <= limit
    width = -(-len(values) // limit) if len(values) > limit else 1
    weights = [len(values[start : start + width]) for start in range(0, len(values), width)]
    assert math.isclose(float((found * weights).sum()), array.sum(), rel_tol=1e-9, abs_tol=1e-3)
    assert (np.diff(places) > 0).all()


def test_one_spike_among_a_hundred_thousand_steps_is_a_point_of_the_curve() -> None:
    columns = Columns()
    columns.add([{"step": step, "loss": 99.0 if step == 61_234 else 2.0} for step in range(1, 100_001)])
    steps, values = columns.series(("loss", ""))
    kept = extremes(values, 800)
    assert 99.0 in values[kept]
    assert 61_234 in steps[kept]


def test_a_growing_record_is_read_on_and_a_cut_one_anew(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    reader = RunReader(tmp_path)
    first = reader.refresh()
    with MetricsRecord(path) as record:
        for step in range(1, 51):
            record.append({"step": step, "loss": 1.0 + step, "loss_sma": 1.0})
    assert reader.refresh() != first
    second = reader.refresh()
    assert reader.refresh() == second
    assert lines_of(reader.view(), "loss")["training"]["s"] == list(range(1, 51))
    with open(path, "ab") as file:  # half a line, as a writer is seen in the middle of a write
        file.write(b'{"step": 51, "lo')
    reader.refresh()
    assert reader.status()["step"] == 50
    with open(path, "ab") as file:
        file.write(b'ss": 7.5}\n')
    reader.refresh()
    assert lines_of(reader.view(), "loss")["training"]["y"][-1] == 7.5
    cut_after(path, 30)
    with MetricsRecord(path) as record:
        for step in range(31, 61):
            record.append({"step": step, "loss": -1.0, "loss_sma": 1.0})
    reader.refresh()
    line = lines_of(reader.view(), "loss")["training"]
    assert line["s"] == list(range(1, 61))
    assert line["y"][30:] == [-1.0] * 30
    assert not any("repeat" in note for note in reader.view()["notes"])


def test_what_is_wrong_with_a_record_is_said_in_words(tmp_path: Path) -> None:
    rows = [
        '{"step": 1, "loss": 3.0, "time": 100.0}', "not json", "[1, 2]", '{"loss": 2.0}', '{"step": "x", "loss": 1}',
        '{"step": 2, "loss": NaN, "time": 50.0}', '{"step": 3, "loss": "Infinity", "time": 101.0}', "\x00\x00", "",
        '{"step": 4, "loss": "high", "val_loss": [1], "time": 102.0, "odd": {"a": {"b": 1}}}',
        '{"step": 3, "loss": 2.5, "time": 103.0}', '{"step": 5, "loss": 1e999, "time": 1e400, "lr": true}',
        '{"step": 6, "lo',
    ]  # fmt: skip
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows))
    (tmp_path / "run.json").write_text("{torn")
    (tmp_path / "events.jsonl").write_text(
        '{"event": {"a": 1}, "step": "x", "time": NaN}\n{"event": "alert"}\n{}\nbad\n'
    )
    (tmp_path / "ledger.jsonl").write_text(
        '{"kind": "skip"}\n{"kind": ["x"], "data": 3}\n{"kind": "order", "data": {"mixture": 3}}\n'
    )
    (tmp_path / "samples.jsonl").write_text('{"step": "x"}\n')
    view = read(tmp_path)
    assert lines_of(view, "loss")["training"] == {"name": "training", "faint": False, "s": [1, 3], "y": [3.0, 2.5],
                                                  "marks": True}  # fmt: skip
    notes = "\n".join(view["notes"])
    for said in ("2 lines are not JSON", "1 line is no objects", "2 lines are without a step", "the last line is torn",
                 "the clock went back once", "1 lines repeat a step or go back", "loss is NaN or infinite at step 2",
                 "run.json is damaged"):  # fmt: skip
        assert said in notes, (said, notes)


def test_two_writers_of_one_record_leave_the_last_line_of_each_step(tmp_path: Path) -> None:
    rows = [{"step": step, "loss": float(writer)} for step in range(1, 40) for writer in (1, 2)]
    rows += [{"step": step, "loss": 3.0} for step in range(20, 30)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    view = read(tmp_path)
    line = lines_of(view, "loss")["training"]
    assert line["s"] == list(range(1, 40))
    assert line["y"] == [2.0] * 19 + [3.0] * 10 + [2.0] * 10
    assert "49 lines repeat a step or go back" in view["notes"][0]


def test_clocks_that_jump_do_not_stretch_the_time_of_training(tmp_path: Path) -> None:
    clock = [START + step for step in range(100)]
    clock[40:] = [at - 5000 for at in clock[40:]]  # set back
    clock[70:] = [at + 90_000 for at in clock[70:]]  # stopped for a day
    rows = [{"step": step + 1, "loss": 2.0, "time": at} for step, at in enumerate(clock)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    view = read(tmp_path)
    assert view["axis"]["time"][-1] == 97
    assert view["axis"]["time"] == sorted(view["axis"]["time"])


NASTY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just("NaN"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=6,
)
KEYS = st.sampled_from(
    [
        "step",
        "loss",
        "tokens",
        "time",
        "val_loss",
        "domain_tokens",
        "step_seconds",
        "event",
        "kind",
        "data",
        "at",
        "number",
        "entries",
        "goodput",
        "grad_histogram",
        "prompt",
        "text",
        "why",
    ]
)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.dictionaries(KEYS, NASTY, max_size=8), max_size=12), st.binary(max_size=40))
def test_no_file_of_a_run_can_make_its_view_fail(tmp_path: Path, rows: list[dict[str, Any]], tail: bytes) -> None:
    text = "".join(json.dumps(row) + "\n" for row in rows).encode() + tail
    for name in ("metrics", "events", "ledger", "samples"):
        (tmp_path / f"{name}.jsonl").write_bytes(text)
    for name in ("run", "final", "stopped"):
        (tmp_path / f"{name}.json").write_bytes(text.split(b"\n")[0])
    reader = RunReader(tmp_path)
    reader.refresh()
    answered = json_safe(
        [reader.view(), reader.summary(), reader.peek(), reader.heat(None), reader.heat("grad_histogram")]
    )
    orjson.dumps(answered, option=orjson.OPT_NON_STR_KEYS)
    assert summary_text(reader)


@pytest.mark.parametrize("content", [None, b"", b"\n\n", b"{}\n", b'{"step": 0}\n', b'{"step": 5, "time": 3}\n'])
def test_an_empty_run_has_a_view(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / "metrics.jsonl").write_bytes(content)
    reader = RunReader(tmp_path)
    reader.refresh()
    assert reader.view()["panels"] == []
    assert reader.summary()["loss"] is None
    assert reader.heat(None)["metrics"] == []
    assert reader.view()["status"]["state"] in ("empty", "stopped")


def test_a_run_is_running_silent_stopped_or_finished(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 100)
    reader = RunReader(run)

    def state() -> str:
        reader.refresh()
        return str(reader.status()["state"])

    assert state() == "stopped"
    with FolderLock(run):
        assert state() == "running"
        assert reader.status()["eta"] == 0
        before = reader.refresh()
        old = time.time() - 3600
        os.utime(run / "metrics.jsonl", (old, old))
        assert state() == "silent"
        assert "no step for 1h 00m" in reader.status()["words"]
        assert reader.refresh() != before
        lines = (run / "metrics.jsonl").read_text().splitlines()
        with open(run / "metrics.jsonl", "a") as record:
            record.write(lines[-1].replace('"step": 100', '"step": 101').replace('"step":100', '"step":101') + "\n")
        os.utime(run / "metrics.jsonl", (old, old))  # the clock was set forward by an hour while it was watched
        assert state() == "running"
        assert reader.status()["step"] == 101
    (run / "final.json").write_text('{"checkpoint": "step-00000100"}')
    assert state() == "finished"


def test_time_is_split_into_steps_and_what_is_between(tmp_path: Path) -> None:
    time_split = read(write_run(tmp_path / "run", 1000))["time"]
    parts = {part["name"]: part["seconds"] for part in time_split["parts"]}
    assert abs(sum(parts.values()) - time_split["total"]) < 0.02 * time_split["total"]
    assert parts["checkpoints"] == pytest.approx(2.4)
    assert parts["steps done again"] == pytest.approx(12 * 0.42, rel=0.1)
    assert parts["steps done again"] + parts["not running"] == pytest.approx(30)
    assert 0.85 < time_split["goodput"] < 1
    for column in zip(*(part["y"] for part in time_split["over"]["parts"]), strict=True):
        assert sum(column) == pytest.approx(1, abs=1e-4)


def test_the_time_that_goodput_is_a_share_of_begins_where_the_run_first_did(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1000)
    events = run / "events.jsonl"
    first = {"time": START - 500, "event": "started"}  # and was killed before its first checkpoint
    events.write_text(json.dumps(first) + "\n" + events.read_text(encoding="utf-8"), encoding="utf-8")
    time_split = read(run)["time"]
    assert time_split["total"] == pytest.approx(500 + 1000 * 0.46)
    assert time_split["goodput"] == pytest.approx(1000 * 0.43 / time_split["total"], rel=0.05)


def test_what_was_read_stands_beside_the_plan_as_it_changed(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 1000)
    later = {"kind": "order", "step": 501, "at": 400, "data": {"mixture": {"web": 1.0}}}
    with open(run / "ledger.jsonl", "a") as file:
        file.write(json.dumps(later) + "\n")
    found = read(run)["mixture"]
    web = next(domain for domain in found["domains"] if domain["name"] == "web")
    assert web["share"] == pytest.approx(0.52, abs=1e-3)
    assert web["plan"] == pytest.approx(0.75, abs=0.02)
    assert found["over"]["lines"][0]["plan"][0] == pytest.approx(0.5)
    assert sum(domain["share"] for domain in found["domains"]) == pytest.approx(1)


def test_events_and_interventions_are_one_list_in_words() -> None:
    events = [
        {"event": "alert", "detector": "loss_spike", "severity": "critical", "step": 5, "message": "loss 9",
         "evidence": {"loss": 9.123456789}},
        {"event": "checkpoint", "step": 4}, {"event": "warning", "message": "a port is in use", "time": 3.0},
        {"event": "interrupted", "signal": "SIGTERM", "step": 10**400},
    ]  # fmt: skip
    ledger = [
        {"kind": "run", "at": 0, "step": 1, "data": {}},
        {"kind": "skip", "at": 5, "step": 6, "data": {"domain": "代码", "draws": [1, 2]}},
        {"kind": "rewind", "at": 9, "step": 10, "data": {"to": 4}},
        {"kind": "lr", "at": 9, "step": 10, "data": {"factor": 0.5, "until": 300}},
    ]
    found = [(item["level"], item["title"], item["text"]) for item in happenings(events, ledger)]
    assert found == [
        ("critical", "loss spike", "loss 9\nloss 9.12346"),
        ("warning", "warning", "a port is in use"),
        ("warning", "interrupted", "signal SIGTERM"),
        ("action", "samples skipped", "2 samples of 代码 are left out\ndecided after step 5\nundone by a later rewind"),
        ("action", "rewind", "went back to step 4\ndecided after step 9"),
        ("action", "learning rate", "times 0.5 until step 300\ndecided after step 9"),
    ]


def test_a_recovery_and_what_it_wrote_into_the_ledger_are_one_event() -> None:
    event = {
        "event": "recovery",
        "action": "rewind",
        "step": 12,
        "onset": 9,
        "why": ["loss_spike"],
        "to": 8,
        "samples": 3,
    }
    ledger = [
        {"number": 0, "kind": "hold", "at": 11, "step": 12, "data": {"why": ["non_finite"], "onset": 12}},
        {"number": 1, "kind": "rewind", "at": 11, "step": 12, "data": {"to": 8, "then": 1}},
        {"number": 2, "kind": "skip", "at": 11, "step": 12, "data": {"domain": "web", "draws": [7, 8, 9]}},
    ]
    found = happenings([{**event, "entries": [1, 2]}, {"event": "stopped", "step": 13, "why": ["nan"]}], ledger)
    assert [(item["level"], item["title"]) for item in found] == [
        ("action", "recovery: rewind"), ("critical", "stopped"), ("action", "update held back"),
    ]  # fmt: skip
    assert found[0]["text"].startswith(
        "because of loss_spike, back to step 8, without 3 samples\nrewind: went back to step 8"
    )
    assert "3 samples of web are left out" in found[0]["text"]
    assert found[2]["text"] == "because of non_finite\ndecided after step 11\nundone by a later rewind"


def test_what_a_rewind_undid_is_what_the_ledger_says(tmp_path: Path) -> None:
    """A step held back right after the checkpoint was decided upon before it, and is undone all the same."""
    ledger = RunLedger(tmp_path / "ledger.jsonl")
    ledger.append("skip", step=11, at=10, data={"domain": "web", "draws": [1]})
    ledger.append("hold", step=11, at=10, data={"why": ["non_finite"], "onset": 11})
    ledger.append("hold", step=12, at=11, data={"why": ["non_finite"], "onset": 12})
    ledger.append("rewind", step=13, at=12, data={"to": 10})
    texts = [item["text"] for item in happenings([], [entry.line() for entry in ledger])]
    told = {number for number, text in enumerate(texts) if "undone by a later rewind" in text}
    assert told == ledger.superseded() == {1, 2}


def test_a_glance_at_a_run_while_it_is_first_read_is_no_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader = RunReader(write_run(tmp_path / "run", 3000))
    store, glances = Columns._store, list[str]()

    def glancing(columns: Columns, key: tuple[str, str], *rest: Any) -> None:
        store(columns, key, *rest)
        if columns is reader._columns and key[0] == "time":  # a list of runs is asked for in the middle of it
            glances.append(reader.peek()["name"])

    monkeypatch.setattr(Columns, "_store", glancing)
    reader.refresh()
    assert len(glances) > 2
    assert reader.status()["step"] == 3000


def test_a_run_that_stopped_itself_says_why(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 20)
    (run / "stopped.json").write_text('{"what": "loss spike again", "mend": "train with more patience"}')
    view = read(run)
    assert view["status"]["words"] == "stopped itself"
    assert view["notes"] == ["loss spike again; train with more patience"]


def test_a_figure_nobody_foresaw_gets_a_chart(tmp_path: Path) -> None:
    rows = [
        {"step": step, "loss": 2.0, "my_figure": step * 1.5, "by_name": {"甲": 1.0, "b": 2.0}} for step in range(1, 9)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    view = read(tmp_path)
    assert lines_of(view, "own-my_figure")["my_figure"]["y"][-1] == 12
    assert set(lines_of(view, "own-by_name")) == {"甲", "b"}


def test_what_the_record_has_only_the_extremes_of_is_left_to_the_heat_maps() -> None:
    assert set(TENSOR_METRICS.values()) == LEFT_TO_MAPS


@pytest.mark.parametrize(
    ("name", "place"),
    [
        ("model.layers.12.self_attn.q_proj.weight", (12, "self_attn.q_proj")),
        ("model.embed_tokens.weight", (None, "embed_tokens")),
        ("layers.3.head.5", (3, "head 5")),
        ("lm_head.weight", (None, "lm_head")),
    ],
)
def test_rows_of_heat_maps_know_their_layer(name: str, place: tuple[int | None, str]) -> None:
    assert split_name(name) == place


def test_heat_maps_hold_every_tensor_and_the_worst_of_several_steps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", 600, spike=300, tensors=True)
    reader = RunReader(run)
    assert [item["key"] for item in reader.heat(None)["metrics"]] == ["grad_norm", "update_ratio", "head_entropy"]
    found = reader.heat("grad_norm", 10)
    assert len(found["s"]) == 10
    assert {row["layer"] for row in found["rows"]} == {None, *range(12)}
    assert all(len(row["v"]) == 10 for row in found["rows"])
    (run / "tensors" / "000000099-000000099-0000009900-0000009900.parquet").write_bytes(b"garbage")
    assert "cannot be read" in reader.heat("head_entropy")["note"]


def test_links_out_of_a_workspace_are_not_followed(tmp_path: Path) -> None:
    secret = tmp_path / "elsewhere"
    write_run(secret, 5)
    workspace = tmp_path / "ws"
    run = write_run(workspace / "runs" / "mine", 5)
    (workspace / "runs" / "linked").symlink_to(secret)
    (run / "recipe.yaml").unlink()
    (run / "recipe.yaml").symlink_to(secret / "recipe.yaml")
    (run / "samples.jsonl").unlink()
    (run / "samples.jsonl").symlink_to(secret / "samples.jsonl")
    (reader,) = RunList([workspace]).readers().values()
    reader.refresh()
    view = reader.view()
    assert (view["name"], view["recipe"], view["samples"]) == ("mine", "", [])
