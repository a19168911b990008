"""What a discovery is going to do, and how much work that is."""
