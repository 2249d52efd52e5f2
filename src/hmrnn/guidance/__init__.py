"""Guidance: where detectors are to fire, and how often, while the weights are still on the move."""
