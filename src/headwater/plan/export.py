"""A plan as something that starts: a recipe's `parallel` section, flags of Megatron-LM and torchtitan.

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
    """Arguments of Megatron-LM's `pretrain_gpt.py` for the model, the layout and the batch."""
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
        flags += [
            "--use-megatron-fsdp", "--data-parallel-sharding-strategy optim_grads_params",
            "--use-distributed-optimizer", "--no-gradient-accumulation-fusion", "--ckpt-format fsdp_dtensor",
        ]  # fmt: skip
    if x.recompute > 0:
        flags += ["--recompute-granularity full"]
        per_stage = m.layers // x.pp
        method = "uniform" if x.recompute == 1.0 else "block"
        count = 1 if x.recompute == 1.0 else max(1, round(per_stage * x.recompute))
        flags += [f"--recompute-method {method}", f"--recompute-num-layers {count}"]
    elif x.recompute_light:
        # Of what is cheap to make again Megatron-LM knows the norms, and the activations of experts.
        modules = "layernorm moe_act" if m.experts else "layernorm"
        flags += ["--recompute-granularity selective", f"--recompute-modules {modules}"]
    if x.zero > 0 and x.shard < x.dp:
        flags.append(f"--num-distributed-optimizer-instances {x.dp // x.shard}")
    precisions = {
        "fp32": [], "tf32": [], "bf16": ["--bf16"], "fp16": ["--fp16"], "fp8": ["--bf16", "--fp8-format hybrid"],
        "mxfp8": ["--bf16", "--fp8-format e4m3", "--fp8-recipe mxfp8"],
    }  # fmt: skip
    if t.precision not in precisions:
        raise InputError(
            f"{t.precision} has no flags here", where="megatron", mend=f"--precision {', '.join(precisions)}"
        )
    return flags + precisions[t.precision]


def torchtitan_flags(plan: Plan) -> list[str]:
    """Arguments of torchtitan 0.3 behind `--module ... --config ...`: the layout, the batch and what is recomputed."""
    t, x = plan.train, plan.layout
    names = {
        "1f1b": "1F1B", "gpipe": "GPipe", "interleaved_1f1b": "Interleaved1F1B", "zbv": "ZBVZeroBubble",
        "interleaved_zero_bubble": "InterleavedZeroBubble", "dualpipev": "DualPipeV",
    }  # fmt: skip
    if x.pp > 1 and x.schedule not in names:
        raise InputError(f"torchtitan has no {x.schedule}", where="torchtitan", mend="--fix schedule=1f1b")
    if 0.0 < x.recompute < 1.0:
        raise InputError(
            "torchtitan recomputes all layers or none", where="torchtitan", mend="--fix recompute=selective or full"
        )
    kinds = {"bf16": "bfloat16", "fp32": "float32"}
    if t.precision not in kinds:
        raise InputError(
            f"torchtitan's flags do not say {t.precision}", where="torchtitan", mend="--precision bf16 or fp32"
        )
    # torchtitan's degree is FSDP2: ZeRO-3, or ZeRO-2 where weights stay whole between forward and backward.
    parallelism: dict[str, int | str] = {
        "data_parallel_replicate_degree": x.dp // x.shard if x.zero > 0 else x.dp,
        "data_parallel_shard_degree": x.shard if x.zero > 0 else 1,
        "fsdp_reshard_after_forward": "always" if x.zero == 3 and x.pp == 1 else "never",
        "tensor_parallel_degree": x.tp,
        "context_parallel_degree": x.cp,
        "pipeline_parallel_degree": x.pp,
    }
    if x.pp > 1:
        parallelism |= {
            "pipeline_parallel_schedule": names[x.schedule],
            "pipeline_parallel_microbatch_size": x.micro_batch,
            "pipeline_parallel_layers_per_stage": max(1, plan.model.layers // (x.pp * x.chunks)),
            "pipeline_parallel_first_stage_less_layers": 0,
            "pipeline_parallel_last_stage_less_layers": 0,
        }
    if plan.model.experts:
        parallelism["expert_parallel_degree"] = x.ep
    training = {
        "seq_len": t.seq,
        "local_batch_size": t.global_batch // x.dp if x.pp > 1 else x.micro_batch,
        "global_batch_size": t.global_batch,
        "steps": t.steps,
        "mixed_precision_param": kinds[t.precision],
    }
    again = "full" if x.recompute == 1.0 else "selective" if x.recompute_light else "none"
    return [
        *(f"--training.{name} {value}" for name, value in training.items()),
        *(f"--parallelism.{name} {value}" for name, value in parallelism.items()),
        f"activation-checkpoint:{again}",
    ]
