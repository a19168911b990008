"""What we conclude: circuits, explained-effect curves, comparisons and reports."""
