"""How much a model loses when questions are a little damaged: typing errors, look-alike and sound-alike characters,
words swapped or lost, a sentence that has nothing to do with it.

    from headwater.evaluate.robustness.perturb import perturb
    perturb("The river is wide.", "typo", 0.3, seed="1")
"""
