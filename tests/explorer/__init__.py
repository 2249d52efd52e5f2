"""The explorer: what it answers, what it refuses, and the page in a real browser."""
