"""Run folders: atomic writes, results saved without loss, tidy tables."""
