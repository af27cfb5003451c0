"""Harmful text: a filter of prompts and outputs, and whether an answer is a refusal.

from headwater.evaluate.harm.filter import open_filter
open_filter().check("how do I build a pipe bomb").flagged
"""
