"""Every schedule gives the loss, gradients, norm and weights of one process; what cannot run is refused at once."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from headwater.core.errors import HeadwaterError, RecipeError
from headwater.model import BlockLayout, Decoder, Encoder, ModelConfig, cross_entropy, init_weights
from headwater.model.loss import IGNORE
from headwater.parallel.config import ParallelConfig
from headwater.parallel.context import Columns
from headwater.parallel.pipeline import Pipeline, refuse_compiled
from headwater.parallel.remat import Mode, checkpoint_layers
from headwater.parallel.stages import SPLIT_BACKWARD, of_rank, split
from headwater.parallel.tied import is_copy
from tests.parallel.ranks import RankError, run_ranks

CPU = torch.device("cpu")
SEQ, ROWS, MICRO = 24, 8, 4  # tokens a row, rows a step, micro-batches
LOSS, GRADIENT, CHANGE = 1e-5, 1e-4, 1e-3  # relative differences allowed between a layout and one process


def model_config(*, tied: bool, layers: int = 5, **fields: Any) -> ModelConfig:
    sizes = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
    return ModelConfig.model_validate(
        sizes | {"num_hidden_layers": layers, "vocab_size": 150, "tie_word_embeddings": tied} | fields
    )


def layout(schedule: str, pp: int) -> ParallelConfig:
    virtual = 1 if schedule in ("gpipe", "1f1b") else 2
    return ParallelConfig.model_validate({"pp": pp, "schedule": schedule, "virtual_stages": virtual})


def micro_batches(step: int, number: int = MICRO, rows: int = ROWS, seq: int = SEQ) -> list[Columns]:
    """Rows with documents of very different lengths, so that positions, masks and valid tokens differ between them."""
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(150, (rows, seq + 1), generator=generator)
    documents = (torch.rand(rows, seq + 1, generator=generator) < 0.2).cumsum(1).int()
    documents[0] = torch.arange(seq + 1).int() // 2
    targets = torch.where(documents[:, 1:] == documents[:, :-1], tokens[:, 1:], IGNORE)
    inputs = documents[:, :-1].contiguous()
    starts = torch.where(F.pad(inputs.diff(dim=1) != 0, (1, 0)), torch.arange(seq), 0).cummax(1).values
    positions = (torch.arange(seq) - starts).int()
    return [
        Columns(tokens[part, :-1], targets[part], positions[part], BlockLayout(inputs[part]))
        for part in torch.arange(rows).chunk(number)
    ]


def forward(stage: nn.Module, stream: Tensor, part: Columns) -> Tensor:
    hidden = stage(stream, part.positions, part.layout)
    assert isinstance(hidden, Tensor)
    return hidden


def mean_loss(predicted: int) -> Callable[[nn.Module, Tensor, Columns], tuple[Tensor, Tensor]]:
    def loss(stage: nn.Module, hidden: Tensor, part: Columns) -> tuple[Tensor, Tensor]:
        assert isinstance(stage, (Decoder, Encoder))
        bias = stage.lm_head_bias if isinstance(stage, Encoder) else None
        vocabulary = stage.config.true_vocab_size
        result = cross_entropy(
            hidden, stage.lm_head_weight, part.targets, vocab_size=vocabulary, z_loss=1e-4, bias=bias
        )
        return result.total / predicted, torch.stack((result.nats, result.count.double()))

    return loss


def predicted_tokens(parts: list[Columns]) -> int:
    return sum(int((part.targets != IGNORE).sum()) for part in parts)


def train(parts_of: Callable[[int], list[Columns]], stages: list[nn.Module], own: dict[str, nn.Parameter],
          run: Callable[[list[Columns]], Tensor], norm: Callable[[float], float]) -> dict[str, Any]:  # fmt: skip
    """Three AdamW steps; figures of each, gradients of the first, weights of the last."""
    optimizer = torch.optim.AdamW(own.values(), lr=1e-3, eps=1e-6, weight_decay=0.1)
    before = {name: parameter.detach().clone() for name, parameter in own.items()}
    losses, norms, gradients = [], [], {}
    for step in range(3):
        nats, count = run(parts_of(step)).tolist()
        losses.append(nats / count)
        norms.append(norm(sum(float(p.grad.double().square().sum()) for p in own.values() if p.grad is not None)))
        if step == 0:
            gradients = {name: p.grad.clone() for name, p in own.items() if p.grad is not None}
        optimizer.step()
        for stage in stages:
            stage.zero_grad()
    with torch.no_grad():
        changes = {name: parameter - before[name] for name, parameter in own.items()}
    return {"losses": losses, "norms": norms, "gradients": gradients, "changes": changes}


@functools.cache
def one_process(tied: bool, number: int = MICRO, rows: int = ROWS, **fields: Any) -> dict[str, Any]:
    """What the layouts are compared with."""
    config = model_config(tied=tied, **fields)
    model = Encoder(config) if config.architecture == "encoder" else Decoder(config)
    init_weights(model, seed=3)

    def run(parts: list[Columns]) -> Tensor:
        loss, sums = mean_loss(predicted_tokens(parts)), torch.zeros(2, dtype=torch.float64)
        for part in parts:
            scalar, figures = loss(model, forward(model, part.tokens, part), part)
            scalar.backward()
            sums += figures
        return sums

    own = dict(model.named_parameters())
    result = train(functools.partial(micro_batches, number=number, rows=rows), [model], own, run, math.sqrt)
    with torch.no_grad():
        parts = micro_batches(9, 3, 6)
        result["evaluated"] = sum(
            mean_loss(1)(model, forward(model, part.tokens, part), part)[1] for part in parts
        ).tolist()  # type: ignore[union-attr]
    return result


def everywhere(sums: Tensor) -> Tensor:
    """The last stage's sums on every rank."""
    dist.all_reduce(sums)
    return sums


