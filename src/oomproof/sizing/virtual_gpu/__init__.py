"""Runs inside the user's Python: whatever goes to "cuda" becomes a tensor without bytes. Standard library and torch only."""
