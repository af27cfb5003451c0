"""Figures of tensors and heads are those of one process in every layout, and looking changes nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from headwater.dataset.steps import rank_slice
from headwater.model import ModelConfig
from headwater.model.loss import IGNORE
from headwater.parallel.agreement import Ranks
from headwater.parallel.config import ParallelConfig
from headwater.parallel.mesh import build_mesh
from headwater.parallel.precision import Precision
from headwater.train.batch import Batch
from headwater.train.collectors import heads
from headwater.train.collectors.sample import SampleObserver
from headwater.train.collectors.tensors import TensorFigures
from headwater.train.config import TrainConfig
from headwater.train.train_module import TrainModule
from tests.parallel.parity import MODEL, ROWS, batch, train_config, whole
from tests.parallel.ranks import run_ranks

Sample = dict[str, dict[str, float]]
EVERYTHING = ("gradients", "updates", "heads")
METRICS = {"grad_norm", "weight_norm", "update_ratio", "head_entropy", "head_sink", "head_max_logit", "head_activity"}


def of_domains(whole: Batch) -> Batch:
    """Every row of one of three domains, told by its first token."""
    domains = whole.tokens[:, 0] % 3
    tokens = {name: int((domains == place).sum()) * whole.tokens.shape[1] for place, name in enumerate("abc")}
    return replace(whole, domains=domains, domain_tokens=tokens)


def samples(parallel: ParallelConfig, model: ModelConfig, config: TrainConfig, micro_batch: int) -> list[Sample]:
    """Two sampled steps by this process, as one rank of the layout, and their losses by domain."""
    mesh = build_mesh(parallel, torch.device("cpu"))
    module = TrainModule.build(model, config, mesh=mesh, precision="fp32", micro_batch=micro_batch, seed=3)
    rows = rank_slice(range(ROWS), mesh.coordinate("dp"), mesh.size("dp"))
    observer = SampleObserver(module, Ranks.new(30), EVERYTHING)
    module.observer = observer
    found = []
    for step in (1, 2):
        own = of_domains(batch(step, rows, masked=config.objective.name == "mlm"))
        outcome = module.train_step(step, own, lr_factor=1.0)
        found.append(observer.sample | {"loss by domain": outcome.domain_loss})
    return found


def compare(parallel: ParallelConfig, model: ModelConfig = MODEL, config: TrainConfig | None = None) -> None:
    config = config or train_config()
    expected = samples(ParallelConfig(), model, config, ROWS)
    for found in run_ranks(parallel.ranks, samples, parallel, model, config, 2):
        for mine, theirs in zip(found, expected, strict=True):
            assert set(mine) == set(theirs) == METRICS | {"loss by domain"}
            for metric, values in theirs.items():
                assert list(mine[metric]) == list(values), metric
                for name, value in values.items():
                    assert mine[metric][name] == pytest.approx(value, rel=2e-3, abs=1e-6), (metric, name)


LAYOUTS: dict[str, dict[str, Any]] = {
    "dp 2": {"dp_replicate": 2},
    "zero 3": {"dp_shard": 2, "zero_stage": 3},
    "tp 2": {"tp": 2},
    "tp 2 x dp 2": {"tp": 2, "dp_shard": 2},
    "pp 2": {"pp": 2},
    "pp 2, two stages a rank, x tp 2": {"pp": 2, "tp": 2, "schedule": "interleaved_1f1b", "virtual_stages": 2},
    "cp 2 by ulysses": {"cp": 2, "cp_method": "ulysses"},
    "cp 2 by gathering": {"cp": 2, "cp_method": "all_gather"},
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
def test_every_rank_has_the_figures_of_one_process(layout: dict[str, Any]) -> None:
    compare(ParallelConfig.model_validate(layout))


def test_losses_by_domain_make_up_the_loss() -> None:
    mesh = build_mesh(ParallelConfig(), torch.device("cpu"))
    module = TrainModule.build(MODEL, train_config(), mesh=mesh, precision="fp32", micro_batch=3, seed=3)
    rows = of_domains(batch(1))
    outcome = module.train_step(1, rows, lr_factor=1.0)
    assert rows.domains is not None
    counts = [int((rows.targets[rows.domains == place] != IGNORE).sum()) for place in range(3)]
    assert len(outcome.domain_loss) == sum(count > 0 for count in counts) > 1
    total = sum(outcome.domain_loss[name] * count for name, count in zip("abc", counts, strict=True) if count)
    assert total / sum(counts) == pytest.approx(outcome.loss, rel=1e-6)


def test_an_encoder_s_heads_see_both_ways_within_their_reach() -> None:
    shape = MODEL.model_dump(include={"hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size"})
    encoder = {"architecture": "encoder", "intermediate_size": 96, "max_position_embeddings": 64}
    model = ModelConfig.model_validate(shape | encoder | {"encoder": {"local_attention": 8}})
    compare(ParallelConfig(tp=2), model, train_config(objective={"name": "mlm"}))


def test_figures_are_what_a_simple_computation_gives() -> None:
    torch.set_num_threads(1)
    mesh = build_mesh(ParallelConfig(), torch.device("cpu"))
    module = TrainModule.build(MODEL, train_config(), mesh=mesh, precision="fp32", micro_batch=4, seed=3)
    before = {name: whole(parameter) for name, parameter in module.parameters.items()}
    observer = SampleObserver(module, Ranks(), EVERYTHING)
    module.observer = observer
    outcome = module.train_step(1, batch(1), lr_factor=1.0)
    sample = observer.sample
    total = math.sqrt(sum(norm**2 for norm in sample["grad_norm"].values()))
    assert total == pytest.approx(outcome.grad_norm)
    assert outcome.clip_factor < 1  # and they are those before clipping
    for name, parameter in module.parameters.items():
        moved = float((parameter.detach() - before[name]).norm() / before[name].norm())
        assert sample["update_ratio"][name] == pytest.approx(moved, rel=1e-4)
        assert sample["weight_norm"][name] == pytest.approx(float(before[name].norm()), rel=1e-5)
    for metric, values in reference_heads(before, layer=1).items():
        for head, value in enumerate(values):
            assert sample[metric][f"layers.1.head.{head}"] == pytest.approx(value, rel=1e-4), (metric, head)


def reference_heads(weights: dict[str, torch.Tensor], layer: int) -> dict[str, list[float]]:
    """All queries of the first window, with whole matrices, by a model with these weights."""
    from headwater.model import BlockLayout, Decoder
    from headwater.model.rope import rotate

    model = Decoder(MODEL)
    model.load_state_dict(weights)
    first = batch(1, range(1))
    assert first.documents is not None
    seen: dict[str, torch.Tensor] = {}
    attention: Any = model.model.layers[str(layer)].self_attn
    attention.register_forward_pre_hook(lambda _, args: seen.update(x=args[0], cos=args[1], sin=args[2]))
    with torch.no_grad():
        model(first.tokens, first.positions, BlockLayout(first.documents))
        x, (number, kv, width) = seen["x"][0], (MODEL.num_attention_heads, MODEL.num_key_value_heads, MODEL.head_dim)
        q = rotate(attention.q_proj(x).view(1, -1, number, width), seen["cos"], seen["sin"])[0]
        k = rotate(attention.k_proj(x).view(1, -1, kv, width), seen["cos"], seen["sin"])[0]
        v = attention.v_proj(x).view(-1, kv, width)
    documents = first.documents[0]
    n = len(documents)
    found: dict[str, list[float]] = {"head_entropy": [], "head_sink": [], "head_max_logit": []}
    sizes = []
    out_weight = attention.o_proj.weight.detach()
    for head in range(number):
        group = head * kv // number
        scores = q[:, head] @ k[:, group].T / math.sqrt(width)
        entropies, sinks, largest, squares = [], [], -math.inf, 0.0
        for query in range(n):
            visible = [key for key in range(query + 1) if documents[key] == documents[query]]
            p = scores[query, visible].softmax(0)
            largest = max(largest, float(scores[query, visible].max()))
            out = p @ v[visible, group]
            squares += float((out_weight[:, head * width : (head + 1) * width] @ out).square().sum())
            if len(visible) > 1:
                entropies.append(float(-(p * p.log()).sum()) / math.log(len(visible)))
                sinks.append(float(p[0]))
        found["head_entropy"].append(sum(entropies) / len(entropies))
        found["head_sink"].append(sum(sinks) / len(sinks))
        found["head_max_logit"].append(largest)
        sizes.append(math.sqrt(squares / n))
    return found | {"head_activity": [size * number / sum(sizes) for size in sizes]}


MUON = {"optimizer": {"name": "muon", "lr": 0.02, "eps": 1e-6}}
RECOMPUTED = {"activation_checkpointing": "selective", "recompute": {"selective": "attention"}}


@pytest.mark.parametrize(("changes", "precision"), [({}, "bf16"), (MUON, "fp32"), (RECOMPUTED, "fp16")], ids=str)
def test_looking_changes_no_weight_by_a_single_bit(changes: dict[str, Any], precision: Precision) -> None:
    torch.set_num_threads(1)

    def trained(observed: bool) -> dict[str, torch.Tensor]:
        mesh = build_mesh(ParallelConfig(), torch.device("cpu"))
        module = TrainModule.build(
            MODEL, train_config(**changes), mesh=mesh, precision=precision, micro_batch=4, seed=3
        )
        if observed:
            module.observer = SampleObserver(module, Ranks(), EVERYTHING)
        for step in (1, 2, 3):
            outcome = module.train_step(step, batch(step), lr_factor=1.0)
            if isinstance(module.observer, SampleObserver) and not outcome.skipped:  # unscaled, before clipping
                norms = module.observer.sample["grad_norm"].values()
                assert math.sqrt(sum(norm**2 for norm in norms)) == pytest.approx(outcome.grad_norm, rel=1e-5)
        return {name: parameter.detach().clone() for name, parameter in module.parameters.items()}

    plain, looked_at = trained(False), trained(True)
    assert all(torch.equal(plain[name], looked_at[name]) for name in plain)


def test_a_model_too_large_to_copy_at_once_takes_turns() -> None:
    mesh = build_mesh(ParallelConfig(), torch.device("cpu"))
    module = TrainModule.build(MODEL, train_config(), mesh=mesh, precision="fp32", micro_batch=4, seed=3)
    figures = TensorFigures(module.parameters, mesh, Ranks(), copy_bytes=60_000)
    seen: list[str] = []
    for turn in range(20):
        figures.before_update(module.parameters, turn)
        found = figures.after_update(module.parameters)
        assert set(found["weight_norm"]) == set(module.parameters)
        assert set(found["update_ratio"].values()) == {0.0}
        if set(found["update_ratio"]) <= set(seen):
            break
        seen += found["update_ratio"]
    assert sorted(seen) == sorted(module.parameters)
    assert 2 <= turn < 20


def test_long_windows_are_looked_at_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    def sample() -> Sample:
        mesh = build_mesh(ParallelConfig(), torch.device("cpu"))
        module = TrainModule.build(MODEL, train_config(), mesh=mesh, precision="fp32", micro_batch=4, seed=3)
        observer = SampleObserver(module, Ranks(), ("heads",))
        module.observer = observer
        module.train_step(1, batch(1), lr_factor=1.0)
        return observer.sample

    whole = sample()
    monkeypatch.setattr(heads, "AT_ONCE", 1)
    for metric, values in sample().items():
        assert values == pytest.approx(whole[metric], rel=1e-5), metric


def test_a_dead_head_is_seen_and_so_is_one_that_looks_at_one_token() -> None:
    mesh = build_mesh(ParallelConfig(), torch.device("cpu"))
    module = TrainModule.build(MODEL, train_config(), mesh=mesh, precision="fp32", micro_batch=4, seed=3)
    width = MODEL.head_dim
    with torch.no_grad():
        module.parameters["model.layers.2.self_attn.o_proj.weight"][:, 3 * width : 4 * width] = 0
        module.parameters["model.layers.1.self_attn.q_proj.weight"][:width] *= 1e4
    observer = SampleObserver(module, Ranks(), ("heads",))
    module.observer = observer
    module.train_step(1, batch(1), lr_factor=1.0)
    assert observer.sample["head_activity"]["layers.2.head.3"] == 0
    assert min(value for name, value in observer.sample["head_activity"].items() if name != "layers.2.head.3") > 0.1
    assert observer.sample["head_entropy"]["layers.1.head.0"] < 0.05
    assert observer.sample["head_max_logit"]["layers.1.head.0"] > 100
