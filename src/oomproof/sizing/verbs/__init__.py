"""The verbs of this island."""
