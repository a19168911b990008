"""What people would use instead, as scripts for other environments: they import nothing of ours.

`mechheads.benchmarks.peers` runs them with the Python of each environment, and compares.
"""
