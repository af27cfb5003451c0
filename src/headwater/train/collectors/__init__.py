"""What a run measures of itself beyond a step's outcome: single tensors, attention heads, ranks, the machine.

callbacks = [..., CollectorsCallback(monitor), detection, metrics]
"""

from headwater.train.collectors.callback import CollectorsCallback

__all__ = ["CollectorsCallback"]
