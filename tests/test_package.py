"""The package as others install it: the wheel holds all that it needs, and works without the extras."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTRAS = ("matplotlib", "fastapi", "uvicorn", "websockets", "HersheyFonts", "tensorboard")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with what the wheel holds, and none of the extras to be had."""
    folder = tmp_path_factory.mktemp("package")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "wheel", "--no-deps", "--wheel-dir", folder, ROOT], check=True, timeout=300)
    (wheel,) = folder.glob("hmrnn-*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True, timeout=300)
    missing = "\n".join(f"sys.modules[{name!r}] = None" for name in EXTRAS)
    (folder / "site" / "sitecustomize.py").write_text(f"import sys\n{missing}\n")
    return folder / "site"


def call(installed: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hmrnn", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        command, env=environment, cwd=installed, input=stdin, capture_output=True, text=True, check=False, timeout=300
    )


def test_the_shipped_model_works_at_once(installed):
    place = subprocess.run(
        [sys.executable, "-c", "import hmrnn; print(hmrnn.__file__)"],
        env={**os.environ, "PYTHONPATH": str(installed)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert str(installed) in place.stdout
    done = call(installed, "segment", "builtin", stdin="The value of the argument is a string.\n")
    assert done.returncode == 0, done.stderr
    marked = done.stdout.strip()
    assert marked.replace("|", "").replace("‖", "").strip() == "The value of the argument is a string."
    assert "|is |a |" in marked.replace("‖", ""), "it has learnt where words end"


def test_the_sources_of_the_engine_and_the_page_are_there(installed):
    own = ROOT / "src" / "hmrnn"
    for path in [*(own / "engines" / "native").iterdir(), *(own / "explorer" / "page").iterdir(), own / "py.typed"]:
        if path.name != "__pycache__":
            assert (installed / "hmrnn" / path.relative_to(own)).exists(), path


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["explore", "builtin", "--no-browser"], "explore"),
        (["figure", "builtin", "--kind", "boundaries", "--out", "figure.png"], "show"),
        (["train", "strokes", "--data", "builtin", "--out", "run"], "strokes"),
    ],
)
def test_what_needs_an_extra_names_it(installed, arguments, extra):
    done = call(installed, *arguments)
    assert done.returncode == 1
    assert f"pip install 'hmrnn[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
