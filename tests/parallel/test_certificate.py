"""The certificate: right layouts pass it, layouts broken on purpose do not, and it says which tensor differs first."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from headwater.cli.main import run_command
from headwater.core.errors import RecipeError, UserError
from headwater.model import ModelConfig
from headwater.model.loss import IGNORE
from headwater.parallel import context
from headwater.parallel.config import ParallelConfig
from headwater.parallel.context_method import choose_method, length_problem
from headwater.parallel.mesh import Mesh
from headwater.parallel.short import parse_layout
from headwater.pipeline.certify import case_of, table_row, text
from headwater.train import train_module
from headwater.train.batch import Batch
from headwater.train.certificate import Certificate, certify
from headwater.train.certificate_case import Case, small_case
from headwater.train.config import TrainConfig

MODEL = ModelConfig(
    hidden_size=256,
    num_hidden_layers=6,
    num_attention_heads=16,
    num_key_value_heads=8,
    intermediate_size=704,
    vocab_size=1000,
    qk_norm=True,
    tie_word_embeddings=True,
)


def case(layout: str, model: ModelConfig = MODEL, **train: Any) -> Case:
    fields, precision = parse_layout(layout)
    config = TrainConfig.model_validate({"steps": 100, "optimizer": {"lr": 1e-3}, **train})
    return small_case(model, config, ParallelConfig.model_validate(fields), precision=precision or "fp32", seed=1)


# What the small case keeps.


@given(
    tp=st.sampled_from([1, 2, 4]),
    cp=st.sampled_from([1, 2, 4]),
    pp=st.sampled_from([1, 2]),
    heads=st.sampled_from([(8, 8, 8), (32, 8, 64), (16, 4, 32), (12, 4, 8)]),
    qk_norm=st.booleans(),
    bias=st.booleans(),
    tied=st.booleans(),
    layers=st.integers(2, 9),
)
@settings(max_examples=60, deadline=None)
def test_the_small_model_has_the_structure_of_the_large_one(
    tp: int, cp: int, pp: int, heads: tuple[int, int, int], qk_norm: bool, bias: bool, tied: bool, layers: int
) -> None:
    query, key_value, dim = heads
    model = ModelConfig.model_validate(
        {
            "hidden_size": query * dim,
            "num_attention_heads": query,
            "num_key_value_heads": key_value,
            "num_hidden_layers": layers,
            "vocab_size": 50_000,
            "qk_norm": qk_norm,
            "attention_bias": bias,
            "tie_word_embeddings": tied,
            "rope_scaling": {"rope_type": "linear", "factor": 2.0},
        }
    )
    parallel = ParallelConfig(tp=tp, cp=cp, pp=pp)
    made = small_case(model, TrainConfig(steps=5), parallel, precision="fp32", seed=0)
    small = made.model
    for name in ("qk_norm", "attention_bias", "tie_word_embeddings", "rope_scaling", "rope_theta", "initializer_range"):
        assert getattr(small, name) == getattr(model, name)
    assert small.num_attention_heads * key_value == small.num_key_value_heads * query
    assert small.parameter_count().total < 4_000_000
    assert small.num_key_value_heads % tp == 0
    assert small.intermediate_size % tp == 0
    assert small.num_hidden_layers >= pp
    assert small.true_vocab_size < small.padded_vocab_size
    if cp > 1:
        method, _ = choose_method(parallel, heads=query, kv_heads=key_value)
        small_heads = {"heads": small.num_attention_heads, "kv_heads": small.num_key_value_heads}
        assert choose_method(made.parallel, **small_heads)[0] == method
        assert length_problem(made.parallel, made.train.seq_len, method) is None


def test_steps_have_uneven_rows_documents_and_the_users_optimizer() -> None:
    made = case("dp=2,pp=2", optimizer={"name": "muon", "lr": 0.01}, z_loss=1e-4, activation_checkpointing="full")
    batch = made.batch(1)
    assert batch.rows == made.rows == 2 * 2 * made.micro_batch
    assert len({int((row != IGNORE).sum()) for row in batch.targets}) > 2
    assert batch.documents is not None
    assert int(batch.documents.amax()) > 1
    assert not torch.equal(made.batch(2).tokens, batch.tokens)
    assert (made.train.optimizer.name, made.train.z_loss) == ("muon", 1e-4)
    assert made.train.activation_checkpointing == "full"
    assert case("dp=2", document_mask=False).batch(1).documents is None


# Right layouts.


@pytest.mark.parametrize("layout", ["dp=2,zero=3", "tp=2", "cp=2"])
def test_a_right_layout_agrees(layout: str) -> None:
    found = certify(case(layout))
    assert found.agrees, text(found)
    assert found.first is None
    assert found.moved == found.expected > 0
    facts = found.to_json()
    assert set(facts["differences"]) == {"loss", "gradient", "norm", "weights"}
    assert json.loads(json.dumps(facts))["agrees"] is True
    assert "agrees with one process" in text(found)
    assert table_row(found).endswith("| yes |")


def test_without_document_masks_the_rest_of_the_window_may_move() -> None:
    found = certify(case("cp=2,cp_method=all_gather", document_mask=False))
    assert found.agrees, text(found)
    assert found.expected > certify(case("cp=2,cp_method=all_gather")).expected


# Layouts broken on purpose: ranks inherit what is patched here.


def _broken(layout: str, **changes: Any) -> Certificate:
    found = certify(case(layout, **changes))
    assert not found.agrees
    return found


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_norms_whose_gradients_are_not_summed_over_tensor_ranks_are_named(
    monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    def mark_as_whole(parameters: Iterable[nn.Parameter], mesh: Mesh) -> None:
        for p in parameters:
            if isinstance(p.grad, DTensor) and any(x.is_partial() for x in p.grad.placements):
                assert isinstance(p, DTensor)
                p.grad = DTensor.from_local(p.grad.to_local(), p.device_mesh, p.placements, run_check=False)

    monkeypatch.setattr(train_module, "settle", mark_as_whole)
    found = _broken(f"tp=2,precision={precision}", model=MODEL.model_copy(update={"tie_word_embeddings": False}))
    assert found.first is not None
    assert (found.first.kind, found.first.tensor, found.first.step) == (
        "gradient", "model.layers.0.input_layernorm.weight", 1,
    )  # fmt: skip
    assert not found.leaked
    assert "the first tensor that differs is the gradient of model.layers.0.input_layernorm.weight" in text(found)
    assert table_row(found).endswith("| **no** |")


def test_a_mask_that_forgets_documents_is_caught_as_a_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = context.ContextParallel.layout

    def forget(self: context.ContextParallel, tokens: Tensor, positions: Tensor | None, _: Tensor | None) -> Any:
        return whole(self, tokens, positions, None)

    monkeypatch.setattr(context.ContextParallel, "layout", forget)
    found = _broken("cp=2")
    assert found.leaked
    assert "LEAK" in text(found)
    assert found.to_json()["leak"]["leaked"][0].keys() == {"row", "position"}


def test_columns_that_lose_their_place_in_the_window_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    take = context.take_columns

    def count_anew(*args: Any) -> context.Columns:
        own = take(*args)
        positions = torch.arange(own.tokens.shape[1]).expand_as(own.tokens) if args[0] is not None else own.positions
        return context.Columns(own.tokens, own.targets, positions, own.layout)

    monkeypatch.setattr(train_module, "take_columns", count_anew)
    found = _broken("cp=2")
    assert not found.leaked
    assert found.first is not None


def test_a_rank_that_reads_anothers_rows_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    share = Batch.share
    monkeypatch.setattr(Batch, "share", lambda self, rank, ranks: share(self, 0, ranks))
    found = _broken("dp=2")
    assert max(d.relative for d in found.differences if d.kind == "loss") > 1e-3


def test_a_parameter_that_no_rank_updates_is_a_problem(monkeypatch: pytest.MonkeyPatch) -> None:
    from headwater.train import certificate_ranks

    known = certificate_ranks._parameters

    def lose_one(*args: Any) -> dict[str, nn.Parameter]:
        return {name: p for name, p in known(*args).items() if name != "model.norm.weight"}

    monkeypatch.setattr(certificate_ranks, "_parameters", lose_one)
    found = _broken("dp=2")
    assert "no rank holds model.norm.weight" in found.problems


# The command.

RECIPE = """
schema: 1
tokenizer: {vocab_size: 512}
model: {hidden_size: 64, num_hidden_layers: 4, num_attention_heads: 4, num_key_value_heads: 2}
train: {steps: 10, global_batch: 8, seq_len: 64}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "recipe.yaml"
    path.write_text(RECIPE, "utf-8")
    return path


