"""What a model does without intervention: evaluation, attention patterns, head types, edges."""