def build(config: ModelConfig, parallel: ParallelConfig, **options: Any) -> tuple[Pipeline, list[nn.Module]]:
    specs = split(config, parallel)
    group = dist.group.WORLD
    assert group is not None
    own = of_rank(specs, dist.get_rank())
    kind = Encoder if config.architecture == "encoder" else Decoder
    chunks: list[nn.Module] = [kind(config, layers=s.layers, first=s.first, last=s.last) for s in own]
    for chunk in chunks:
        init_weights(chunk, seed=3)  # type: ignore[arg-type]
    pipeline = Pipeline(
        specs, chunks, parallel, group, CPU, width=config.hidden_size, tied=config.tie_word_embeddings, **options
    )
    return pipeline, chunks


def owned(chunks: list[nn.Module]) -> dict[str, nn.Parameter]:
    return {
        name: parameter for chunk in chunks for name, parameter in chunk.named_parameters() if not is_copy(name, chunk)
    }


def in_a_pipeline(schedule: str, tied: bool, number: int, rows: int, fields: dict[str, Any]) -> dict[str, Any]:
    parallel, config = layout(schedule, dist.get_world_size()), model_config(tied=tied, **fields)
    pipeline, chunks = build(config, parallel)
    own = owned(chunks)

    def run(parts: list[Columns]) -> Tensor:
        return everywhere(pipeline.forward_backward(parts, forward, mean_loss(predicted_tokens(parts)), figures=2))

    def norm(square: float) -> float:
        total = torch.tensor(square, dtype=torch.float64)
        dist.all_reduce(total)
        return math.sqrt(float(total))

    result = train(functools.partial(micro_batches, number=number, rows=rows), chunks, own, run, norm)
    evaluated = pipeline.evaluate(micro_batches(9, 3, 6), forward, mean_loss(1), figures=2)
    result["evaluated"] = everywhere(evaluated).tolist()
    return result


