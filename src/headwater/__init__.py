"""Headwater: from raw text to a served language model, by one recipe.

Try it: ``headwater run recipes/quickstart.yaml`` or ``headwater --help``.
"""

__version__ = "0.1.0"
