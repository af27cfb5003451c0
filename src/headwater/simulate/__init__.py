"""The flight simulator: the trainer's own code for one step of a huge layout, in one process and without arithmetic.

    from headwater.simulate.flight import fly

`headwater simulate RECIPE --ranks 4096` is the command.
"""
