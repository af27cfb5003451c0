"""A plan as something that starts: a recipe's `parallel` section, Megatron-LM flags, a torchtitan configuration.

recipe_section(plan)            # {"parallel": {...}, "train": {"precision": "bf16", ...}}
"""

from __future__ import annotations

from typing import Any

import yaml

from headwater.core.errors import InputError

from .plan import Plan


def recipe_section(plan: Plan) -> dict[str, Any]:
    """The sections of a Headwater recipe that say how to lay the run out; InputError where our trainer lacks a part."""
    reason = plan.data["runnable"]["reason"]
    if reason:
        raise InputError(
            f"not runnable by this trainer: {reason}", where="recipe", mend="export megatron flags instead"
        )
    x = plan.layout
    shard = x.shard if x.zero > 0 else 1
    parallel: dict[str, Any] = {
        "dp_replicate": x.dp // shard,
        "dp_shard": shard,
        "tp": x.tp,
        "pp": x.pp,
        "cp": x.cp,
        "micro_batch": x.micro_batch,
    }
    if shard > 1:
        parallel["zero_stage"] = x.zero
    if x.pp > 1:
        parallel["schedule"] = x.schedule
        if x.chunks > 1:
            parallel["virtual_stages"] = x.chunks
    again = "full" if x.recompute > 0.0 else "selective" if x.recompute_light else "none"
    train: dict[str, Any] = {"precision": plan.train.precision, "activation_checkpointing": again}
    if 0.0 < x.recompute < 1.0:  # the first layers of each stage, as many as make the share
        stage = plan.model.layers / (x.pp * x.chunks)
        train["recompute"] = {"num_layers": max(1, round(stage * x.recompute))}
    return {"parallel": parallel, "train": train}


def recipe_yaml(plan: Plan) -> str:
    """`recipe_section` as YAML, with a comment that says what was predicted."""
    days, speed = plan.data["days"], plan.data["throughput"]
    comment = (
        f"# {plan.layout.describe()}\n# predicted: {plan.step_seconds:.3g} s a step, "
        f"{speed['tokens_per_second_per_gpu']:,.0f} tokens/s/GPU, MFU {speed['mfu']:.1%}, {days['p50']:.1f} days "
        f"({days['p10']:.1f} to {days['p90']:.1f}), {plan.data['memory']['device_bytes'] / 2**30:.0f} GiB a GPU\n"
    )
    return comment + yaml.safe_dump(recipe_section(plan), sort_keys=False)


def megatron_flags(plan: Plan) -> list[str]:
    """Arguments of Megatron-LM's `pretrain_gpt.py` (core 0.12) for the model, the layout and the batch."""
    m, t, x = plan.model, plan.train, plan.layout
    if x.pp > 1 and x.schedule not in ("1f1b", "interleaved_1f1b"):
        raise InputError(
            f"Megatron-LM has no {x.schedule}", where="megatron", mend="--fix schedule=interleaved_1f1b or 1f1b"
        )
    if x.zero == 2:
        raise InputError("Megatron-LM has no ZeRO 2", where="megatron", mend="--fix zero=1 or zero=3")
    flags = [
        f"--num-layers {m.layers}", f"--hidden-size {m.hidden}", f"--num-attention-heads {m.heads}",
        f"--seq-length {t.seq}", f"--max-position-embeddings {t.seq}",
        f"--tensor-model-parallel-size {x.tp}", f"--pipeline-model-parallel-size {x.pp}",
        f"--context-parallel-size {x.cp}", f"--micro-batch-size {x.micro_batch}",
        f"--global-batch-size {t.global_batch}", f"--train-samples {-(-int(t.tokens) // t.seq)}",
        f"--vocab-size {m.vocab}",
    ]  # fmt: skip
    if m.ffn:
        flags.append(f"--ffn-hidden-size {m.ffn}")
    if m.kv_heads != m.heads:
        flags += ["--group-query-attention", f"--num-query-groups {m.kv_heads}"]
    if m.head_dim * m.heads != m.hidden:
        flags.append(f"--kv-channels {m.head_dim}")
    if m.gated:
        flags += ["--swiglu", "--normalization RMSNorm", "--disable-bias-linear", "--position-embedding-type rope"]
    if not m.tied:
        flags.append("--untie-embeddings-and-output-weights")
    if m.experts:
        flags += [
            f"--num-experts {m.experts}", f"--moe-router-topk {m.topk}", f"--moe-ffn-hidden-size {m.expert_ffn}",
            f"--expert-model-parallel-size {x.ep}",
        ]  # fmt: skip
        if m.shared_ffn:
            flags.append(f"--moe-shared-expert-intermediate-size {m.shared_ffn}")
    if x.tp > 1:
        flags.append("--sequence-parallel")
    if x.pp > 1 and x.chunks > 1:
        flags.append(f"--num-layers-per-virtual-pipeline-stage {max(1, m.layers // (x.pp * x.chunks))}")
    if x.zero == 1:
        flags += ["--use-distributed-optimizer", "--overlap-grad-reduce", "--overlap-param-gather"]
    elif x.zero == 3:
        flags += ["--use-custom-fsdp", "--data-parallel-sharding-strategy optim_grads_params"]
    if x.recompute > 0:
        flags += ["--recompute-granularity full"]
        per_stage = m.layers // x.pp
        method = "uniform" if x.recompute == 1.0 else "block"
        count = 1 if x.recompute == 1.0 else max(1, round(per_stage * x.recompute))
        flags += [f"--recompute-method {method}", f"--recompute-num-layers {count}"]
    elif x.recompute_light:
        flags += ["--recompute-granularity selective", "--recompute-modules layernorm mlp_act"]
    flags += {
        "bf16": ["--bf16"], "fp16": ["--fp16"], "fp8": ["--bf16", "--fp8-format hybrid"],
        "mxfp8": ["--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"],
    }.get(t.precision, [])  # fmt: skip
    return flags


