"""Rows that are made up: what a model is tried on before any budget is spent."""
