"""Quality rules, a module a family; `registry` loads every module in here.

To add a rule, write a function from `Statistics` to one number a text in a module of this folder, and put `@rule` on
it with a name (`family.name`), a version and the limits within which a text stays. The first line of its docstring is
printed as evidence. `headwater curate rules` lists it at once; `curate.quality.rules` of a recipe names it or its
family.
"""