def compare(ranks: list[dict[str, Any]], one: dict[str, Any]) -> None:
    for rank in ranks:
        assert rank["losses"] == pytest.approx(one["losses"], rel=LOSS)
        assert rank["norms"] == pytest.approx(one["norms"], rel=GRADIENT)
        assert rank["evaluated"] == pytest.approx(one["evaluated"], rel=LOSS)
    gradients = {name: value for rank in ranks for name, value in rank["gradients"].items()}
    assert sum(len(rank["gradients"]) for rank in ranks) == len(gradients) == len(one["gradients"])
    for name, whole in one["gradients"].items():
        assert float((gradients[name] - whole).abs().max() / whole.abs().max()) <= GRADIENT, name
    changes = {name: value for rank in ranks for name, value in rank["changes"].items()}
    for name, whole in one["changes"].items():
        assert float((changes[name] - whole).norm() / whole.norm()) <= CHANGE, name


@pytest.mark.parametrize("tied", [False, True], ids=["untied", "tied"])
@pytest.mark.parametrize(
    "schedule", ["gpipe", "1f1b", "interleaved_1f1b", "interleaved_zero_bubble", "zbv", "dualpipev"]
)
def test_a_schedule_on_two_ranks_equals_one_process(schedule: str, tied: bool) -> None:
    compare(run_ranks(2, in_a_pipeline, schedule, tied, MICRO, ROWS, {}), one_process(tied))


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_zero_bubble", "dualpipev"])
def test_an_encoder_in_a_pipeline_equals_one_process(schedule: str) -> None:
    fields: dict[str, Any] = {"architecture": "encoder", "num_key_value_heads": 4}
    compare(run_ranks(2, in_a_pipeline, schedule, True, MICRO, ROWS, fields), one_process(True, **fields))


@pytest.mark.parametrize(
    ("schedule", "number", "fields"),
    [
        ("1f1b", 5, {"layers": 5, "qk_norm": True, "attention_bias": True}),
        ("interleaved_1f1b", 4, {"layers": 9}),
        ("interleaved_zero_bubble", 4, {"layers": 8}),
        ("zbv", 8, {"layers": 10}),
    ],
)
def test_a_schedule_on_four_ranks_equals_one_process(schedule: str, number: int, fields: dict[str, Any]) -> None:
    rows = number
    compare(
        run_ranks(4, in_a_pipeline, schedule, True, number, rows, fields), one_process(True, number, rows, **fields)
    )


def checkpointed(schedule: str) -> dict[str, Any]:
    parallel, config = layout(schedule, 2), model_config(tied=False)
    pipeline, chunks = build(config, parallel)
    for chunk in chunks:
        assert isinstance(chunk, Decoder)
        mode: Mode = "selective" if schedule == "zbv" else "full"
        checkpoint_layers(chunk.model.layers, mode, split_backward=schedule in SPLIT_BACKWARD)
    parts = micro_batches(0)
    sums = pipeline.forward_backward(parts, forward, mean_loss(predicted_tokens(parts)), figures=2)
    return {"sums": everywhere(sums).tolist(), "gradients": {n: p.grad for n, p in owned(chunks).items()}}


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_zero_bubble", "zbv"])
def test_activations_computed_again_change_nothing(schedule: str) -> None:
    one = one_process(False)
    for rank in run_ranks(2, checkpointed, schedule):
        assert rank["sums"][0] / rank["sums"][1] == pytest.approx(one["losses"][0], rel=LOSS)
        for name, gradient in rank["gradients"].items():
            whole = one["gradients"][name]
            assert float((gradient - whole).abs().max() / whole.abs().max()) <= GRADIENT, name


