"""The package as others install it: the wheel holds all that it needs, and works without a compiler and the extras."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
EXTRAS = ("matplotlib", "starlette", "uvicorn", "websockets", "HersheyFonts", "tensorboard")


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder with what the wheel holds, and none of the extras to be had."""
    folder = tmp_path_factory.mktemp("package")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", folder, ROOT]
    subprocess.run(build, check=True, timeout=600)
    (wheel,) = folder.glob("hmrnn-*.whl")
    assert re.search(r"-py3-none-(linux|macosx)_\w+\.whl$", wheel.name), "for any Python, but for one kind of processor"
    subprocess.run([*pip, "install", "--no-deps", "--target", folder / "site", wheel], check=True, timeout=300)
    missing = "\n".join(f"sys.modules[{name!r}] = None" for name in EXTRAS)
    (folder / "site" / "sitecustomize.py").write_text(f"import sys\n{missing}\n")
    return folder / "site"


def python(installed: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Without a compiler, and with a cache in which nothing is built."""
    environment = {**os.environ, "PYTHONPATH": str(installed), "CXX": "/nonexistent", "HMRNN_CACHE": str(installed)}
    return subprocess.run(
        [sys.executable, *arguments],
        env=environment,
        cwd=installed,
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def call(installed: Path, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return python(installed, "-m", "hmrnn", *arguments, stdin=stdin)


def test_the_shipped_model_works_at_once(installed):
    assert str(installed) in python(installed, "-c", "import hmrnn; print(hmrnn.__file__)").stdout
    done = call(installed, "segment", "builtin", stdin="The value of the argument is a string.\n")
    assert done.returncode == 0, done.stderr
    marked = done.stdout.strip()
    assert marked.replace("|", "").replace("‖", "").strip() == "The value of the argument is a string."
    assert "|is |a |" in marked.replace("‖", ""), "it has learnt where words end"


def test_the_native_engine_is_there_without_a_compiler(installed):
    use = "import torch, hmrnn; rnn = hmrnn.HMLSTM(2, [3, 3]); rnn(torch.randn(4, 2, 2)); print(rnn.engine)"
    done = python(installed, "-c", use)
    assert (done.stdout, done.stderr) == ("native\n", "")
    library = json.loads(call(installed, "build", "--json").stdout)
    assert not library["built"]
    assert Path(library["library"]).parent == installed / "hmrnn" / "engines" / "native" / "built"
    assert not (installed / "native").exists(), "nothing in the cache"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells what a process has loaded")
def test_the_library_needs_libc_alone(installed):
    """So it fits whatever version of libstdc++ the machine, or torch, brings."""
    baseline = min((installed / "hmrnn" / "engines" / "native" / "built").iterdir())
    code = f"import ctypes; ctypes.CDLL({str(baseline)!r}); print(open('/proc/self/maps').read())"
    loaded = python(installed, "-S", "-c", code).stdout
    assert str(baseline) in loaded
    assert not re.search(r"libstdc\+\+|libgcc|gomp|libomp", loaded)


def test_a_wheel_that_was_built_without_a_compiler(tmp_path):
    """Installing must not fail for want of one: the wheel is one of Python alone."""
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    build = [*pip, "wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", tmp_path, ROOT]
    subprocess.run(build, check=True, timeout=300, env={**os.environ, "CXX": "/nonexistent"})
    (wheel,) = tmp_path.iterdir()
    assert wheel.name.endswith("-py3-none-any.whl")


def test_the_sources_of_the_engine_and_the_page_are_there(installed):
    own = ROOT / "src" / "hmrnn"
    for path in [*(own / "engines" / "native").rglob("*.*"), *(own / "explorer" / "page").iterdir(), own / "py.typed"]:
        if "__pycache__" not in path.parts:
            assert (installed / "hmrnn" / path.relative_to(own)).exists(), path


@pytest.mark.parametrize(
    ("arguments", "extra"),
    [
        (["explore", "builtin", "--no-browser"], "explore"),
        (["figure", "builtin", "--kind", "boundaries", "--out", "figure.png"], "show"),
        (["plot", "builtin"], "show"),
        (["train", "strokes", "--data", "builtin", "--out", "run"], "strokes"),
    ],
)
def test_what_needs_an_extra_names_it(installed, arguments, extra):
    done = call(installed, *arguments)
    assert done.returncode == 1
    assert f"pip install 'hmrnn[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
