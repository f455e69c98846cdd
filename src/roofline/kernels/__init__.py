"""Seconds of one kernel: one module per kind of op, each a closed form with a few physical constants."""
