"""Series to learn from: files, and a built-in one."""