def torchtitan_toml(plan: Plan) -> str:
    """The `[parallelism]`, `[training]` and `[activation_checkpoint]` tables of a torchtitan configuration."""
    t, x = plan.train, plan.layout
    names = {
        "1f1b": "1F1B", "gpipe": "GPipe", "interleaved_1f1b": "Interleaved1F1B", "zbv": "ZBVZeroBubble",
        "interleaved_zero_bubble": "InterleavedZeroBubble", "dualpipev": "DualPipeV",
    }  # fmt: skip
    if x.pp > 1 and x.schedule not in names:
        raise InputError(f"torchtitan has no {x.schedule}", where="torchtitan", mend="--fix schedule=1f1b")
    # torchtitan's degree is FSDP2: ZeRO-3, or ZeRO-2 where weights stay whole between forward and backward.
    replicate = x.dp // x.shard if x.zero > 0 else x.dp
    shard = x.shard if x.zero > 0 else 1
    keep = "always" if x.zero == 3 and x.pp == 1 else "never"
    per_rank = t.global_batch // x.dp
    local = per_rank if x.pp > 1 else x.micro_batch
    lines = [
        "[parallelism]",
        f"data_parallel_replicate_degree = {replicate}",
        f"data_parallel_shard_degree = {shard}",
        f'fsdp_reshard_after_forward = "{keep}"',
        f"tensor_parallel_degree = {x.tp}",
        f"context_parallel_degree = {x.cp}",
        f"pipeline_parallel_degree = {x.pp}",
    ]
    if x.pp > 1:
        lines += [
            f'pipeline_parallel_schedule = "{names[x.schedule]}"',
            f"pipeline_parallel_microbatch_size = {x.micro_batch}",
        ]
        if x.chunks > 1:
            per = max(1, plan.model.layers // (x.pp * x.chunks))
            lines.append(f"pipeline_parallel_layers_per_stage = {per}")
    if plan.model.experts:
        lines.append(f"expert_parallel_degree = {x.ep}")
    mode = "full" if x.recompute == 1.0 else "selective" if x.recompute > 0 or x.recompute_light else "none"
    option = '"op"' if x.recompute_light else f'"{max(1, round(1 / x.recompute))}"' if 0 < x.recompute < 1 else '"op"'
    lines += [
        "",
        "[training]",
        f"seq_len = {t.seq}",
        f"local_batch_size = {local}",
        f"global_batch_size = {t.global_batch}",
        f"steps = {t.steps}",
        "",
        "[activation_checkpoint]",
        f'mode = "{mode}"',
    ]
    if mode == "selective":
        lines.append(f"selective_ac_option = {option}")
    return "\n".join(lines) + "\n"
