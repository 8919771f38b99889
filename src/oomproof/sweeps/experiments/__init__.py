"""Experiments: one thing changed at a time (`oomproof bisect`)."""
