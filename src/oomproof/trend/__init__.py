"""Every estimate of growth: over seconds, for the guard (`growth`), and over hours, for people (`leaks`)."""
