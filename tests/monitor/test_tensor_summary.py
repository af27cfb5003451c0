"""What a line of the record says of a sample of all tensors and heads."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from headwater.monitor.tensor_summary import (
    LOW_SAMPLES,
    LowGradients,
    dead_heads,
    histogram,
    summary,
    tensor_extremes,
)


def test_extremes_are_the_largest_and_the_smallest_of_each_metric() -> None:
    values = {f"t{number}": float(number) for number in range(20)}
    found = tensor_extremes({"grad_norm": values, "head_sink": {"layers.0.head.0": 0.5}}, k=2)
    assert found == {
        "param_grad_norm": {"t0": 0.0, "t1": 1.0, "t18": 18.0, "t19": 19.0},
        "head_sink_ratio": {"layers.0.head.0": 0.5},
    }


def test_the_histogram_counts_norms_by_powers_of_ten() -> None:
    norms = dict(enumerate((0.0, 1e-20, 0.0012, 0.0099, 0.01, 5.0, 1e9, math.inf, math.nan)))
    assert histogram({str(k): v for k, v in norms.items()}) == {"-12": 2, "-3": 2, "-2": 1, "0": 1, "6": 3}


@given(st.dictionaries(st.text(max_size=3), st.floats(0, allow_infinity=True)))
def test_every_norm_is_counted_once(norms: dict[str, float]) -> None:
    assert sum(histogram(norms).values()) == len(norms)


def test_a_large_gradient_is_flagged_at_once_and_a_small_one_when_it_persists() -> None:
    counter = LowGradients(1e-7)
    sample = {"grad_norm": {"large": 2e5, "small": 1e-9, "usual": 0.1, "broken": math.nan}}
    for number in range(1, LOW_SAMPLES + 1):
        figures = summary(sample, counter.add(sample), high=1e5, extremes=5)
        assert figures["grad_flags"] == {"high": 2, "low": int(number >= LOW_SAMPLES)}
        again = LowGradients(1e-7)  # as after a resume
        again.load_state_dict(counter.state_dict())
        counter = again
    once = {"grad_norm": {"small": 1.0}}
    assert counter.add(once) == []
    assert counter.add(sample) == []


def test_dead_heads_are_those_without_output_or_with_one_token_in_view() -> None:
    sample = {
        "head_activity": {"layers.0.head.0": 0.001, "layers.0.head.1": 1.0, "layers.0.head.2": 1.0},
        "head_entropy": {"layers.0.head.0": 0.5, "layers.0.head.1": 0.01, "layers.0.head.2": 0.4},
    }
    assert dead_heads(sample) == ["layers.0.head.0", "layers.0.head.1"]
    assert summary(sample, [], high=1e5, extremes=1)["dead_heads"] == 2
