"""What sweeps print."""
