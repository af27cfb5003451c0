"""Failures, money and scaling laws: against Monte Carlo, published anchors and the field's table of costs."""

from __future__ import annotations

import numpy as np
import pytest

from headwater.core.errors import InputError
from headwater.plan.cluster import parse
from headwater.plan.model_spec import ModelSpec
from headwater.plan.money import cost
from headwater.plan.plan import make_plan
from headwater.plan.reliability import daly, expected_time, reliability, young
from headwater.plan.scaling import CHINCHILLA, REFIT, advice, inference_optimum
from headwater.plan.search import search
from headwater.plan.train_spec import TrainSpec


def test_expected_time_is_that_of_a_simulated_run() -> None:
    work, interval, save, restart, mtbf = 200_000.0, 1800.0, 60.0, 600.0, 10_000.0
    rng = np.random.default_rng(0)
    totals = []
    for _ in range(300):
        wall, done = 0.0, 0.0
        while done < work:
            need = interval + save
            failure = rng.exponential(mtbf)
            if failure >= need:
                wall, done = wall + need, done + interval
                continue
            wall += failure
            while (again := rng.exponential(mtbf)) < restart:  # a failure while restarting starts it over
                wall += again
            wall += restart
        totals.append(wall)
    assert expected_time(work, interval, save, restart, mtbf) == pytest.approx(float(np.mean(totals)), rel=0.02)


def test_daly_s_interval_beats_its_neighbours() -> None:
    save, mtbf, restart = 120.0, 20_000.0, 600.0
    best = daly(save, mtbf)
    times = [expected_time(1e6, best * factor, save, restart, mtbf) for factor in (0.5, 1.0, 2.0)]
    assert times[1] == min(times)
    assert young(save, mtbf) == pytest.approx((2 * save * mtbf) ** 0.5)


def test_llama_405b_fails_every_three_hours() -> None:
    r = reliability(parse("h100:8x2048"), 405e9, 50_700.0)
    assert r.mtbf_seconds / 3600 == pytest.approx(3.1, abs=0.05)
    assert r.failures(54 * 86400) == pytest.approx(419, rel=0.01)
    assert 0.8 < r.goodput < 1.0


def test_a_bloom_checkpoint_is_2_3_terabytes() -> None:
    assert reliability(parse("a100:8x48"), 176e9, 35_000.0).checkpoint_bytes == pytest.approx(2.3e12, rel=0.1)


@pytest.mark.parametrize(
    ("billions", "tokens", "low", "high"),
    [(7, 1e12, 400e3, 800e3), (13, 1e12, 0.8e6, 1.6e6), (70, 1e12, 4e6, 8e6), (175, 1e12, 10e6, 20e6)],
)
def test_the_field_s_table_of_costs_comes_out(billions: int, tokens: float, low: float, high: float) -> None:
    """A100-80GB, all-in: the rule of thumb lies in the table's range, the plan of a tuned layout overlaps it."""
    shapes = {
        7: (32, 4096, 32, 11008), 13: (40, 5120, 40, 13824), 70: (80, 8192, 64, 28672), 175: (96, 12288, 96, 32768),
    }  # fmt: skip
    layers, hidden, heads, ffn = shapes[billions]
    model = ModelSpec.from_fields(
        layers=layers, hidden=hidden, heads=heads, ffn=ffn, vocab=32000, kv_heads=8 if billions == 70 else heads
    )
    work = TrainSpec(tokens, 2048, 2048)
    machines = parse("a100-80gb:8x64")
    plan = make_plan(model, work, machines, search(model, work, machines).layouts[0])
    rule, planned = plan.data["cost"]["rule_of_thumb"], plan.data["cost"]["p50"]
    assert low <= rule["all_in_low"] <= rule["all_in_high"] <= high
    assert planned["all_in_low"] < high
    assert planned["all_in_high"] > low


def test_cost_is_hours_times_price_and_the_factor() -> None:
    machines = parse("a100-80gb:8x8")
    bill = cost(machines, 10.0)
    assert bill.gpu_hours == 64 * 240
    assert bill.rented == pytest.approx(64 * 240 * 1.75)
    assert (bill.all_in_low, bill.all_in_high) == (bill.rented * 3, bill.rented * 5)


def test_the_refit_asks_for_about_twenty_tokens_a_parameter() -> None:
    for flops in (1e23, 1e24):
        n, d = REFIT.optimum(flops)
        assert 15 < d / n < 22
        assert 6 * n * d == pytest.approx(flops)
        assert REFIT.loss(n, d) <= min(REFIT.loss(n * 1.1, d / 1.1), REFIT.loss(n / 1.1, d * 1.1))
    assert CHINCHILLA.optimum(1e24)[1] / CHINCHILLA.optimum(1e24)[0] > 40


def test_scaling_advice_carries_its_uncertainty() -> None:
    said = advice(7e9, 1e12, 2e11)
    assert said["optimal_parameters_low"] < said["optimal_parameters"] < said["optimal_parameters_high"]
    assert said["optimal_tokens_per_parameter_high"] / said["optimal_tokens_per_parameter_low"] > 1.2
    assert said["epochs"] == pytest.approx(5.0)
    assert said["loss"] >= said["loss_at_optimum"]


def test_a_model_that_serves_much_should_be_smaller() -> None:
    seldom, much = inference_optimum(2.0, 1e9), inference_optimum(2.0, 1e14)
    assert much[0] < seldom[0]
    assert much[1] > seldom[1]
    with pytest.raises(InputError, match="floor"):
        inference_optimum(1.8, 1e12)
