"""`headwater generate`: text from a model, streamed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from headwater.cli.common import Debug, Json, ModelOrRecipe, Quiet, Set, Workspace, model_of, print_json


def command(
    target: ModelOrRecipe,
    prompts: Annotated[
        list[str] | None,
        typer.Argument(help="Texts to continue; `-` reads one from stdin [default: nothing, a new text]."),
    ] = None,
    max_tokens: Annotated[int, typer.Option(help="Most tokens for each.")] = 256,
    temperature: Annotated[float, typer.Option(help="0 always takes the likeliest token.")] = 0.8,
    top_p: Annotated[float, typer.Option(help="Nucleus sampling: share of probability kept.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Only so many of the likeliest tokens; 0: all.")] = 0,
    n: Annotated[int, typer.Option(help="Completions of each prompt.")] = 1,
    seed: Annotated[int | None, typer.Option(help="Fixes the draws.", show_default=False)] = None,
    stop: Annotated[
        list[str] | None, typer.Option(help="Text ends before this; may be repeated.", show_default=False)
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps.")] = "auto",
    workspace: Workspace = None,
    set_: Set = None,
    json_: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Continue prompts with a model. A single completion is streamed as it comes."""
    model = model_of(target, workspace, set_, quiet=quiet)

    from headwater.engine import Engine, SamplingParams

    texts = [sys.stdin.read() if text == "-" else text for text in prompts or [""]]
    params = SamplingParams(
        max_tokens=max_tokens, temperature=temperature, top_p=top_p, top_k=top_k, n=n, seed=seed, stop=tuple(stop or ())
    )
    engine = Engine.load(model, device=device)
    if not json_ and len(texts) == 1 and n == 1:
        sys.stdout.write(texts[0])
        for piece in engine.stream(texts, params):
            sys.stdout.write(piece.text)
            sys.stdout.flush()
        sys.stdout.write("\n")
        return
    completions = engine.generate(texts, params)
    if json_:
        found = [
            {
                "prompt": texts[item.prompt],
                "sample": item.sample,
                "text": item.text,
                "tokens": len(item.token_ids),
                "prompt_tokens": item.prompt_tokens,
                "finish": item.finish,
            }
            for item in completions
        ]
        print_json({"model": str(model), "completions": found})
        return
    for item in completions:
        sys.stdout.write(f"--- prompt {item.prompt + 1}, sample {item.sample + 1} ({item.finish})\n")
        sys.stdout.write(f"{texts[item.prompt]}{item.text}\n")
