"""Kinds of sequences: one folder each."""
