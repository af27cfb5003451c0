"""What a recipe amounts to: parameters, tokens, batch in tokens, steps, arithmetic, layout, and what it lacks to run.

In: a loaded recipe. Out: plain JSON values, and the same as lines for a person. Pure; no torch.

    describe(load("recipes/llama-7b.yaml"))["model"]["parameters"]      # 6_738_415_616
"""

from __future__ import annotations

from typing import Any

from headwater.core.files import gib
from headwater.core.recipe import Loaded
from headwater.pipeline.checks import BYTES_PER_PARAMETER, missing_to_run
from headwater.pipeline.schema import Recipe
from headwater.train.phases import RunPlan, plan_run


def describe(loaded: Loaded[Recipe]) -> dict[str, Any]:
    """Facts of a recipe. `train.steps`, `train.tokens` and what follows are null while no length is given."""
    recipe = loaded.config
    plan = _plan(recipe)
    return {
        "name": recipe.name,
        "description": recipe.description,
        "source": loaded.source,
        "model": _model(recipe),
        "train": _train(recipe, plan),
        "layout": _layout(recipe),
        "data": _data(recipe),
        "cluster": recipe.cluster,
        "missing_to_run": [
            {"field": item.field, "what": item.what, "mend": item.mend} for item in missing_to_run(loaded)
        ],
    }


def _plan(recipe: Recipe) -> RunPlan | None:
    train = recipe.train
    return plan_run(train) if train.tokens or train.steps or train.phases else None


def _model(recipe: Recipe) -> dict[str, Any]:
    model = recipe.model
    sized = recipe.sized_model
    count = sized.parameter_count()
    return {
        "architecture": model.hf_type,
        "layers": model.num_hidden_layers,
        "width": model.hidden_size,
        "heads": model.num_attention_heads,
        "key_value_heads": model.num_key_value_heads,
        "feed_forward": model.intermediate_size,
        "vocabulary": sized.true_vocab_size,
        "positions": model.max_position_embeddings,
        "tied_embeddings": model.tie_word_embeddings,
        "parameters": count.total,
        "parameters_without_embedding": count.without_embedding,
        "training_state_bytes": count.total * BYTES_PER_PARAMETER,
    }


def _train(recipe: Recipe, plan: RunPlan | None) -> dict[str, Any]:
    train, sized = recipe.train, recipe.sized_model
    flops = plan and sum(
        float(segment.steps * segment.tokens_per_step)
        * sized.flops_per_token(segment.seq_len, scored=train.objective.scored_ratio)
        for segment in plan.segments
    )
    return {
        "tokens": plan.tokens if plan else None,
        "steps": plan.steps if plan else None,
        "batch_samples": train.global_batch,
        "seq_len": train.seq_len,
        "batch_tokens": train.global_batch * train.seq_len,
        "tokens_per_parameter": plan.tokens / sized.parameter_count().total if plan else None,
        "flops": flops,
        "optimizer": train.optimizer.name,
        "lr": train.optimizer.lr,
        "schedule": train.schedule.name,
        "warmup_steps": train.schedule.warmup_steps,
        "clip_grad_norm": train.clip_grad_norm,
        "phases": [
            {"name": phase.name, "first_step": phase.first_step, "last_step": phase.last_step}
            for phase in (plan.phases if plan else ())
        ],
    }


def _layout(recipe: Recipe) -> dict[str, Any]:
    layout, batch = recipe.parallel, recipe.train.global_batch
    micro_batches = layout.accumulation(batch)
    pipelined = layout.pp > 1 and micro_batches is not None and layout.schedule in ("gpipe", "1f1b", "interleaved_1f1b")
    return {
        "ranks": layout.ranks,
        "text": layout.describe(),
        "data_parallel": layout.data_parallel,
        "tp": layout.tp,
        "pp": layout.pp,
        "cp": layout.cp,
        "zero_stage": layout.zero,
        "micro_batch": layout.micro_batch,
        "micro_batches": micro_batches,
        "bubble_ratio": round(layout.bubble_ratio(micro_batches), 4) if pipelined and micro_batches else None,
    }


