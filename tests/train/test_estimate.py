"""What a run is expected to take, against what it takes; and the machine it runs on."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headwater.core.errors import RecipeError
from headwater.model import ModelConfig
from headwater.parallel.config import ParallelConfig
from headwater.parallel.mesh import Mesh, build_mesh
from headwater.parallel.slices import local
from headwater.train import devices
from headwater.train.batch import Batch
from headwater.train.config import OptimizerConfig, PhaseConfig, TrainConfig
from headwater.train.estimate import activation_bytes_per_token, choose_micro_batch, rank_state_size, state_size
from headwater.train.phases import plan_run
from headwater.train.train_module import TrainModule
from tests.model.test_config import LLAMA_7B
from tests.parallel.ranks import run_ranks

SMALL = ModelConfig(
    hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=176, vocab_size=500,
    max_position_embeddings=512,
)  # fmt: skip


def stepped(config: TrainConfig) -> TrainModule:
    mesh = Mesh.single(torch.device("cpu"))
    module = TrainModule.build(SMALL, config, mesh=mesh, precision="fp32", micro_batch=4, seed=0)
    tokens = torch.arange(4 * 32).remainder(500).view(4, 32)
    module.train_step(1, Batch(tokens, tokens), lr_factor=1.0)
    return module


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("averaging", [{"name": "none"}, {"name": "ema", "every": 1}])
def test_the_size_of_a_checkpoint_is_as_estimated(optimizer: str, averaging: dict[str, object]) -> None:
    config = TrainConfig(steps=5, optimizer={"name": optimizer}, averaging=averaging)
    tensors = stepped(config).state_tensors().values()
    actual = sum(t.numel() * t.element_size() for t in tensors)
    size = state_size(SMALL, config)
    assert actual == pytest.approx(size.weights + size.optimizer + size.averages, rel=0.01)
    assert actual < size.checkpoint


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
def test_activations_are_of_the_estimated_size(mode: str) -> None:
    """What autograd keeps for the backward pass, counted by its hooks, against the formula."""
    config = TrainConfig(steps=5, activation_checkpointing=mode)
    seq_len = 128
    module = stepped(config)
    kept: dict[int, int] = {}
    weights = {p.data_ptr() for p in module.model.parameters()}

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.untyped_storage().data_ptr() not in weights:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    tokens = torch.arange(4 * seq_len).remainder(500).view(4, seq_len)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        hidden = module.model(tokens)
    if mode == "selective":  # its caches are not saved tensors; the order is what can be seen from outside
        none = activation_bytes_per_token(SMALL, TrainConfig(steps=1), "fp32", seq_len)
        assert activation_bytes_per_token(SMALL, config, "fp32", seq_len) < none
        return
    assert hidden.requires_grad
    estimated = activation_bytes_per_token(SMALL, config, "fp32", seq_len) * tokens.numel()
    assert sum(kept.values()) < 1.4 * estimated
    if mode == "none":
        assert sum(kept.values()) > 0.4 * estimated


def test_what_is_computed_again_is_not_counted() -> None:
    def size(seq_len: int = 128, device: str = "cpu", precision: str = "fp32", **config: object) -> int:
        return activation_bytes_per_token(SMALL, TrainConfig(steps=1, **config), precision, seq_len, device)

    full, none = size(activation_checkpointing="full"), size()
    every = size(activation_checkpointing="full", recompute={"every": 2})
    first = size(activation_checkpointing="full", recompute={"num_layers": 1})
    assert full < every < first < none  # of three layers: three, two, one, none
    attention = {"activation_checkpointing": "selective", "recompute": {"selective": "attention"}}
    assert size(**attention) < none
    assert size(4096, **attention) == size(4096)  # long sequences keep no probabilities to begin with
    assert size(recompute={"offload": True}) == none
    assert size(device="cuda", recompute={"offload": True}) < none / 2
    assert size(precision="fp16") == size(precision="fp8") == size(precision="bf16") < none


@given(st.integers(1, 512), st.sampled_from((64, 256, 512)), st.integers(8 << 20, 8 << 30))
def test_the_chosen_micro_batch_fits_and_is_not_larger_than_the_batch(batch: int, seq_len: int, free: int) -> None:
    config = TrainConfig(steps=5, global_batch=batch, seq_len=seq_len)
    plan = plan_run(config)
    try:
        chosen, why = choose_micro_batch(
            ParallelConfig(), SMALL, plan, config, free_bytes=free, device_type="cpu", precision="fp32"
        )
    except RecipeError as error:
        assert "may plan with" in error.what  # noqa: PT017
        return
    assert 1 <= chosen <= batch
    assert why
    assert chosen * seq_len * activation_bytes_per_token(SMALL, config, "fp32", seq_len) <= free
    parts = -(-batch // chosen)
    assert chosen * (parts - 1) < batch <= chosen * parts


def test_the_recipes_own_micro_batch_is_taken() -> None:
    config = TrainConfig(steps=5, global_batch=8, seq_len=64)
    plan = plan_run(config)
    chosen = choose_micro_batch(
        ParallelConfig(micro_batch=3), SMALL, plan, config, free_bytes=8 << 30, device_type="cpu", precision="fp32"
    )
    assert chosen == (3, "as the recipe says")


def test_memory_is_measured_here() -> None:
    cpu = torch.device("cpu")
    assert devices.used_memory_bytes(cpu) > 50 << 20
    assert devices.free_memory_bytes(cpu) > 0
    assert devices.gpu_utilisation(cpu) is None
    assert devices.peak_flops(cpu, "bf16") is None
    assert devices.choose_device("cpu") == cpu


def test_every_alias_leads_to_a_field_that_exists() -> None:
    for alias, path in TrainConfig.PATH_ALIASES.items():
        config: object = TrainConfig(steps=1)
        for part in path.split("."):
            assert part in type(config).model_fields, (alias, path)  # type: ignore[attr-defined]
            config = getattr(config, part)


def test_every_field_is_documented() -> None:
    for section in (TrainConfig, OptimizerConfig, PhaseConfig):
        for name, info in section.model_fields.items():
            assert info.description, name


def held(layout: dict[str, object]) -> tuple[int, int]:
    """(bytes of weights and optimizer state a rank keeps between steps, what is estimated without what is gathered)."""
    parallel = ParallelConfig.model_validate(layout)
    mesh = build_mesh(parallel, torch.device("cpu"))
    config = TrainConfig(steps=5)
    module = TrainModule.build(SMALL, config, mesh=mesh, precision="fp32", micro_batch=4, seed=0)
    tokens = torch.arange(4 * 32).remainder(500).view(4, 32)
    module.train_step(1, Batch(tokens, tokens), lr_factor=1.0)
    kept = [local(tensor) for tensor in module.state_tensors().values()]
    size, whole = rank_state_size(SMALL, config, parallel), state_size(SMALL, config)
    share = size.optimizer / whole.optimizer
    return sum(t.numel() * t.element_size() for t in kept), size.optimizer + int(share * whole.weights)


@pytest.mark.parametrize("layout", [{"dp_shard": 2}, {"tp": 2}, {"dp_shard": 2, "tp": 2}, {"dp_replicate": 2}], ids=str)
def test_a_rank_holds_the_share_of_the_state_that_is_estimated(layout: dict[str, object]) -> None:
    parallel = ParallelConfig.model_validate(layout)
    for actual, estimated in run_ranks(parallel.ranks, held, layout):
        assert actual == pytest.approx(estimated, rel=0.01)


def test_what_the_ranks_share_leaves_room_for_larger_micro_batches() -> None:
    config = TrainConfig(steps=5, global_batch=64, seq_len=256)
    plan, free = plan_run(config), 24 << 20
    chosen = [
        choose_micro_batch(parallel, SMALL, plan, config, free_bytes=free, device_type="cpu", precision="fp32")[0]
        for parallel in (ParallelConfig(), ParallelConfig(tp=2), ParallelConfig(tp=4))
    ]
    assert chosen == sorted(chosen)
    assert chosen[0] < chosen[-1]
    with pytest.raises(RecipeError, match="does not divide over 3 data-parallel ranks"):
        choose_micro_batch(
            ParallelConfig(dp_replicate=3), SMALL, plan, config, free_bytes=1 << 30, device_type="cpu", precision="fp32"
        )


def test_a_7b_model_that_eight_gpus_share_is_not_refused_by_one_of_80_gb() -> None:
    """Gathered layers are bf16: 13 GiB of 57, not 26. What does not fit at all is still refused."""
    seven = ModelConfig(**LLAMA_7B, max_position_embeddings=4096, vocab_size=32000)
    config = TrainConfig(steps=5, global_batch=512, seq_len=4096, activation_checkpointing="selective")
    parallel = ParallelConfig(dp_shard=8, zero_stage=2, micro_batch=2)
    half, whole = (rank_state_size(seven, config, parallel, precision).weights for precision in ("bf16", "fp32"))
    assert (whole - half) / 2**30 == pytest.approx(2 * 6.476e9 / 2**30, rel=0.01)  # layers without embedding and head
    plan = plan_run(config)

    def chosen(gib: int, device: str) -> int:
        return choose_micro_batch(
            parallel, seven, plan, config, free_bytes=gib << 30, device_type=device, precision="bf16"
        )[0]

    assert chosen(79, "cuda") == 2
    assert chosen(44, "cuda") == 2
    for gib, device in ((36, "cuda"), (44, "cpu")):
        with pytest.raises(RecipeError, match="may plan with"):
            chosen(gib, device)