def other_shapes(schedule: str) -> list[float]:
    """Losses of steps of many shapes through one pipeline, and the same in this process alone; buffers left over."""
    parallel, config = layout(schedule, 2), model_config(tied=True)
    pipeline, _ = build(config, parallel)
    model = Decoder(config)
    init_weights(model, seed=3)
    worst = 0.0
    for number, rows, seq in [(4, 8, 24), (4, 8, 40), (8, 8, 24), (4, 4, 16), (4, 8, 24)]:
        parts = micro_batches(rows + seq, number, rows, seq)
        loss = mean_loss(1)
        for run in (pipeline.evaluate, pipeline.forward_backward):
            nats = everywhere(run(parts, forward, loss, figures=2))[0].item()
            with torch.no_grad():
                alone = sum(loss(model, forward(model, part.tokens, part), part)[1][0].item() for part in parts)
            worst = max(worst, abs(nats / alone - 1))
    held = [
        info.buffer
        for stages, _ in pipeline._built.values()
        for stage in stages
        for infos in (*stage.args_recv_info.values(), *stage.grad_recv_info.values())
        for info in infos
        if info.buffer is not None
    ]
    return [worst, len(held)]


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved_zero_bubble", "dualpipev"])
def test_sequences_and_batches_may_change_their_length_and_no_buffer_stays(schedule: str) -> None:
    for worst, held in run_ranks(2, other_shapes, schedule):
        assert worst <= LOSS
        assert held == 0


def leaking() -> Tensor:
    """How much each position's loss moves when one token of the first document is another."""
    parallel, config = layout("1f1b", 2), model_config(tied=False)
    pipeline, _ = build(config, parallel)
    documents = (torch.arange(SEQ) // 8).expand(2, -1).int()
    tokens, targets = torch.arange(2 * SEQ).view(2, SEQ) % 150, torch.arange(2 * SEQ).view(2, SEQ) % 149

    def loss(stage: nn.Module, hidden: Tensor, part: Columns) -> tuple[Tensor, Tensor]:
        result = cross_entropy(hidden, stage.lm_head_weight, part.targets, per_token=True)  # type: ignore[arg-type]
        assert result.per_token is not None
        return result.total, result.per_token.flatten().double()

    losses = []
    for token in (7, 8):
        changed = tokens.clone()
        changed[0, 2] = token
        positions = (torch.arange(SEQ) % 8).expand(2, -1).int()
        part = Columns(changed, targets, positions, BlockLayout(documents))
        losses.append(everywhere(pipeline.evaluate([part], forward, loss, figures=2 * SEQ)))
    return (losses[0] - losses[1]).abs().view(2, SEQ)


def test_documents_do_not_leak_into_one_another_in_any_stage() -> None:
    for moved in run_ranks(2, leaking):
        assert bool((moved[0, 2:8] > 0).all())
        assert float(moved[0, :2].max()) == float(moved[0, 8:].max()) == float(moved[1].max()) == 0


def too_few(schedule: str, number: int) -> str:
    pipeline, _ = build(model_config(tied=False), layout(schedule, 2))
    try:
        pipeline.forward_backward(micro_batches(0, number, number), forward, mean_loss(1), figures=2)
    except RecipeError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("schedule", "number", "words"),
    [
        ("1f1b", 1, "at least 2 micro-batches"),
        ("interleaved_1f1b", 3, "in groups of pp 2"),
        ("interleaved_zero_bubble", 5, "in groups of pp 2"),
        ("zbv", 3, "at least 4 micro-batches"),
        ("dualpipev", 2, "at least 4 micro-batches"),
    ],
)
def test_micro_batches_a_schedule_cannot_run_are_refused_at_once(schedule: str, number: int, words: str) -> None:
    for message in run_ranks(2, too_few, schedule, number, timeout=20):
        assert words in message
        assert "mend: " in message


def different_steps() -> str:
    pipeline, _ = build(model_config(tied=False), layout("1f1b", 2))
    seq = 24 if dist.get_rank() == 0 else 32
    try:
        pipeline.forward_backward(micro_batches(0, seq=seq), forward, mean_loss(1), figures=2)
    except HeadwaterError as error:
        return str(error)
    return ""


