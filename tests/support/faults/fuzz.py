"""Hostile input for the commands that read: one example is some bytes, which choose a command and are what it reads.

A script, too, for atheris, which changes examples to reach more of the code; where that is not installed, a plain
mutation of the seeds stands in for it:

    python fuzz.py RUNS SCRATCH COUNT
"""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import sys
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

try:
    import atheris
except ImportError:  # it is not to be had for every Python
    atheris = None

if atheris is not None and __name__ == "__main__":
    with atheris.instrument_imports(include=["hmrnn"]):
        from hmrnn.domains.series import commands as series_commands
        from hmrnn.domains.series import flags as series
        from hmrnn.domains.strokes import commands as stroke_commands
        from hmrnn.domains.strokes import flags as strokes
        from hmrnn.domains.text import commands as text_commands
        from hmrnn.domains.text import flags as text
else:
    from hmrnn.domains.series import commands as series_commands
    from hmrnn.domains.series import flags as series
    from hmrnn.domains.strokes import commands as stroke_commands
    from hmrnn.domains.strokes import flags as strokes
    from hmrnn.domains.text import commands as text_commands
    from hmrnn.domains.text import flags as text

from hmrnn.domains.text.config import TextReadingConfig
from hmrnn.storage.cache import cache_directory
from hmrnn.structure import scores

SEEDS = (
    b"",
    b"The value of it is none.\nA line.\r\nAnother\r",
    "Schnee \N{SNOWMAN} 雪 \N{GRINNING FACE}\n".encode(),
    b"\xff\xfe\x00\xd8 \xed\xa0\x80 \xc0\x80 \xf4\x90\x80\x80",
    b"\0\0\0",
    b"[[[0, 0], [1, 2.5], [-3e2, 4]], [[5, 6]]]\n",
    b"[[[0, 0], [1, 1]]]\n\n[[[7, 7], [8, 9]]]\r\n",
    b"[[[1e999, NaN], [Infinity, 1]], []]",
    b'[[["0", null], [true, {}]]]',
    b"[" * 2000,
    b'"a","b",end\r\n1,-2.5e3,0\n,nan,1\n"3",4,0\n',
    b"\xef\xbb\xbftime,b,a,end\n" + b"2024-05-01,1,2,0\n" * 9,
)
FORMATS = ("text", "json", "html")
COMMANDS = 14
CHOICES = 3 * len(FORMATS) * 2 * COMMANDS  # of what to do with an unknown symbol, of a format, of a run, of a command


def own_cache(folder: Path) -> Path:
    """A cache for texts that may be spoilt; the built engine stays where it is."""
    native = cache_directory("native").resolve()
    folder.mkdir()
    (folder / "native").symlink_to(native)
    return folder


