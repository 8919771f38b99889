"""Alerts that reach somebody: what is told, to whom, how often; sent by a process of its own."""
