"""What is kept on disk: files that are whole or absent, configurations as JSON, models."""
