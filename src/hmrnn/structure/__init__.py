"""What a model found in a sequence: operations, segments, scores."""