def test_the_command_says_0_for_a_layout_that_agrees(recipe: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run_command(["check", str(recipe), "--layout", "dp=2,zero=2", "--json"]) == 0
    facts = json.loads(capfd.readouterr().out)
    assert (facts["agrees"], facts["ranks"], facts["layout"]) == (True, 2, "dp_shard=2,zero=2,micro_batch=2")


def test_the_command_says_1_for_a_layout_that_does_not(
    recipe: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    share = Batch.share
    monkeypatch.setattr(Batch, "share", lambda self, rank, ranks: share(self, 0, ranks))
    assert run_command(["check", str(recipe), "--layout", "dp=2"]) == 1
    assert "does NOT agree with one process" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("layout", "reason"),
    [
        ("tp=4", "num_key_value_heads 2"),
        ("dp=3", "global batch 8 does not divide over 3 data-parallel ranks"),
        ("pp=8", "need 8 layers"),
        ("cp=3", "64 tokens do not divide into 6 pieces for cp 3"),
        ("dp=1", "the layout is one process"),
        ("dp=2,tp", "tp has no value"),
        ("pp=2,schedule=roundabout", "roundabout"),
        ("dp=8,tp=2,cp=8", "128 ranks are more than the 64 processes this starts on one machine"),
    ],
)
def test_the_command_says_2_and_why_for_a_layout_that_cannot_be(
    recipe: Path, capfd: pytest.CaptureFixture[str], layout: str, reason: str
) -> None:
    assert run_command(["check", str(recipe), "--layout", layout]) == 2
    assert reason in capfd.readouterr().err


def test_without_a_layout_the_recipes_own_is_taken(recipe: Path) -> None:
    with pytest.raises(UserError, match="one process"):
        case_of(recipe, None)
    made = case_of(recipe, None, overrides=["parallel={tp: 2, cp: 2, cp_method: all_gather}"])
    assert (made.parallel.tp, made.parallel.cp, made.precision) == (2, 2, "fp32")
    with pytest.raises(RecipeError):
        case_of(recipe, "tp=2,precision=fp12")


def test_the_recipes_precision_is_taken_unless_the_layout_names_one(recipe: Path) -> None:
    assert case_of(recipe, "tp=2", overrides=["train.precision=bf16"]).precision == "bf16"
    assert case_of(recipe, "tp=2,precision=fp32", overrides=["train.precision=bf16"]).precision == "fp32"
