"""What docs/reliability.md promises is tested, and what is tested here stands there."""

from __future__ import annotations

import re
from pathlib import Path

HERE = Path(__file__).parent


def test_the_page_names_every_test():
    page = (HERE.parents[1] / "docs" / "reliability.md").read_text(encoding="utf-8")
    files = [path for path in HERE.glob("test_*.py") if path != Path(__file__)]
    files.append(HERE.parent / "explorer" / "test_visitors.py")
    elsewhere = list(HERE.parent.glob("test_*.py"))  # tests that keep promises among others
    assert names_of_tests(files) <= set(re.findall(r"`(test_\w+)`", page)) <= names_of_tests([*files, *elsewhere])
    names = {path.name for path in files}
    assert names <= set(re.findall(r"`(test_\w+\.py)`", page)) <= names | {path.name for path in elsewhere}


def names_of_tests(files: list[Path]) -> set[str]:
    return {name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text("utf-8"), re.MULTILINE)}