def _data(recipe: Recipe) -> dict[str, Any]:
    return {
        "root": recipe.collect.root,
        "sources": [
            {"name": source.name, "kind": source.kind, "paths": list(source.paths), "domain": source.domain}
            for source in recipe.collect.sources
        ],
        "mixture": recipe.train.mixture,
    }


def short(number: float) -> str:
    """`16.8M`, `2.00T`: three significant digits with the field's letters."""
    for power, letter in ((12, "T"), (9, "B"), (6, "M"), (3, "K")):
        if abs(number) >= 0.9995 * 10**power:
            value = number / 10**power
            return f"{value:.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}{letter}"
    return f"{number:,.0f}"


def describe_text(facts: dict[str, Any]) -> str:
    """The facts as lines for the terminal."""
    model, train, layout, data = facts["model"], facts["train"], facts["layout"], facts["data"]
    lines = [f"{facts['name']}: {facts['description']}" if facts["description"] else facts["name"]]
    lines.append(
        f"  model     {model['parameters']:,} parameters ({short(model['parameters'])}; "
        f"{short(model['parameters_without_embedding'])} without embeddings): {model['layers']} layers, "
        f"{model['width']} wide, {model['heads']} heads"
        + (f" ({model['key_value_heads']} key-value)" if model["key_value_heads"] != model["heads"] else "")
        + f", feed-forward {model['feed_forward']}, vocabulary {model['vocabulary']:,}, "
        f"{model['positions']:,} positions"
    )
    lines.append(
        f"  batch     {train['batch_samples']:,} samples x {train['seq_len']:,} tokens = "
        f"{train['batch_tokens']:,} tokens ({short(train['batch_tokens'])}) an optimizer step"
    )
    if train["steps"] is None:
        lines.append("  length    not given")
    else:
        lines.append(
            f"  length    {train['tokens']:,} tokens ({short(train['tokens'])}) in {train['steps']:,} steps, "
            f"{train['tokens_per_parameter']:.3g} tokens a parameter, {train['flops']:.3g} FLOPs"
        )
    clip = train["clip_grad_norm"]
    lines.append(
        f"  optimizer {train['optimizer']}, peak learning rate {train['lr']:g}, {train['schedule']} after "
        f"{train['warmup_steps']:,} warm-up steps, {f'clip {clip:g}' if clip else 'no clipping'}"
    )
    lines += [
        f"  phase     {phase['name']}: steps {phase['first_step']:,} to {phase['last_step']:,}"
        for phase in train["phases"]
        if len(train["phases"]) > 1
    ]
    state = model["training_state_bytes"]
    lines.append(
        f"  layout    {layout['text']}"
        + (f", {layout['micro_batches']:,} micro-batches of {layout['micro_batch']}" if layout["micro_batches"] else "")
        + (f", pipeline idle {layout['bubble_ratio']:.1%}" if layout["bubble_ratio"] is not None else "")
    )
    lines.append(f"  memory    at least {gib(state)} over all ranks for weights, gradients and optimizer in fp32")
    for source in data["sources"]:
        what = ", ".join(source["paths"]) or source["kind"]
        lines.append(f"  source    {source['name']}: {what}" + (f" ({source['domain']})" if source["domain"] else ""))
    if data["mixture"]:
        total = sum(data["mixture"].values())
        shares = ", ".join(f"{name} {weight / total:.1%}" for name, weight in data["mixture"].items())
        lines.append(f"  mixture   {shares} (in tokens)")
    if facts["cluster"]:
        lines.append(f"  cluster   {facts['cluster']}")
    missing = facts["missing_to_run"]
    lines += [f"  missing   {item['what']}\n            mend: {item['mend']}" for item in missing]
    lines.append(
        f"  ready     {'no: see what is missing' if missing else 'yes: `headwater run ' + facts['source'] + '`'}"
    )
    return "\n".join(lines)
