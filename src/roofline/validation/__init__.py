"""Predictions beside measurements: one module per kind of table."""
