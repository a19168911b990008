"""How results are presented: theme, figures of heads, HTML page, reports of a run."""
