"""Keeps machine-learning jobs from dying of memory; when one dies anyway, says why, with proof."""

__version__ = "0.1.0"
