"""Quality of texts: rules with names, versions and limits, and a classifier a user fits.

from headwater.curate.quality.statistics import measure
from headwater.curate.quality.registry import chosen, judge
verdicts = judge(measure(["..."]), chosen(["gopher", "c4", "fineweb", "chinese", "text", "code"]))
"""
