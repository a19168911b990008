"""What a command does between its flags and its run folder: check, load, measure, write, print.

One module per command that leaves a run folder, each with a function `prepare`: it checks the
settings without importing torch and returns a `Job`. `run` does what all of them share.
"""
