"""Runs inside a script that is rehearsed, in the script's own Python (3.9 and newer): on the real device, with real tensors."""
