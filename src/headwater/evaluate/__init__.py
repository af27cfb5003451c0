"""Held-out evaluation: perplexity and bits per byte beside baselines, as JSON and Markdown.

    from headwater.evaluate import evaluate_model
    print(evaluate_model("workspace/runs/4f2a", "workspace/dataset/0123456789abcdef").markdown())

`Evaluator` takes metrics of your own. Nothing heavy is imported until it is asked for.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from headwater.evaluate.config import EvaluateConfig

if TYPE_CHECKING:
    from headwater.evaluate.evaluation import evaluate, evaluate_model
    from headwater.evaluate.evaluator import Evaluator, Metric
    from headwater.evaluate.heldout import HeldOut, HeldOutDocument, Text, from_texts
    from headwater.evaluate.kneser_ney import KneserNey
    from headwater.evaluate.models import EvaluatedModel, open_model
    from headwater.evaluate.perplexity import Perplexity, PerplexityReport, measure
    from headwater.evaluate.results import EvaluationResult
    from headwater.evaluate.sources import held_out_of, held_out_of_dataset
    from headwater.evaluate.task_metric import TaskMetric
    from headwater.evaluate.unigram import Unigram

_LAZY = {
    "EvaluatedModel": "models",
    "EvaluationResult": "results",
    "Evaluator": "evaluator",
    "HeldOut": "heldout",
    "HeldOutDocument": "heldout",
    "KneserNey": "kneser_ney",
    "Metric": "evaluator",
    "Perplexity": "perplexity",
    "PerplexityReport": "perplexity",
    "TaskMetric": "task_metric",
    "Text": "heldout",
    "Unigram": "unigram",
    "evaluate": "evaluation",
    "evaluate_model": "evaluation",
    "from_texts": "heldout",
    "held_out_of": "sources",
    "held_out_of_dataset": "sources",
    "measure": "perplexity",
    "open_model": "models",
}

__all__ = [
    "EvaluateConfig",
    "EvaluatedModel",
    "EvaluationResult",
    "Evaluator",
    "HeldOut",
    "HeldOutDocument",
    "KneserNey",
    "Metric",
    "Perplexity",
    "PerplexityReport",
    "TaskMetric",
    "Text",
    "Unigram",
    "evaluate",
    "evaluate_model",
    "from_texts",
    "held_out_of",
    "held_out_of_dataset",
    "measure",
    "open_model",
]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(f"headwater.evaluate.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
