"""What a model found in a text: operations, segments, scores."""
