"""Makes the page of the command line from the parser itself, each time the documentation is built."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
import textwrap
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from hmrnn.cli.main import dispatch
from hmrnn.cli.read import COMMANDS
from hmrnn.domains import DOMAINS

OTHERS = ("plot", "bench", "build")  # commands whose flags do not depend on a kind of sequence
COLUMNS = 80  # what fits beside the navigation


def on_files(files: Files, config: MkDocsConfig) -> Files:
    files.append(File.generated(config, "cli.md", content=page()))
    return files


def page() -> str:
    parts = ["# Command line", "This page is what each command prints with `--help`."]
    for command in ("demo", *(f"train {kind}" for kind in DOMAINS)):
        parts += [f"## hmrnn {command}", block(*command.split())]
    for command in COMMANDS:
        parts.append(f"## hmrnn {command}")
        for kind in DOMAINS:
            parts += [f"### {command}: runs on {kind}", block(command, run_of(kind))]
    for command in OTHERS:
        parts += [f"## hmrnn {command}", block(command)]
    return "\n\n".join(parts) + "\n"


def run_of(kind: str) -> str:
    """A folder that is a run of this kind as far as --help goes."""
    folder = Path(tempfile.gettempdir()) / f"hmrnn-help-{os.getuid()}" / kind
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"format_version": 1, "kind": kind}))
    return str(folder)


def block(*words: str) -> str:
    lines = (line for own in shown(*words).strip().splitlines() for line in wrapped(own))
    return "```text\n" + "\n".join(lines) + "\n```"


def wrapped(line: str) -> list[str]:
    """tyro leaves it to the terminal to wrap what stands outside of its tables."""
    return textwrap.wrap(line, COLUMNS) if len(line) > COLUMNS and not line.startswith(" ") else [line]


def shown(*words: str) -> str:
    out, before = io.StringIO(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = str(COLUMNS)
    try:
        with contextlib.redirect_stdout(out), contextlib.suppress(SystemExit):
            dispatch([*words, "--help"])
    finally:
        if before is None:
            del os.environ["COLUMNS"]
        else:
            os.environ["COLUMNS"] = before
    return out.getvalue()
