"""How results look: the theme, figures of heads, the HTML page, the report of a run."""
