"""Text: symbols one after the other."""
