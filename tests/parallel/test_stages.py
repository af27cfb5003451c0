"""How a model is cut into stages, and which numbers of micro-batches a schedule takes."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from headwater.model import ModelConfig
from headwater.parallel.config import INTERLEAVED, V_SHAPED, ParallelConfig
from headwater.parallel.stages import (
    choose_for_pipeline,
    compile_problem,
    head_units,
    least_micro_batches,
    micro_batch_choices,
    micro_batch_problem,
    of_rank,
    split,
)
from headwater.plan.schedules import stage_layers
from headwater.plan.stage_split import rank_of_stage, split_layers
from headwater.plan.train_spec import SCHEDULE_NAMES

SCHEDULES = ("gpipe", "1f1b", *INTERLEAVED, *V_SHAPED)


def layout(schedule: str, pp: int, virtual: int | None = None) -> ParallelConfig:
    stages = virtual or (1 if schedule in ("gpipe", "1f1b") else 2)
    return ParallelConfig.model_validate({"pp": pp, "schedule": schedule, "virtual_stages": stages})


def model(layers: int, vocab: int = 256) -> ModelConfig:
    return ModelConfig(
        hidden_size=64, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=128, vocab_size=vocab
    )


@given(st.integers(1, 200), st.integers(1, 16), st.integers(1, 4), st.floats(0, 6), st.booleans())
def test_every_layer_is_in_one_stage_and_no_stage_is_empty(
    layers: int, pp: int, chunks: int, head: float, v_shaped: bool
) -> None:
    chunks = 2 if v_shaped else chunks
    assume(layers >= pp * chunks)
    counts = split_layers(layers, pp=pp, chunks=chunks, head_units=head, v_shaped=v_shaped)
    assert len(counts) == pp * chunks
    assert sum(counts) == layers
    assert min(counts) >= 1


@given(st.integers(1, 200), st.integers(1, 16), st.integers(1, 4), st.floats(0, 6))
def test_no_rank_could_give_a_layer_to_another_and_shorten_the_step(
    layers: int, pp: int, chunks: int, head: float
) -> None:
    assume(layers >= pp * chunks)
    counts = split_layers(layers, pp=pp, chunks=chunks, head_units=head)
    loads = [0.0] * pp
    for stage, count in enumerate(counts):
        loads[rank_of_stage(stage, pp, chunks, v_shaped=False)] += count
    loads[(len(counts) - 1) % pp] += head
    heaviest = max(range(pp), key=lambda rank: loads[rank])
    can_give = any(counts[stage] > 1 for stage in range(heaviest, len(counts), pp))
    if can_give and pp > 1:
        assert loads[heaviest] - min(loads) <= 1 + 1e-9


def test_uneven_layers_and_a_heavy_head_are_balanced() -> None:
    assert split_layers(5, pp=2, head_units=0.4) == (3, 2)
    assert split_layers(5, pp=4, head_units=0.4) == (1, 1, 2, 1)
    assert split_layers(32, pp=4, head_units=0.65) == (8, 8, 8, 8)
    assert split_layers(32, pp=4, head_units=2.4) == (8, 9, 9, 6)  # Llama 3 8B, vocabulary 128,256
    assert split_layers(10, pp=4, chunks=2, head_units=0.5) == (1, 1, 1, 1, 1, 2, 2, 1)


def test_a_v_brings_the_last_stage_back_to_the_first_rank() -> None:
    specs = split(model(8), layout("zbv", 4))
    assert [spec.rank for spec in specs] == [0, 1, 2, 3, 3, 2, 1, 0]
    assert [(s.index, s.first, s.last) for s in of_rank(specs, 0)] == [(0, True, False), (7, False, True)]
    looped = split(model(8), layout("interleaved_1f1b", 4))
    assert [spec.rank for spec in looped] == [0, 1, 2, 3, 0, 1, 2, 3]
    assert specs[7].describe() == "stage 7 on rank 0: layer 7, head"


def test_a_single_process_is_one_stage() -> None:
    (whole,) = split(model(3), ParallelConfig())
    assert (whole.layers, whole.first, whole.last) == (range(3), True, True)


def test_more_stages_than_layers_are_refused() -> None:
    with pytest.raises(ValueError, match="3 layers cannot fill 4 stages"):
        split(model(3), layout("1f1b", 4))


@pytest.mark.parametrize(
    ("schedule", "pp", "fine", "wrong"),
    [
        ("gpipe", 4, [1, 2, 3, 4, 7], []),
        ("1f1b", 4, [4, 5, 9], [1, 3]),
        ("interleaved_1f1b", 4, [4, 8, 12], [2, 5, 6]),
        ("interleaved_zero_bubble", 2, [2, 4, 6], [1, 3]),
        ("zbv", 2, [4, 5, 6], [1, 3]),
        ("dualpipev", 2, [4, 5, 6], [1, 3]),
    ],
)
def test_the_micro_batches_a_schedule_takes(schedule: str, pp: int, fine: list[int], wrong: list[int]) -> None:
    for number in fine:
        assert micro_batch_problem(layout(schedule, pp), number) is None
    for number in wrong:
        problem = micro_batch_problem(layout(schedule, pp), number)
        assert problem is not None
        assert schedule in problem[0]
        assert str(number) in problem[0]


@given(st.sampled_from(SCHEDULES), st.integers(2, 5), st.integers(1, 48))
def test_choices_are_the_divisors_a_schedule_takes(schedule: str, pp: int, rows: int) -> None:
    parallel = layout(schedule, pp)
    for size in micro_batch_choices(parallel, rows):
        assert rows % size == 0
        assert rows // size >= least_micro_batches(parallel)
        assert micro_batch_problem(parallel, rows // size) is None


def test_the_trainer_chooses_the_largest_micro_batch_that_keeps_the_pipeline_busy() -> None:
    size, why = choose_for_pipeline(layout("1f1b", 4), [64], 64)
    assert (size, why) == (4, "16 micro-batches a step leave a pipeline rank idle for about 16% of it")
    assert choose_for_pipeline(layout("1f1b", 4), [64], 2)[0] == 2  # no more fit
    assert choose_for_pipeline(layout("interleaved_1f1b", 4), [16, 64], 64)[0] == 2  # 8 of them with 2 chunks
    assert choose_for_pipeline(layout("gpipe", 2), [3], 8)[0] == 1
    with pytest.raises(ValueError, match=r"no micro-batch cuts steps of 3 samples .* at least 4"):
        choose_for_pipeline(layout("zbv", 2), [3], 8)


@given(st.sampled_from(SCHEDULES), st.integers(2, 4), st.lists(st.integers(8, 64), min_size=1, max_size=3))
def test_what_the_trainer_chooses_cuts_every_step(schedule: str, pp: int, rows: list[int]) -> None:
    parallel = layout(schedule, pp)
    try:
        size, _ = choose_for_pipeline(parallel, rows, 16)
    except ValueError:
        assert not set[int].intersection(*(set(micro_batch_choices(parallel, number)) for number in rows))
    else:
        assert all(micro_batch_problem(parallel, number // size) is None and number % size == 0 for number in rows)


def test_compiled_blocks_go_with_whole_backward_passes_only() -> None:
    assert compile_problem(layout("zbv", 2), compiled=True) is not None
    assert compile_problem(layout("zbv", 2), compiled=False) is None
    assert compile_problem(layout("interleaved_1f1b", 2), compiled=True) is None
    assert compile_problem(ParallelConfig(), compiled=True) is None


def test_the_planner_counts_with_the_cut_that_is_trained() -> None:
    config = model(11, vocab=4000)
    for schedule, pp in [("1f1b", 4), ("interleaved_1f1b", 3), ("zbv", 2)]:
        parallel = layout(schedule, pp)
        layers = [sum(len(spec.layers) for spec in of_rank(split(config, parallel), rank)) for rank in range(pp)]
        units = head_units(config)
        code = SCHEDULE_NAMES[schedule]
        first, full, last = stage_layers(11.0, float(pp), 3, units, float(parallel.virtual_stages), code)
        if schedule == "zbv":
            assert [float(full), float(last)] == [layers[1], layers[0]]
        else:
            assert [float(first), float(last)] == [layers[0], layers[-1]]
            assert float(full) == max(layers[1:-1])
