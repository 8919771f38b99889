"""The search for the largest plan that fits."""
