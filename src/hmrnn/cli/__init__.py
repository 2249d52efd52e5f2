"""The command line."""

from hmrnn.cli.main import main

__all__ = ["main"]
