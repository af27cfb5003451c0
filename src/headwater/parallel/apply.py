"""A layout applied to a model from outside: one function, in the order that works.

In: a stage on the meta device, the mesh, what the recipe asks for. Out: the stage, changed in place. Tensor parallelism
first, for it replaces parameters; then fp8 products, checkpointed and offloaded activations and compilation of the
blocks; data parallelism last, for it takes whatever parameters there are and shards them.

    stages = build_stages(config, mesh, ParallelOptions(zero=3), seed=0)

One process goes the same way: on axes of size 1 there is nothing to do.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import nn

from headwater.model import Decoder, Encoder, ModelConfig, initial_tensor
from headwater.parallel.data import shard_data_parallel
from headwater.parallel.float8 import backend_for, convert
from headwater.parallel.mesh import Mesh
from headwater.parallel.precision import Precision
from headwater.parallel.remat import checkpoint_layers, offload_layers
from headwater.parallel.slices import copy_full_
from headwater.parallel.stages import SPLIT_BACKWARD, of_rank, split
from headwater.parallel.step_config import Float8Config, RecomputeConfig
from headwater.parallel.tensor import apply_tensor_parallel


@dataclass(frozen=True, slots=True)
class ParallelOptions:
    """What is done to a stage besides the axes of the mesh."""

    zero: int = 0
    activation_checkpointing: Literal["none", "selective", "full"] = "none"
    recompute: RecomputeConfig = field(default_factory=RecomputeConfig)
    precision: Precision = "fp32"
    float8: Float8Config = field(default_factory=Float8Config)
    compile: bool = False


def blocks_of(stage: nn.Module) -> list[nn.Module]:
    """The layers of a stage, in order: the units of checkpointing, compilation and sharding."""
    return list(stage.model.layers.values())  # type: ignore[union-attr, operator]


def parallelize(stage: nn.Module, mesh: Mesh, options: ParallelOptions) -> None:
    """Apply the layout to one pipeline stage, in place."""
    blocks = blocks_of(stage)
    apply_tensor_parallel(stage, mesh)
    if options.precision == "fp8":
        convert(stage, options.float8, backend_for(mesh.device, tensor_parallel=mesh.size("tp") > 1))
    layers: nn.ModuleDict = stage.model.layers  # type: ignore[union-attr, assignment]
    in_parts = mesh.size("pp") > 1 and mesh.config.schedule in SPLIT_BACKWARD
    checkpoint_layers(layers, options.activation_checkpointing, options.recompute, split_backward=in_parts)
    if options.recompute.offload:
        offload_layers(layers)
    if options.compile:
        for block in blocks:
            block.compile()
    shard_data_parallel(stage, blocks, mesh, zero=options.zero, precision=options.precision)


def build_stages(config: ModelConfig, mesh: Mesh, options: ParallelOptions, seed: int) -> list[Decoder | Encoder]:
    """This rank's stages of a new model, sharded and then initialised: the whole model is never in memory.

    Weights depend on `seed` and names alone, not on the layout.
    """
    stages = shape_stages(config, mesh, options)
    for stage in stages:
        initialise(stage, mesh.device, seed)
    return stages


def shape_stages(config: ModelConfig, mesh: Mesh, options: ParallelOptions) -> list[Decoder | Encoder]:
    """This rank's stages with the layout applied, on the meta device still: shapes without memory."""
    with torch.device("meta"):
        specs = of_rank(split(config, mesh.config), mesh.coordinate("pp"))
        kind = Encoder if config.architecture == "encoder" else Decoder
        stages = [kind(config, layers=spec.layers, first=spec.first, last=spec.last) for spec in specs]
    for stage in stages:
        parallelize(stage, mesh, options)
    return stages


@torch.no_grad()
def initialise(stage: Decoder | Encoder, device: torch.device, seed: int) -> None:
    """Give a stage memory on `device` and fill it, one full tensor at a time, of which each rank keeps its part."""
    stage.to_empty(device=device)
    for name, parameter in stage.named_parameters():
        copy_full_(parameter, initial_tensor(name, parameter.shape, stage.config, seed))
