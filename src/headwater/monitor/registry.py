"""Every metric of a run, declared once: name, unit, help, labels. Sinks, report and docs come from it.

In: nothing. Out: `METRICS`, by the key used in `metrics.jsonl`. A Prometheus name follows its naming rules (base
units, `_total` for counters, ratios from 0 to 1).

    METRICS["loss"].prometheus      # "llm_train_loss"
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["gauge", "counter", "histogram"]

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 25.0, 50.0, 100.0, 250.0)
"""Upper bounds of a histogram of durations, from steps of toys to steps of the largest models."""


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `key` in the record; `prometheus` "" keeps it out of the endpoint; `title` heads its curve; `buckets`
    are the upper bounds of a histogram, which the endpoint makes of all values since the process began."""

    key: str
    prometheus: str
    kind: Kind
    unit: str
    title: str
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


def _declare(*metrics: Metric) -> dict[str, Metric]:
    return {metric.key: metric for metric in metrics}


METRICS: dict[str, Metric] = _declare(
    Metric("step", "llm_step", "gauge", "steps", "Step", "Optimizer steps done"),
    Metric("tokens", "llm_tokens_total", "counter", "tokens", "Tokens", "Tokens read since the start of the run"),
    Metric("time", "", "gauge", "seconds", "Time", "Wall clock, seconds since 1970"),
    Metric("loss", "llm_train_loss", "gauge", "nats/token", "Training loss", "Cross-entropy of the step's batch"),
    Metric("loss_sma", "llm_train_loss_sma", "gauge", "nats/token", "Training loss, moving average",
           "Simple moving average of the loss"),
    Metric("perplexity", "llm_perplexity", "gauge", "ratio", "Perplexity", "e to the loss in nats"),
    Metric("bits_per_byte", "llm_bpb", "gauge", "bits/byte", "Bits per byte",
           "Training loss in bits over the bytes of text the batch stands for"),
    Metric("z_loss", "llm_z_loss", "gauge", "nats/token", "z-loss", "Weighted log(Z)^2 term, where switched on"),
    Metric("grad_norm", "llm_grad_norm", "gauge", "norm", "Gradient norm",
           "Global norm of the gradient, unscaled, before clipping"),
    Metric("clip_rate", "llm_clip_rate_ratio", "gauge", "ratio", "Clipped steps",
           "Share of the steps of the moving average's window whose gradient was clipped"),
    Metric("loss_scale", "llm_loss_scale", "gauge", "1", "Loss scale", "Loss scale of the step; only in fp16"),
    Metric("skipped_steps", "llm_skipped_steps_total", "counter", "steps", "Skipped steps",
           "Steps without an update since the start of the run: overflows of fp16, and those held back by recovery"),
    Metric("clip_factor", "llm_clip_ratio", "gauge", "ratio", "Clipping",
           "What the gradient was multiplied with; 1 is no clipping"),
    Metric("lr", "llm_learning_rate", "gauge", "1", "Learning rate", "Learning rate of the step"),
    Metric("throughput", "llm_tokens_per_second", "gauge", "tokens/second", "Throughput",
           "Tokens of the step over its whole duration"),
    Metric("mfu", "llm_mfu_ratio", "gauge", "ratio", "Model FLOPs utilisation",
           "Model FLOPs a second, attention counted in full, over the device's bf16 (in fp32: TF32) peak; null where "
           "that is not known"),
    Metric("mem_allocated", "llm_memory_allocated_bytes", "gauge", "bytes", "Memory",
           "Peak memory of the device's allocator; on CPU the resident size of the process"),
    Metric("mem_reserved", "llm_memory_reserved_bytes", "gauge", "bytes", "Reserved memory",
           "Peak memory the device's allocator holds; null on CPU"),
    Metric("alloc_retries", "llm_alloc_retries_total", "counter", "retries", "Allocation retries",
           "How often the allocator had to give back cached memory to serve a request, which comes before running out "
           "of it; null on CPU"),
    Metric("cpu_util", "llm_cpu_utilisation_ratio", "gauge", "ratio", "CPU utilisation",
           "Share of the machine's CPU time in use since the line before"),
    Metric("ram_used", "llm_ram_used_bytes", "gauge", "bytes", "RAM in use", "RAM of the machine that is in use"),
    Metric("gpu_util", "llm_gpu_utilisation_ratio", "gauge", "ratio", "GPU utilisation",
           "Share of time with a kernel running, as NVML counts it; null without a GPU"),
    Metric("step_seconds", "llm_step_duration_seconds", "histogram", "seconds", "Step time",
           "Whole duration of the step", buckets=SECONDS),
    Metric("data_wait_seconds", "llm_data_wait_seconds", "gauge", "seconds", "Waiting for data",
           "Time of the step spent waiting for the loader"),
    Metric("cache_hit_ratio", "llm_cache_hit_ratio", "gauge", "ratio", "Shard cache",
           "Share of the step's samples read from the local shard cache; only where one is set"),
    Metric("forward_backward_seconds", "llm_forward_backward_seconds", "gauge", "seconds", "Forward and backward",
           "Time of the step in forward and backward passes"),
    Metric("optimizer_seconds", "llm_optimizer_seconds", "gauge", "seconds", "Optimizer",
           "Time of the step in gradient norm, clipping and update"),
    Metric("communication_seconds", "llm_communication_seconds", "gauge", "seconds", "Communication",
           "Time of the step in which rank 0 waited for others, which is not in the two figures above; 0 in one "
           "process, null on GPUs, where it overlaps with the work"),
    Metric("monitor_seconds", "llm_monitor_seconds", "gauge", "seconds", "Sampling",
           "Time of the step spent on figures of parameters and heads; only in steps that are sampled"),
    Metric("productive_seconds", "llm_productive_seconds", "gauge", "seconds", "Productive time",
           "Time since the start of the run in steps that count: without waiting for data, without steps that were "
           "skipped or are trained again"),
    Metric("goodput", "llm_goodput_ratio", "gauge", "ratio", "Goodput",
           "Productive time over all the time since the run first started, restarts and standstill included"),
    Metric("straggler_score", "llm_straggler_score_ratio", "gauge", "ratio", "Slowest ranks",
           "The median rank's time for its own part of a step over this rank's, of the slowest ranks; 1 is as fast as "
           "others", ("rank",)),
    Metric("checkpoint_seconds", "llm_checkpoint_seconds", "gauge", "seconds", "Checkpoint",
           "Time training waited for a checkpoint since the line before"),
    Metric("validation_seconds", "llm_validation_seconds", "gauge", "seconds", "Validation",
           "Time training waited for validation or samples since the line before"),
    Metric("val_loss", "llm_val_loss", "gauge", "nats/token", "Validation loss",
           "Cross-entropy of held-out windows", ("domain",)),
    Metric("val_accuracy", "llm_val_accuracy_ratio", "gauge", "ratio", "Validation accuracy",
           "Share of the predicted tokens of held-out windows whose prediction is right", ("domain",)),
    Metric("val_perplexity", "llm_val_perplexity", "gauge", "ratio", "Validation perplexity",
           "e to the validation loss", ("domain",)),
    Metric("val_bits_per_byte", "llm_val_bpb", "gauge", "bits/byte", "Validation bits per byte",
           "Validation loss in bits over the bytes of the text", ("domain",)),
    Metric("val_loss_averaged", "llm_val_loss_averaged", "gauge", "nats/token", "Validation loss, averaged weights",
           "Cross-entropy of held-out windows under the averaged weights", ("domain",)),
    Metric("val_bits_per_byte_averaged", "llm_val_bpb_averaged", "gauge", "bits/byte",
           "Validation bits per byte, averaged weights", "Bits per byte under the averaged weights", ("domain",)),
    Metric("eval", "llm_eval", "gauge", "1", "Benchmarks during training",
           "Figures of the tasks in `evaluate.during_training`, each as TASK/METRIC", ("figure",)),
    Metric("domain_loss", "llm_train_domain_loss", "gauge", "nats/token", "Training loss by domain",
           "Cross-entropy of the step's rows of a domain", ("domain",)),
    Metric("grad_histogram", "llm_param_grad_norm_tensors", "gauge", "tensors", "Gradient norms by size",
           "Parameters by the power of ten of their gradient's norm, from 1e-12 and less to 1e6 and more; sampled",
           ("decade",)),
    Metric("grad_flags", "llm_param_grad_flagged_tensors", "gauge", "tensors", "Flagged gradients",
           "Parameters whose gradient's norm is above (`high`) the detectors' limit (1e5), or below (`low`) theirs "
           "(1e-7) in three samples running; sampled", ("flag",)),
    Metric("dead_heads", "llm_dead_heads", "gauge", "heads", "Dead heads",
           "Attention heads whose output is below 0.01 of their layer's mean or whose entropy is below 0.05; sampled"),
    Metric("param_grad_norm", "llm_param_grad_norm", "gauge", "norm", "Gradient norms of parameters",
           "Norm of a parameter's gradient, unscaled, before clipping; the largest and smallest of a sample",
           ("tensor",)),
    Metric("param_weight_norm", "llm_param_weight_norm", "gauge", "norm", "Norms of parameters",
           "Norm of a parameter before the update; the largest and smallest of a sample", ("tensor",)),
    Metric("update_ratio", "llm_update_ratio", "gauge", "ratio", "Updates of parameters",
           "Norm of a parameter's change in a step over its norm; the largest and smallest of a sample", ("tensor",)),
    Metric("head_entropy_ratio", "llm_attention_entropy_ratio", "gauge", "ratio", "Attention entropy",
           "Entropy of a head's attention over its largest possible value; the largest and smallest of a sample",
           ("head",)),
    Metric("head_sink_ratio", "llm_attention_sink_ratio", "gauge", "ratio", "Attention sink",
           "Attention a head pays to the first token it sees; the largest and smallest of a sample", ("head",)),
    Metric("head_max_logit", "llm_attention_max_logit", "gauge", "1", "Largest attention logit",
           "Largest score of a head before the softmax; the largest and smallest of a sample", ("head",)),
    Metric("head_activity_ratio", "llm_attention_activity_ratio", "gauge", "ratio", "Activity of heads",
           "RMS of what a head adds to the stream, over the mean of its layer; the largest and smallest of a sample",
           ("head",)),
    Metric("domain_tokens", "llm_domain_tokens_total", "counter", "tokens", "Tokens by domain",
           "Tokens read of each domain since the start of the run", ("domain",)),
)  # fmt: skip
"""Metrics with a label are objects in the record: `{"val_loss": {"all": 2.1, "code": 1.7}}`."""
