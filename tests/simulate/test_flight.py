"""The flight simulator: real trainer code without data, its memory and messages, and the schedule it ran."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.cli.main import run_command
from headwater.core.errors import HeadwaterError
from headwater.model import ModelConfig
from headwater.parallel.config import ParallelConfig
from headwater.simulate.allocator import reserved
from headwater.simulate.flight import FlightReport, fly, simulated_micro_batches
from headwater.simulate.rank import Flight, Module
from headwater.simulate.text import text
from headwater.train.config import TrainConfig

MODEL = ModelConfig(
    hidden_size=256,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=512,
    vocab_size=512,
    max_position_embeddings=128,
)


def flight(rows: int = 8, **parallel: object) -> Flight:
    config = TrainConfig.model_validate({"steps": 10, "global_batch": 64, "seq_len": 64, "compile": False})
    layout = ParallelConfig.model_validate({"micro_batch": 1, **parallel})
    return Flight(MODEL, config, layout, precision="bf16", micro_batch=1, rows=rows, seq_len=64)


def wire(report: FlightReport, axis: str, operation: str, place: int = 0) -> float:
    flows = report.flows[place]
    return sum(flow["wire_bytes"] for flow in flows if flow["axis"] == axis and flow["operation"] == operation)


@pytest.fixture(scope="module")
def three_dimensions() -> FlightReport:
    return fly(flight(dp_shard=8, zero_stage=1, tp=2, pp=2), jobs=1)


def test_a_rank_of_every_stage_flies_and_is_clipped(three_dimensions: FlightReport) -> None:
    assert [rank.rank for rank in three_dimensions.ranks] == [0, 16]
    assert all(rank.outcome["clip_factor"] == 0.5 for rank in three_dimensions.ranks)
    assert "embedding" in three_dimensions.ranks[0].stages[0]
    assert "head" in three_dimensions.ranks[1].stages[0]


def test_the_state_a_rank_keeps_is_its_exact_share(three_dimensions: FlightReport) -> None:
    """Weights 4 bytes, moments 8, over 8 shards and 2 tensor-parallel ranks; blocks of 512 bytes round up."""
    for rank in three_dimensions.ranks:
        share = rank.parameters / 16
        assert rank.after_step["weights"] == pytest.approx(4 * share, rel=0.15)
        assert rank.after_step["optimizer"] == pytest.approx(8 * share, rel=0.2)
        assert rank.reserved_bytes >= rank.allocated_bytes


def test_stages_exchange_the_stream_once_a_micro_batch(three_dimensions: FlightReport) -> None:
    """bfloat16 [1, 64 / 2, 256], forward from the first stage and backward from the last; each for 8 micro-batches."""
    stream = 2 * 32 * 256
    sent = [wire(three_dimensions, "pp", "send", place) for place in (0, 1)]
    assert sent == [pytest.approx(8 * stream, abs=64)] * 2


def test_messages_of_a_step_grow_with_its_micro_batches(three_dimensions: FlightReport) -> None:
    longer = three_dimensions
    assert (longer.simulated, longer.micro_batches) == (4, 8)
    whole = fly(flight(dp_shard=8, zero_stage=1, tp=2, pp=2), ranks=[0], jobs=1, most=8)
    assert whole.simulated == 8
    for axis, operation in (("tp", "all_gather"), ("tp", "reduce_scatter"), ("pp", "send"), ("dp_shard", "all_gather")):
        assert wire(longer, axis, operation) == pytest.approx(wire(whole, axis, operation), rel=1e-3), (axis, operation)


def test_the_schedule_is_what_was_run(three_dimensions: FlightReport) -> None:
    first = "".join(action.kind for action in three_dimensions.ranks[0].actions)
    assert first == "FF" + "BF" * 2 + "BB"  # 1F1B on the first of two stages: one warm-up micro-batch
    assert 0.05 < three_dimensions.timeline.bubble < 0.4
    assert "rank 1" in three_dimensions.timeline.svg()
    assert len(three_dimensions.timeline.ascii(80).splitlines()) == 2
    assert "of passes in one column the last is shown" in text(three_dimensions, [])


@pytest.mark.parametrize(
    "layout",
    [
        {"dp_shard": 8, "zero_stage": 1, "tp": 2, "pp": 2},
        {"dp_shard": 4, "zero_stage": 1, "pp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 4},
        {"dp_replicate": 4, "pp": 2, "schedule": "zbv", "virtual_stages": 2},
        {"tp": 2, "pp": 2, "schedule": "interleaved_zero_bubble", "virtual_stages": 2},
    ],
)
def test_micro_batches_that_are_done_again_leave_what_running_them_leaves(layout: dict[str, object]) -> None:
    """Every byte of memory, in order (so what an allocator reserves), every message and product, of a whole step."""
    selective = flight().config.model_copy(update={"activation_checkpointing": "selective"})
    deep = MODEL.model_copy(update={"num_hidden_layers": 8})
    short = replace(flight(rows=8, **layout), config=selective, model=deep)
    again = fly(short, ranks=[0], jobs=1, most=8).ranks[0]
    whole = fly(replace(short, repeat=False), ranks=[0], jobs=1, most=8).ranks[0]
    assert again.repeated > 0
    assert whole.repeated == 0
    apart = {"seconds": 0.0, "cpu_seconds": 0.0, "operations": 0, "repeated": 0}
    assert replace(again, **apart) == replace(whole, **apart)
    assert again.operations == pytest.approx(whole.operations, rel=0.01)


def test_micro_batches_that_differ_are_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stage that keeps more of its third micro-batch than of the second."""
    kept: list[torch.Tensor] = []
    real = Module._hidden

    def keeping(self: Module, stage: Any, stream: torch.Tensor, own: Any) -> torch.Tensor:
        kept.append(torch.empty(1000 * len(kept) ** 2))
        return real(self, stage, stream, own)

    monkeypatch.setattr(Module, "_hidden", keeping)
    report = fly(flight(pp=2, dp_replicate=2), ranks=[0], jobs=1, most=8)
    assert report.ranks[0].repeated == 0
    assert report.ranks[0].allocated_bytes > 4000 * 49


