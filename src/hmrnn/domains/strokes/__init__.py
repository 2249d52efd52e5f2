"""Pen strokes: points one after the other."""
