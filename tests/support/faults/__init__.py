"""Runs to damage, and what damages them."""
