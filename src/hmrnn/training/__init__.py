"""Training: the loop, its schedules, checkpoints, metrics, and several processes."""
