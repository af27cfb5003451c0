"""The recipe's `export` section: the Hugging Face folder a run ends in. Imports nothing heavy."""

from __future__ import annotations

from typing import Literal

from headwater.core.config import Section, field


class ExportConfig(Section):
    """The exported model: weights, configuration and tokenizer in Hugging Face's layout."""

    dtype: Literal["float32", "bfloat16", "float16"] = field("float32", aliases=("torch_dtype",))
    """Number format of the exported weights. Training keeps float32; the others halve the size and round."""
