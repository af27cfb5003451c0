"""The evaluate stage: a finished run on the held-out split of the dataset it was trained on.

In: the run and the artifact `dataset`. Out: `results.json` (the layout of `headwater.evaluate.results`) and
`results.md`.

    build(EvaluateConfig(), {"dataset": dataset}, out, context, run)
"""

from __future__ import annotations

from typing import Any

from headwater.core.artifacts import Artifact, ArtifactWriter
from headwater.core.jsonl import pretty_json
from headwater.core.stage import StageContext
from headwater.dataset import TokenDataset
from headwater.evaluate.config import EvaluateConfig
from headwater.evaluate.evaluation import evaluate
from headwater.evaluate.masked import evaluate_masked, is_encoder, masked_markdown
from headwater.evaluate.models import open_model
from headwater.evaluate.sources import held_out_of_dataset
from headwater.train.run_folder import RunFolder

RESULTS_JSON = "results.json"
RESULTS_MARKDOWN = "results.md"


def build(
    config: EvaluateConfig,
    inputs: dict[str, Artifact],
    out: ArtifactWriter,
    context: StageContext,
    run: RunFolder,
) -> dict[str, Any]:
    """Score the run's last weights; of an encoder loss and accuracy of masked tokens. Returns counts, the overall
    figures, and the names of what was `beaten`."""
    dataset = TokenDataset.open(inputs["dataset"])
    if is_encoder(run):
        masked = evaluate_masked(run, dataset, config)
        out.write(RESULTS_JSON, pretty_json(masked))
        out.write(RESULTS_MARKDOWN, masked_markdown(masked).encode())
        for name, why in masked["not_made"].items():
            context.reporter.decide(f"no {name}", why)
        return {name: masked["slices"][0][name] for name in ("tokens", "masked", "loss", "accuracy")}
    model = open_model(run.path, config, device=config.device)
    held_out = held_out_of_dataset(dataset, model.tokenizer, config.split, max_tokens=config.max_tokens)
    result = evaluate(model, held_out, config, dataset=dataset, reporter=context.reporter)
    out.write(RESULTS_JSON, result.json_bytes())
    out.write(RESULTS_MARKDOWN, result.markdown().encode("utf-8", "surrogatepass"))
    for item in result.comparison:
        context.reporter.info(f"beside {item['name']}: {item['sentence']}")
    counts = {name: result.data[name] for name in ("documents", "tokens", "units", "bytes")}
    overall = result.rows[0].slices[0]
    values = {name: overall[name] for name in ("bits_per_byte", "token_perplexity", "word_perplexity")}
    return {**counts, **values, "beaten": [item["name"] for item in result.comparison if item["beaten"]]}