def test_ranks_that_would_wait_for_each_other_are_told_who_runs_what() -> None:
    for message in run_ranks(2, different_steps, timeout=20):
        assert "pipeline rank 0: training 4 micro-batches of 2 x 24 tokens" in message
        assert "pipeline rank 1: training 4 micro-batches of 2 x 32 tokens" in message


def shorter(stage: nn.Module, stream: Tensor, part: Columns) -> Tensor:
    return forward(stage, stream, part)[:, 1:]


def wrong_stream() -> str:
    pipeline, _ = build(model_config(tied=False), layout("gpipe", 2))
    pipeline.forward_backward(micro_batches(0), shorter, mean_loss(1), figures=2)
    return ""


def test_a_stage_that_gives_what_the_next_does_not_take_says_so() -> None:
    with pytest.raises(RankError, match=r"stage 0 gives \[2, 23, 32\] where the next stage takes \[2, 24, 32\]"):
        run_ranks(2, wrong_stream, timeout=20)


def received(dtype: torch.dtype) -> list[tuple[torch.dtype, bool]]:
    """Of every stream the second stage computes on: its dtype, and whether bfloat16 holds its numbers exactly."""
    found: list[tuple[torch.dtype, bool]] = []

    def seen(stage: nn.Module, stream: Tensor, part: Columns) -> Tensor:
        if stream.is_floating_point():
            found.append((stream.dtype, torch.equal(stream, stream.bfloat16().float())))
        return forward(stage, stream, part)

    pipeline, _ = build(model_config(tied=False), layout("1f1b", 2), message_dtype=dtype)
    pipeline.forward_backward(micro_batches(0), seen, mean_loss(1), figures=2)
    return found


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_stream_travels_in_the_dtype_of_products_and_is_float32_inside(dtype: torch.dtype) -> None:
    first, second = run_ranks(2, received, dtype)
    assert first == []
    assert second == [(torch.float32, dtype == torch.bfloat16)] * MICRO


def test_compiled_blocks_are_refused_where_the_backward_pass_is_split() -> None:
    model = Decoder(model_config(tied=False))
    refuse_compiled([model], layout("zbv", 2))
    model.model.layers["1"].compile()
    refuse_compiled([model], layout("interleaved_1f1b", 2))
    with pytest.raises(RecipeError, match=r"schedule zbv .* which compiled blocks cannot"):
        refuse_compiled([model], layout("zbv", 2))


def copies(schedule: str) -> dict[str, Any]:
    """After a step: the embedding, the head's copy, and whether the copy has a gradient that would be counted twice."""
    parallel, config = layout(schedule, 2), model_config(tied=True)
    pipeline, chunks = build(config, parallel)
    own = owned(chunks)
    optimizer = torch.optim.AdamW(own.values(), lr=1e-2)
    parts = micro_batches(0)
    for _ in range(2):
        pipeline.forward_backward(parts, forward, mean_loss(predicted_tokens(parts)), figures=2)
        optimizer.step()
        optimizer.zero_grad()
    pipeline.evaluate(parts, forward, mean_loss(1), figures=2)
    found: dict[str, Any] = {"names": list(own)}
    for chunk in chunks:
        assert isinstance(chunk, Decoder)
        if chunk.model.embed_tokens is not None:
            found["embedding"] = chunk.model.embed_tokens.weight.detach()
        if chunk.lm_head is not None:
            found["copy"], found["copy_gradient"] = chunk.lm_head.weight.detach(), chunk.lm_head.weight.grad
    return found


@pytest.mark.parametrize("schedule", ["1f1b", "zbv"])
def test_a_tied_embedding_is_one_matrix_with_one_name(schedule: str) -> None:
    found = run_ranks(2, copies, schedule)
    names = [name for rank in found for name in rank["names"]]
    assert names.count("model.embed_tokens.weight") == 1
    assert "lm_head.weight" not in names
    merged = found[0] | found[1]
    assert torch.equal(merged["embedding"], merged["copy"])
    assert merged["copy_gradient"] is None
