"""What a model does when nobody intervenes: evaluation, attention patterns, head types, edges."""
