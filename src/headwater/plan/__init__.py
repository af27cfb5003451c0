"""What a training run will need, before it starts: memory, time, money, failures, and the layout to choose.

    from headwater.plan import ModelSpec, TrainSpec, parse_cluster, search, make_plan
    cluster = parse_cluster("a100-80gb:8x512")
    model = ModelSpec.from_fields(layers=32, hidden=4096, heads=32, ffn=11008, vocab=32000)
    work = TrainSpec(tokens=1e12, seq=4096, global_batch=1024)
    plan = make_plan(model, work, cluster, search(model, work, cluster).layouts[0])

Constants are fitted on published runs (`python -m headwater.plan.evaluate`); hardware is data with sources.
"""

from .cluster import ClusterSpec
from .cluster import parse as parse_cluster
from .explain import compare, what_if, why
from .model_spec import ModelSpec
from .plan import Plan, make_plan
from .search import Found, search
from .train_spec import Layout, TrainSpec

__all__ = [
    "ClusterSpec",
    "Found",
    "Layout",
    "ModelSpec",
    "Plan",
    "TrainSpec",
    "compare",
    "make_plan",
    "parse_cluster",
    "search",
    "what_if",
    "why",
]
