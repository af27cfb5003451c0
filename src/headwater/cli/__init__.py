"""The command line: one thin module a verb. They parse, call and print; the work is in the parts."""
