"""lm-evaluation-harness on local files: the other side of eval_parity.py and eval_speed.py.

Runs in an environment of its own that has `lm-eval`. Each task is the harness's own YAML file with the data set
replaced by a JSON Lines file in the hub's schema. In: a job as one JSON object on standard input. Out: one JSON object
for each task on standard output, in order: what it found of each item, and the seconds it took.

    echo '{"model": "FOLDER", "batch": 16, "tasks": [{"name": "piqa", "file": "piqa.jsonl"}]}' | python eval_peer.py
"""

from __future__ import annotations

import importlib
import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import Any

FILES = {
    "arc_challenge": "arc/arc_challenge.yaml",
    "arc_easy": "arc/arc_easy.yaml",
    "gsm8k": "gsm8k/gsm8k.yaml",
    "hellaswag": "hellaswag/hellaswag.yaml",
    "humaneval": "humaneval/humaneval.yaml",
    "lambada": "lambada/lambada_openai.yaml",
    "nq_open": "nq_open/nq_open.yaml",
    "piqa": "piqa/piqa.yaml",
    "wikitext": "wikitext/wikitext.yaml",
}


def load_config(path: Path) -> dict[str, Any]:
    """The harness's YAML with `include` and `!function` resolved; functions that need the network stay out."""
    import yaml

    class Loader(yaml.SafeLoader):
        pass

    def function(loader: Any, node: Any) -> Any:
        module, _, name = loader.construct_scalar(node).rpartition(".")
        if path.parent.name == "humaneval":  # its module fetches a metric from the hub when it is imported
            return None
        return getattr(importlib.import_module(f"lm_eval.tasks.{path.parent.name}.{module}"), name)

    Loader.add_constructor("!function", function)
    config: dict[str, Any] = yaml.load(path.read_text("utf-8"), Loader)
    included = config.pop("include", None)
    return {**load_config(path.parent / included), **config} if included else config


def local_task(job: dict[str, Any]) -> Any:
    import lm_eval
    from lm_eval.api.task import ConfigurableTask

    config = load_config(Path(lm_eval.__file__).parent / "tasks" / FILES[job["name"]])
    split = config.get("validation_split") if job["name"] in ("piqa", "hellaswag", "nq_open") else config["test_split"]
    files = {split: job["file"]}
    for other in ("training_split", "validation_split", "test_split", "fewshot_split"):
        if config.get(other) and config[other] != split:
            config.pop(other)
    if "examples" in job:
        files["train"] = job["examples"]
        config |= {"training_split": "train", "fewshot_split": "train", "fewshot_config": {"sampler": "first_n"}}
    config |= {"dataset_path": "json", "dataset_name": None, "dataset_kwargs": {"data_files": files}}
    if "max_tokens" in job:
        config["generation_kwargs"]["max_gen_toks"] = job["max_tokens"]
    if job["name"] == "humaneval":  # texts are compared; the verdict is the sandbox's on both sides
        config.pop("filter_list")
        config["metric_list"] = [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}]
        config["unsafe_code"] = False
    return ConfigurableTask(config=config)


class Watch:
    """Seconds spent in the model's three kinds of request: what both sides do, without the harness's bookkeeping."""

    def __init__(self, model: Any) -> None:
        self.wall = self.cpu = 0.0
        for name in ("loglikelihood", "loglikelihood_rolling", "generate_until"):
            setattr(model, name, self._timed(getattr(model, name)))

    def _timed(self, function: Any) -> Any:
        def timed(*arguments: Any, **options: Any) -> Any:
            wall, cpu = time.monotonic(), time.process_time()
            try:
                return function(*arguments, **options)
            finally:
                self.wall += time.monotonic() - wall
                self.cpu += time.process_time() - cpu

        return timed


def main() -> None:
    job = json.load(sys.stdin)
    os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print goes to standard error
    import lm_eval
    import torch
    from lm_eval.models.huggingface import HFLM

    logging.getLogger("lm_eval").setLevel(logging.ERROR)
    torch.set_num_threads(job.get("threads", 1))
    model = HFLM(pretrained=job["model"], device="cpu", dtype="float32", batch_size=job["batch"])
    watch = Watch(model)
    context = model._max_length
    for one in job["tasks"]:
        task = local_task(one)
        model._max_length = one.get("window", context)
        watch.wall = watch.cpu = 0.0
        found = lm_eval.simple_evaluate(model, tasks=[task], bootstrap_iters=0, log_samples=True)
        name = next(iter(found["samples"]))
        items: dict[int, dict[str, Any]] = {}
        for sample in found["samples"][name]:
            kept = items.setdefault(sample["doc_id"], {"doc": sample["doc_id"]})
            kept["answers"] = [answer[0] if len(answer) == 1 else answer for answer in sample["resps"]]
            kept["prompt"] = sample["arguments"][0][0] if isinstance(sample["arguments"], (list, tuple)) else None
            metrics = {key: sample[key] for key in sample.get("metrics", ()) if key in sample}
            kept.setdefault("by_filter", {})[sample.get("filter", "none")] = {
                "answer": sample["filtered_resps"],
                **metrics,
            }
        figures = found["results"][name]
        line = {
            "task": one["name"],
            "items": [items[key] for key in sorted(items)],
            "figures": {key: value for key, value in figures.items() if isinstance(value, (int, float))},
            "seconds": watch.wall,
            "cpu_seconds": watch.cpu,
            "version": lm_eval.__version__,
        }
        out.write(json.dumps(line, default=str) + "\n")
        out.flush()


if __name__ == "__main__":
    main()
