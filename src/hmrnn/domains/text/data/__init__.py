"""Text to learn from: symbols, files as arrays on disk, the corpora, the planted hierarchy, streams."""
