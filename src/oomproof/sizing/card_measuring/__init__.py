"""Runs in the Python that has torch, by path, on a real card: the standard library and torch alone."""
