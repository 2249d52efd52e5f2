"""Figures and pages. Nothing here yet."""
