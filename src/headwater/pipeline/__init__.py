"""Composes the parts: the recipe's schema, the table of stages, the runner, status, descriptions.

from headwater.pipeline.runner import run
run("recipes/quickstart.yaml")
"""
