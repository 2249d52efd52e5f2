"""Handwriting to learn from: points, IAM-OnDB, built-in lines."""
