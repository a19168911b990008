"""Small models whose heads are known, because we wrote their weights: `--model known/induction`.

`designs` says in words what every head does, `build` turns that into the weights of a GPT-2.
"""