class Fuzz:
    """What the commands did with examples."""

    def __init__(self, runs: Path, scratch: Path) -> None:
        self.runs, self.file, self.cache = runs, scratch / "input", own_cache(scratch / "cache")
        os.environ["HMRNN_CACHE"] = str(self.cache)
        self.results: Counter[str] = Counter()
        # Each model is loaded once, and not for each example; and chance is measured by few draws.
        scores.DRAWS = 2
        for commands in (text_commands, stroke_commands, series_commands):
            commands.load_model = cache(commands.load_model)  # type: ignore[assignment]

    def __call__(self, example: bytes) -> None:
        """Raises, if a command does anything but answer, or refuse in one line."""
        choice, content = int.from_bytes(example[:2], "big"), example[2:]
        choice, unknown = divmod(choice, 3)
        choice, form = divmod(choice, 3)
        choice, run = divmod(choice, 2)
        reading = TextReadingConfig(on_unknown=("error", "skip", "replace")[unknown])
        commands = self.of_text(("text", "bytes")[run], FORMATS[form], reading)
        commands |= self.of_strokes(FORMATS[form]) | self.of_series(FORMATS[form])
        name = list(commands)[choice % len(commands)]
        self.file.write_bytes(content)
        told, stdin = io.StringIO(), sys.stdin
        sys.stdin = io.TextIOWrapper(io.BytesIO(content))
        try:
            with redirect_stdout(io.StringIO()), redirect_stderr(told):
                commands[name](content)
            result = "answered"
        except (ValueError, OSError) as error:  # what `hmrnn` tells in a line
            lines = str(error).splitlines()
            assert len(lines) == 1, f"not one line: {lines}"
            result = "refused"
        finally:
            sys.stdin = stdin
            shutil.rmtree(self.cache / "data", ignore_errors=True)
        assert "Traceback" not in told.getvalue()
        self.results[f"{name}: {result}"] += 1

    def of_text(self, run: str, form: Any, reading: TextReadingConfig) -> dict[str, Callable[[bytes], None]]:
        directory, data = self.runs / run, str(self.file)
        own: dict[str, Any] = {"run": directory, "reading": reading}
        shown: dict[str, Any] = {**own, "format": form, "vectors": form == "json"}
        read: dict[str, Any] = {**own, "json": form == "json"}
        write: dict[str, Any] = {**read, "max_new": 2, "seed": 0, "show_boundaries": True}
        return {
            "segment": lambda _: text.Segment(**shown).carry_out(),
            "segment a file": lambda _: text.Segment(files=(self.file,), **shown).carry_out(),
            "eval": lambda _: text.Evaluate(data=data, **read).carry_out(),
            "score": lambda _: text.Score(data=data, **read).carry_out(),
            "score gold": lambda _: text.Score(gold=self.file, **read).carry_out(),
            # as the system hands over what was typed
            "generate": lambda typed: text.Generate(prompt=os.fsdecode(typed), **write).carry_out(),
        }

    def of_strokes(self, form: Any) -> dict[str, Callable[[bytes], None]]:
        directory, data = self.runs / "strokes", str(self.file)
        read: dict[str, Any] = {"run": directory, "json": form == "json"}
        return {
            "segment strokes": lambda _: strokes.Segment(
                run=directory, format=form, vectors=form == "json"
            ).carry_out(),
            "eval strokes": lambda _: strokes.Evaluate(data=data, **read).carry_out(),
            "score strokes": lambda _: strokes.Score(data=data, **read).carry_out(),
            "generate strokes": lambda _: strokes.Generate(prime=self.file, max_new=2, seed=0, **read).carry_out(),
        }

    def of_series(self, form: Any) -> dict[str, Callable[[bytes], None]]:
        directory, data = self.runs / "series", str(self.file)
        read: dict[str, Any] = {"run": directory, "json": form == "json"}
        shown: dict[str, Any] = {"run": directory, "format": form, "vectors": form == "json"}
        return {
            "segment series": lambda _: series.Segment(files=(self.file,), **shown).carry_out(),
            "eval series": lambda _: series.Evaluate(data=data, **read).carry_out(),
            "score series": lambda _: series.Score(data=data, **read).carry_out(),
            "generate series": lambda _: series.Generate(prime=self.file, max_new=2, seed=0, **read).carry_out(),
        }


def mutated(chance: random.Random) -> bytes:
    """A seed, with bytes changed, cut out, doubled or taken from another seed."""
    content = bytearray(chance.choice(SEEDS))
    for _ in range(chance.randrange(6)):
        place, length = chance.randrange(len(content) + 1), chance.randrange(1, 9)
        other = chance.choice(SEEDS)
        content[place : place + chance.choice((0, length))] = chance.choice(
            (b"", chance.randbytes(length), bytes(content[place : place + length]) * 2, other[:length], other[-length:])
        )
    return chance.randbytes(2) + bytes(content)


def main() -> None:
    runs, scratch, count = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    fuzz, seen = Fuzz(runs, scratch), 0

    def one(example: bytes) -> None:
        nonlocal seen
        seen += 1
        try:
            fuzz(example)
        except BaseException:
            print(f"input {example!r}", file=sys.stderr)
            traceback.print_exc()
            os._exit(1)
        if seen == count:
            print(json.dumps({"by": atheris.__name__ if atheris else "mutation", "results": fuzz.results}), flush=True)
            os._exit(0)  # libFuzzer never returns

    if atheris is None:
        chance = random.Random(0)
        while True:
            one(mutated(chance))
    corpus = scratch / "corpus"
    corpus.mkdir()
    for i, seed in enumerate(SEEDS):
        for choice in range(0, CHOICES, 7):
            (corpus / f"{i}-{choice}").write_bytes((choice + i).to_bytes(2, "big") + seed)
    atheris.Setup([sys.argv[0], "-max_len=4096", "-seed=1", "-rss_limit_mb=4096", str(corpus)], one)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
