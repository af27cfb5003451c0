"""A whole copy of a model that many ranks share, on rank 0: for texts generated while training.

In: a stage that has all layers, sharded by tensor or data parallelism. Out: an ordinary decoder, on rank 0 only.

    model = whole_model(stage, mesh)        # collective: every rank calls it
"""

from __future__ import annotations

import torch
from torch import Tensor

from headwater.model import Decoder
from headwater.parallel.data import reshard
from headwater.parallel.mesh import Mesh
from headwater.parallel.slices import whole


@torch.no_grad()
def whole_model(stage: Decoder, mesh: Mesh) -> Decoder | None:
    """The model on rank 0, None elsewhere, one tensor gathered after the other; the stage itself in one process.

    Rank 0 needs memory for all weights on its device.
    """
    if mesh.world == 1:
        return stage
    reshard(stage)
    tensors: dict[str, Tensor] = {}
    for name, parameter in stage.named_parameters():
        full = whole(parameter)
        if mesh.rank == 0:
            tensors[name] = full
    if mesh.rank != 0:
        return None
    with torch.device("meta"):
        model = Decoder(stage.config)
    model.load_state_dict(tensors, assign=True)
    return model.eval()