def test_zero_3_holds_less_and_sends_more_than_zero_1() -> None:
    one, three = (fly(flight(rows=4, dp_shard=8, zero_stage=stage), jobs=1) for stage in (1, 3))
    assert three.ranks[0].allocated_bytes < one.ranks[0].allocated_bytes
    assert wire(three, "dp_shard", "all_gather") > 4 * wire(one, "dp_shard", "all_gather")


def test_a_layout_the_trainer_refuses_is_refused() -> None:
    with pytest.raises(HeadwaterError, match="micro-batches"):
        fly(flight(rows=3, pp=4), jobs=1)
    with pytest.raises(HeadwaterError, match="heads"):
        fly(flight(tp=8), jobs=1)


def test_the_memory_of_one_process_is_what_really_is_allocated() -> None:
    """Against the sizes of the tensors that a real step leaves."""
    report = fly(flight(rows=2), jobs=1)
    rank = report.ranks[0]
    weights = sum(4 * torch.Size(shape).numel() for shape in ((512, 256), (512, 256)))
    assert rank.after_step["weights"] > weights
    assert rank.after_step["weights"] == pytest.approx(4 * rank.parameters, rel=0.02)
    assert rank.after_step["optimizer"] == pytest.approx(8 * rank.parameters, rel=0.05)


def test_a_command_flies_a_recipe_with_more_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(
        "schema: 1\nname: tiny\ncluster: a100-80gb:8x2\ncollect: {root: corpus, sources: [{name: a, paths: [a.txt]}]}\n"
        "tokenizer: {vocab_size: 512}\n"
        "model: {hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4, intermediate_size: 128, "
        "max_position_embeddings: 128}\n"
        "train: {steps: 10, global_batch: 64, seq_len: 64, precision: bf16}\n"
        "parallel: {dp_shard: 4, zero_stage: 1, pp: 2, micro_batch: 2}\n"
    )
    page = tmp_path / "flight.html"
    code = run_command(["simulate", str(recipe), "--ranks", "16", "--jobs", "1", "--report", str(page), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0
    assert (found["ranks"], found["micro_batches"]) == (16, 4)
    assert {row["figure"] for row in found["compared"]} >= {"memory allocated", "traffic pp"}
    assert all(row["why"] for row in found["compared"] if row["ratio"] is None or abs(row["ratio"] - 1) > 0.06)
    assert "<svg" in page.read_text()
    assert run_command(["simulate", str(recipe), "--ranks", "15", "--json"]) == 2


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(st.integers(1, 64 << 20), st.booleans()), max_size=60))
def test_an_allocator_holds_at_least_the_peak_and_gives_no_byte_twice(requests: list[tuple[int, bool]]) -> None:
    events: list[tuple[int, int]] = []
    live: dict[int, int] = {}
    peak = 0
    for key, (size, drop) in enumerate(requests):
        size = -(-size // 512) * 512
        events.append((key, size))
        live[key] = size
        peak = max(peak, sum(live.values()))
        if drop:
            oldest = next(iter(live))
            events.append((oldest, 0))
            del live[oldest]
    held = reserved(events)
    assert held >= peak
    assert held <= sum(-(-size // (2 << 20)) * (2 << 20) + (20 << 20) for _, size in events if size) + (2 << 20)


def test_enough_micro_batches_fill_a_pipeline_twice() -> None:
    inter = ParallelConfig(pp=4, schedule="interleaved_1f1b", virtual_stages=2, dp_replicate=2)
    assert simulated_micro_batches(inter, 64) == 8
    assert simulated_micro_batches(inter, 64, 9) == 12
    assert simulated_micro_batches(ParallelConfig(pp=4, schedule="gpipe"), 64) == 64
    assert simulated_micro_batches(ParallelConfig(), 64) == 4
