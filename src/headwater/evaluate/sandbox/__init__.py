"""Running programs that a model wrote, without trusting them.

A program runs in one confined process and its tests in another; only plain values cross between the two, so a program
can pass a test only by returning right values: it cannot reach the verdict, patch the comparison or fake an exit code.

    from headwater.evaluate.sandbox import open_sandbox
    with open_sandbox() as sandbox:
        print(sandbox.check("def f(x): return x + 1", "def check(f): assert f(1) == 2", entry_point="f"))
"""

from headwater.evaluate.sandbox.levels import achieved, open_sandbox
from headwater.evaluate.sandbox.limits import Level, Limits
from headwater.evaluate.sandbox.runner import Outcome, Program, Sandbox

__all__ = ["Level", "Limits", "Outcome", "Program", "Sandbox", "achieved", "open_sandbox"]
