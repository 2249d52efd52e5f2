"""From boundaries to segments: operations, trees, scores. Nothing here yet."""
