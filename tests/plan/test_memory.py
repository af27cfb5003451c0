"""Memory: the tables of ZeRO and Korthikanti, and what measured runs used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headwater.plan.build import one_case
from headwater.plan.cases import Cases
from headwater.plan.cluster import parse
from headwater.plan.counts import layer_parameters_local
from headwater.plan.memory import activation_bytes, memory
from headwater.plan.model_spec import ModelSpec
from headwater.plan.train_spec import Layout, TrainSpec

LLAMA_8B = ModelSpec.from_fields(layers=32, hidden=4096, heads=32, kv_heads=8, ffn=14336, vocab=128256)
GPT = ModelSpec.from_fields(layers=32, hidden=4096, heads=32, ffn=16384, vocab=51200, gated=False)


def case(model: ModelSpec = LLAMA_8B, stack: str = "megatron-core", seq: int = 4096, **layout: object) -> Cases:
    shape = Layout(**{"dp": 8, **layout})  # type: ignore[arg-type]
    work = TrainSpec(1e9, seq, 64 * shape.dp, stack=stack)
    return one_case(model, work, parse(f"h100:8x{max(1, shape.gpus // 8)}"), shape)


@pytest.mark.parametrize(("zero", "bytes_each"), [(0, 18.0), (1, 6 + 12 / 8), (2, 2 + 16 / 8), (3, 16 / 8)])
def test_model_states_are_those_of_the_zero_paper(zero: int, bytes_each: float) -> None:
    held = memory(case(zero=zero)).parts
    states = sum(float(held[name][0]) for name in ("weights", "gradients", "optimizer"))
    assert states / LLAMA_8B.parameters == pytest.approx(bytes_each, rel=2e-3)


def test_llama_activations_are_34_bytes_a_hidden_element() -> None:
    x = case(tp=8)
    kept, again = activation_bytes(x)
    per = float(kept[0]) / (4096 * 4096 / 8)
    assert per == pytest.approx(34.0, abs=0.2)
    assert float(again[0]) / (4096 * 4096 / 8) == pytest.approx(2.0)


def test_gpt_activations_are_korthikanti_s() -> None:
    """Table 2: 34 sbh/t with sequence parallelism and selective recompute, dropout masks included."""
    x = case(GPT, "megatron-2022", seq=2048, tp=8)
    kept, _ = activation_bytes(x)
    assert float(kept[0]) / (2048 * 4096 / 8) == pytest.approx(34.0, abs=0.2)
    x.recompute_core = np.zeros(1)
    whole, _ = activation_bytes(x)
    scores = 5 * 32 * 2048 / 4096
    assert float(whole[0]) / (2048 * 4096 / 8) == pytest.approx(34.0 + scores, abs=0.2)
    x.sequence_parallel = np.zeros(1)
    x.recompute_core = np.ones(1)
    partly, _ = activation_bytes(x)
    assert float(partly[0]) / (2048 * 4096) == pytest.approx(10 + 24 / 8, abs=0.05)


def test_context_ranks_share_the_optimizer() -> None:
    plain, wide = memory(case(dp=8)).parts["optimizer"][0], memory(case(dp=4, cp=2)).parts["optimizer"][0]
    assert plain == pytest.approx(wide)


@given(zero=st.integers(0, 2), tp=st.sampled_from([1, 2, 4]), dp=st.sampled_from([1, 2, 4, 8]))
@settings(max_examples=25, deadline=None)
def test_memory_falls_with_tp_dp_and_zero(zero: int, tp: int, dp: int) -> None:
    base = memory(case(zero=zero, tp=tp, dp=dp)).device[0]
    assert memory(case(zero=zero, tp=2 * tp, dp=dp)).device[0] < base + 2**29
    assert memory(case(zero=zero, tp=tp, dp=2 * dp)).device[0] <= base + 2**29
    assert memory(case(zero=zero + 1 if zero < 2 else 2, tp=tp, dp=dp)).device[0] <= base * (1 + 1e-12)


def test_recompute_trades_memory_in_steps() -> None:
    none, light, full = (
        float(memory(case(tp=8, **how)).device[0]) for how in ({}, {"recompute_light": True}, {"recompute": 1.0})
    )
    assert full < light < none


def test_the_last_stage_is_counted_with_its_logits() -> None:
    x = case(pp=2, tp=1, dp=4, micro_batch=8, seq=8192, recompute=1.0)
    stages = memory(x).stages
    assert float(stages[2]["logits"][0]) > 0.0
    assert float(np.asarray(stages[0]["logits"]).max()) == 0.0


def test_three_gauges_are_in_order() -> None:
    held = memory(case(tp=2, pp=2, dp=2))
    assert held.allocated[0] < held.reserved[0] < held.device[0]


def test_expert_parallelism_spreads_the_experts() -> None:
    moe = ModelSpec.from_fields(layers=4, hidden=1024, heads=8, ffn=0, vocab=1024, experts=64, topk=4, expert_ffn=512)
    one = float(layer_parameters_local(case(moe, dp=8))[0])
    eight = float(layer_parameters_local(case(moe, dp=8, ep=8))[0])
    experts = 64 * 3 * 1024 * 512
    assert one - eight == pytest.approx(experts * 7 / 8)


def test_the_175b_recipe_on_4096_gpus_holds_what_a_hand_count_gives() -> None:
    """2.73 B parameters a GPU at 6.19 bytes (16.9 GB) and 96 layers' worth of 34 sbh/8 bytes (10.3 GB)."""
    model = ModelSpec.from_fields(layers=96, hidden=12288, heads=96, ffn=49152, vocab=51200, gated=False)
    shape = Layout(tp=8, pp=8, dp=64, zero=1)
    x = one_case(model, TrainSpec(300e9, 2048, 1536, stack="megatron-core"), parse("a100:8x512"), shape)
    parts = memory(x).stages[0]
    states = sum(float(np.asarray(parts[name]).max()) for name in ("weights", "gradients", "optimizer"))
    assert states / 1e9 == pytest.approx(16.9, rel=0.05)
    assert float(np.asarray(parts["activations"]).max()) / 1e9 == pytest.approx(10.3, rel=0.10)
    assert bool(memory(x).fits(x)[0])
    assert replace(shape, micro_batch=4).gpus == 4096


def test_full_precision_keeps_sixteen_bytes_and_twice_the_activations() -> None:
    half, whole = (
        memory(
            one_case(
                LLAMA_8B, TrainSpec(1e9, 4096, 64, p, stack="fsdp-eager"), parse("h100:8x8"), Layout(dp=64, zero=0)
            )
        )
        for p in ("bf16", "fp32")
    )
    states = sum(float(whole.parts[name][0]) for name in ("weights", "gradients", "optimizer"))
    assert states / LLAMA_8B.parameters == pytest.approx(16.0, rel=1e-3)
    assert float(whole.parts["activations"][0]) == pytest.approx(2 * float(half.parts["activations"][0]), rel=0.02)
