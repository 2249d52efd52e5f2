"""Builds the C++ engine on first use, and keeps it: a file for each torch, Python, processor and state of the source.

Two processes may build at once: one builds, the other waits for it, and a build that was killed leaves nothing behind
that a later one could trip over.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import os
import platform
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

import torch

from hmrnn.files import cache_directory

NAME = "hmrnn_native"
SOURCES = ("forward.cpp", "backward.cpp", "weight_gradients.cpp", "stream.cpp", "module.cpp")
HEADERS = ("packed.h", "pointwise.h", "tables.h", "team.h", "kernel.h")
# -fno-trapping-math and -fno-math-errno let the compiler turn comparisons and square roots into vectors; the results
# are those of the standard. -ffast-math, which changes results, is not used.
FLAGS = ("-O3", "-march=native", "-fopenmp", "-fno-math-errno", "-fno-trapping-math", "-std=c++20")

logger = logging.getLogger("hmrnn")
_loaded: ModuleType | None = None
_failure: str | None = None


class Unavailable(Exception):
    """The native engine can't be had; the message says why, in one line."""


def extension() -> ModuleType:
    """The compiled engine, built if need be. Raises Unavailable, and the same again if asked again."""
    global _loaded, _failure
    if _loaded is None and _failure is None:
        try:
            _loaded = _find_or_build()
        except Unavailable as error:
            _failure = str(error)
            logger.warning("the native engine is not available: %s", error)
    if _loaded is None:
        raise Unavailable(_failure)
    return _loaded


def _find_or_build() -> ModuleType:
    if platform.machine() not in ("x86_64", "AMD64"):
        raise Unavailable(f"it is built for x86-64 processors only, and this is {platform.machine()}")
    compiler = os.environ.get("CXX", "c++")
    try:
        folder = cache_directory("native")
    except OSError as error:
        raise Unavailable(str(error)) from None
    target = folder / f"{NAME}-{_key(compiler)}.so"
    try:
        if target.exists():
            return _load(target)
        if shutil.which((shlex.split(compiler) or [""])[0]) is None:
            raise Unavailable(f"there is no C++ compiler ({compiler} was not found; set CXX)")
        target.parent.mkdir(parents=True, exist_ok=True)
        with _lock(target.with_suffix(".lock")):
            if not target.exists():  # unless another process built it meanwhile
                _build(target)
    except OSError as error:
        raise Unavailable(f"{target.parent} can't be used ({error.strerror}); set HMRNN_CACHE") from None
    except ImportError as error:
        raise Unavailable(f"{error.name} is not installed") from None
    return _load(target)


def _key(compiler: str) -> str:
    """Whatever makes a build unfit for use elsewhere."""
    folder = Path(__file__).parent
    parts = [torch.__version__, sys.version, compiler, *FLAGS, _processor()]
    parts += [(folder / name).read_text(encoding="utf-8") for name in (*SOURCES, *HEADERS)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


def _processor() -> str:
    """What the processor can do: a home directory may be shared by machines that differ."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith("flags")), platform.processor())


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    import fcntl  # not on every system that can import this file

    # A lock of the system's own: it ends with the process that holds it, however that ends.
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _build(target: Path) -> None:
    import ninja
    from torch.utils import cpp_extension

    if sys.stderr.isatty():
        print("hmrnn: building the native engine; once, about a minute", file=sys.stderr)
    folder = Path(__file__).parent
    path = os.environ.get("PATH", "")
    os.environ["PATH"] = f"{ninja.BIN_DIR}{os.pathsep}{path}"  # also where no virtual environment is active
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        try:
            cpp_extension.load(
                NAME,
                [str(folder / name) for name in SOURCES],
                extra_cflags=list(FLAGS),
                extra_ldflags=["-fopenmp"],
                build_directory=scratch,
                is_python_module=False,
            )
        except Exception as error:  # torch lets out whatever went wrong in it, and any of it means: no engine
            raise Unavailable(f"the build failed: {_first_error(str(error))}") from None
        finally:
            os.environ["PATH"] = path
        os.replace(Path(scratch) / f"{NAME}.so", target)


def _first_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next(
        (line for line in lines if "error" in line.lower() and "building" not in line), lines[0] if lines else "?"
    )


def _load(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(NAME, path)
    assert spec is not None
    assert spec.loader is not None
    try:
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except ImportError as error:
        raise Unavailable(f"{path} can't be loaded ({error}); delete it to build it anew") from None
    return module
