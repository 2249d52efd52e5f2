"""Who may know whom: what all domains share knows none of them, and no domain knows another."""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path
from typing import get_args, get_type_hints

import pytest
from support.commands import run
from support.small_runs import settings

from hmrnn.cli.flags import Command
from hmrnn.config import EngineName
from hmrnn.domains import DOMAINS
from hmrnn.engines import REQUESTS
from hmrnn.storage import config_json
from hmrnn.training.run import train_run

ROOT = Path(__file__).parents[1] / "src" / "hmrnn"
NAMES = "|".join(DOMAINS)


def imported(folder: Path) -> dict[str, set[str]]:
    """What the files below a folder import, also in functions."""
    wanted = re.compile(r"^\s*(?:from|import) (hmrnn[\w.]*)", re.MULTILINE)
    return {path.relative_to(ROOT).as_posix(): set(wanted.findall(path.read_text())) for path in folder.rglob("*.py")}


# The public names, and two commands that are about text.
KNOWS_DOMAINS = ("__init__.py", "cli/bench.py", "cli/demo.py")


def test_what_domains_share_knows_none_of_them():
    for path, names in imported(ROOT).items():
        if not path.startswith("domains/") and path not in KNOWS_DOMAINS:
            assert not {name for name in names if re.match(rf"hmrnn\.domains\.({NAMES}|vectors)\b", name)}, path


def test_only_domains_know_the_command_line():
    for path, names in imported(ROOT).items():
        if not path.startswith(("domains/", "cli/", "__main__.py")):
            assert not {name for name in names if re.match(r"hmrnn\.cli\b", name)}, path


@pytest.mark.parametrize("domain", [*DOMAINS, "vectors"])
def test_no_domain_knows_another(domain):
    others = "|".join(set(DOMAINS) - {domain})
    for path, names in imported(ROOT / "domains" / domain).items():
        assert not {name for name in names if re.match(rf"hmrnn\.domains\.({others})\b", name)}, path


def test_nobody_asks_which_domain_it_is():
    for path in ROOT.rglob("*.py"):
        if "domains" not in path.parts:
            assert not re.search(rf"[!=]= \"({NAMES})\"", path.read_text()), path


def test_eval_reads_the_settings_of_a_run_once(text_file, tmp_path, monkeypatch):
    train_run(settings(text_file, epochs=0.2), tmp_path / "run")
    read, read_bytes = [], config_json.read_bytes
    monkeypatch.setattr(config_json, "read_bytes", lambda path, most: read.append(path) or read_bytes(path, most))
    done = run("eval", str(tmp_path / "run"), "--temperature", "auto")
    assert done.returncode == 0, done.stderr
    assert sorted(read.count(tmp_path / "run" / part / "config.json") for part in ("", "best")) == [1, 1]


@pytest.mark.parametrize("domain", DOMAINS.values(), ids=DOMAINS.keys())
def test_every_command_has_its_function_beside_its_flags(domain):
    """`Command.carry_out` finds it by its name."""
    commands = import_module(f"hmrnn.domains.{domain.name}.commands")
    for name, asked in domain.flags().items():
        if asked.carry_out is Command.carry_out:
            own = getattr(commands, asked.__name__.lower())
            assert get_type_hints(own)["asked"] is asked, name


def test_the_map_shows_every_room_and_every_file_of_a_domain():
    written = (ROOT.parents[1] / "docs" / "architecture.md").read_text()
    shown = set(re.findall(r"`(?:\w+/)*(\w+)(?:/|\.py|\.js|\.html)`", written))
    for room in (ROOT, *(ROOT / "domains" / name for name in (*DOMAINS, "vectors"))):
        inside = {path.stem for path in room.iterdir() if path.suffix != ".typed" and not path.name.startswith("_")}
        assert inside <= shown, room


def test_settings_name_every_engine():
    """They can't ask for the list of them: that imports torch."""
    assert set(get_args(EngineName)) == set(REQUESTS)
