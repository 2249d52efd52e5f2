"""What pages show is run: every block of Python, and every command of README and tutorials."""

from __future__ import annotations

import json
import re
import shlex
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

import pytest
from support.commands import run

from hmrnn.cli.read import COMMANDS
from hmrnn.domains import DOMAINS
from hmrnn.domains.text.data.corpora import builtin_text

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
TO_FOLLOW = [page for page in PAGES if page.name == "README.md" or page.name.startswith("tutorial")]

ELSEWHERE = ("git", "make", "pip", "cd")  # CI itself is a clone with `make test`; test_package.py installs
SIZES = "--hidden-sizes 8 8 8 --output-size 8 --batch-size 4 --window 20"
SHORTER = {  # flags that make a command quick; the rest of it stays as it is
    "train text": f"{SIZES} --epochs 0.02",
    "train strokes": f"{SIZES} --components 3 --epochs 0.5",
    "train series": f"{SIZES} --components 3 --epochs 0.5",
    "demo": "--epochs 0.02",
    "bench": "--hidden 16 --steps 4 --repeats 1",
}
LESS_DATA = {  # the same for those that make their data
    "train strokes": "--writing.lines 40 --writing.words 1 1",
    "train series": "--planted.sequences 40 --planted.steps 60",
}


def blocks(page: Path) -> list[tuple[str, str]]:
    """The blocks of Python and of commands, in their order."""
    return re.findall(r"```(python|sh)\n(.*?)```", page.read_text(), re.DOTALL)


def commands(page: Path) -> list[str]:
    return [line for kind, block in blocks(page) if kind == "sh" for line in lines(block)]


def lines(block: str) -> list[str]:
    """The commands of a block. One that ends in a backslash goes on in the next line."""
    joined = block.replace("\\\n", " ").splitlines()
    return [line for line in joined if line.strip() and not line.startswith("#")]


# What is asked of some blocks once they have run: that the words which they promise are found.
AFTERWARDS = {
    "guide = Guide(rnn, optimizer, teacher=teacher)": """
from hmrnn.domains.text.known import at_separators
from hmrnn.structure.scores import baselines, score
found, words = out.z[:, 0, 0].detach().numpy() > 0.5, at_separators(symbols.decode(test))
where = max(words, key=lambda name: score(found, words[name]).f1)
own, chance = score(found, words[where]).f1, baselines(found, words[where])["random"].f1
assert own > 0.45 and own > 3 * chance, (own, chance)
"""
}


@pytest.mark.parametrize("page", [page for page in PAGES if page not in TO_FOLLOW], ids=lambda page: page.name)
def test_python_runs(page, tmp_path):
    for kind, block in blocks(page):
        if kind == "python":
            run_python(block, tmp_path)


def run_python(block: str, folder: Path) -> None:
    block += "".join(more for start, more in AFTERWARDS.items() if start in block)
    done = subprocess.run([sys.executable, "-c", block], capture_output=True, text=True, timeout=300, cwd=folder)
    assert done.returncode == 0, done.stderr


def test_the_blocks_that_promise_something_are_there():
    everything = "".join(page.read_text() for page in PAGES)
    assert all(everything.count(start) == 1 for start in AFTERWARDS)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page):
    """Every `hmrnn` line names a command that explains itself, with flags that it knows."""
    for command in commands(page):
        words = shlex.split(command, comments=True)
        if "hmrnn" not in words:
            continue
        words = words[words.index("hmrnn") + 1 :]
        helps = [explained(words, domain) for domain in DOMAINS]
        flags = [word for word in words if word.startswith("--")]
        assert any(all(f"{flag} " in shown or f"{flag}," in shown for flag in flags) for shown in helps), command


@cache
def model_of(kind: str) -> str:
    """The folder of a model of this kind, whose config.json is enough for help."""
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(json.dumps({"format_version": 1, "kind": kind}))
    return str(folder)


def explained(words: list[str], kind: str) -> str:
    """What a command says of itself: where it uses a run, for one of this kind."""
    run_named = [model_of(kind)] if words[0] in COMMANDS else []
    shown = run(*words[: 2 if words[0] == "train" else 1], *run_named, "--help")
    assert shown.returncode == 0, words
    return shown.stdout


@pytest.mark.parametrize("page", TO_FOLLOW, ids=lambda page: page.name)
def test_blocks_work_one_after_the_other(page, tmp_path):
    """Commands and Python, in a folder with a text, as the page tells."""
    (tmp_path / "novel.txt").write_text(builtin_text()[:60_000])
    (tmp_path / "chapter.txt").write_text(builtin_text()[60_000:62_000])
    followed = 0
    for kind, block in blocks(page):
        if kind == "python":
            run_python(block, tmp_path)
            continue
        for command in lines(block):
            words = shlex.split(command, comments=True)
            if words[0] not in ELSEWHERE:
                follow(words, tmp_path)
                followed += 1
    assert followed > 4


def follow(words: list[str], folder: Path) -> None:
    if words[0] == "python":
        source = ["-c", words[2]] if words[1] == "-c" else [str(ROOT / words[1]), "--help"]  # benchmarks take minutes
        subprocess.run([sys.executable, *source], cwd=folder, check=True, stdout=subprocess.DEVNULL, timeout=300)
        return
    given, _, place = (shlex.join(words) + " ").partition(" '>' ")
    given, _, source = given.partition(" '<' ")
    assert words[0] == "hmrnn", words
    arguments = shlex.split(given)[1:]
    if arguments[0] == "explore":
        explore(arguments, folder)
        return
    stdin = (folder / source.strip()).read_text() if source.strip() else ""
    done = run(*shortened(arguments), cwd=folder, input=stdin)
    assert done.returncode == 0, (words, done.stderr)
    assert done.stdout, words
    if place.strip():
        (folder / place.strip()).write_text(done.stdout)


def shortened(arguments: list[str]) -> list[str]:
    name = " ".join(arguments[:2]) if arguments[0] == "train" else arguments[0]
    if "--resume" in arguments:
        return arguments
    # A time would end the run anywhere; and an earlier flag of the same name gives way.
    arguments = shlex.split(re.sub(r"--minutes \S+", "", shlex.join(arguments)))
    made = "" if "--data" in arguments else LESS_DATA.get(name, "")
    return [*arguments, *SHORTER.get(name, "").split(), *made.split()]


def explore(arguments: list[str], folder: Path) -> None:
    """Until it says where it is; then Ctrl-C."""
    command = [sys.executable, "-m", "hmrnn", *arguments]
    command += [] if "--no-browser" in arguments else ["--no-browser"]
    with subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background are to ignore it
    ) as process:
        assert process.stdout is not None
        first = process.stdout.readline()
        process.send_signal(signal.SIGINT)
    assert "http://127.0.0.1:" in first


def test_the_readme_says_how_to_begin():
    text = (ROOT / "README.md").read_text()
    for part in ("make demo", "```python", "hmrnn train text", "hmrnn segment builtin", "hmrnn explore"):
        assert part in text
