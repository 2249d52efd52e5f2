"""The training loop, its schedules and checkpoints. Nothing here yet."""
