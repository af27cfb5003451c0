"""The trainer's layouts and models as the planner takes them.

In: a `parallel` section and what is computed again. Out: a `Layout`. And a `model` section as a `ModelSpec`.

    layout_of(ParallelConfig(dp_replicate=2, pp=2), TrainConfig(), layers=8, micro_batch=2)
"""

from __future__ import annotations

from dataclasses import replace

from headwater.model import ModelConfig
from headwater.parallel.config import ParallelConfig
from headwater.plan import Layout, ModelSpec
from headwater.train.config import TrainConfig


def layout_of(parallel: ParallelConfig, train: TrainConfig, layers: int, micro_batch: int) -> Layout:
    """The planner's layout of a model of `layers` layers."""
    again = train.activation_checkpointing
    stage = layers // (parallel.pp * parallel.virtual_stages)
    return Layout(
        tp=parallel.tp,
        pp=parallel.pp,
        dp=parallel.data_parallel,
        cp=parallel.cp,
        chunks=parallel.virtual_stages,
        micro_batch=micro_batch,
        zero=parallel.zero,
        shard=parallel.dp_shard if parallel.zero else parallel.data_parallel,
        schedule=parallel.schedule,
        recompute=train.recompute.share(stage) if again == "full" else 0.0,
        recompute_light=again == "selective",
    )


def model_of(config: ModelConfig, name: str) -> ModelSpec:
    """The planner's model, with as many parameters as the trainer's."""
    encoder = config.encoder
    model = ModelSpec.from_fields(
        name=name,
        layers=config.num_hidden_layers,
        hidden=config.hidden_size,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        ffn=config.intermediate_size,
        vocab=config.true_vocab_size,
        tied=config.tie_word_embeddings,
        attention_bias=bool(config.attention_bias),
        output_bias=config.attention_bias is True,
        qk_norm=config.qk_norm,
        window=encoder.local_attention if encoder else 0,
        window_share=1.0 - 1.0 / encoder.global_attn_every_n_layers if encoder else 0.0,
    )
    return replace(model, other=config.parameter_count().total - model.parameters)
