"""Where the native engine's library comes from. A wheel brings it built; else it is compiled on first use, and kept.

Two processes may need it at once: one builds, the other waits for it, and a build that was killed leaves nothing behind
that a later one could trip over. The wheel's build hook (hatch_build.py) uses this file by its path, without hmrnn and
torch installed, so it needs no more than Python's own library.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

CSRC = Path(__file__).parent / "csrc"
SHIPPED = Path(__file__).parent / "built"  # in a wheel; a clone has no such folder
# -fno-trapping-math and -fno-math-errno let the compiler turn comparisons and square roots into vectors; the results
# are those of the standard. -ffast-math, which changes results, is not used. Nor is -fopenmp: torch brings an OpenMP
# runtime, and a second one in the process would be one too many. -O3 takes a third longer to compile and gains nothing.
FLAGS = (
    *("-O2", "-std=c++20", "-fPIC", "-fvisibility=hidden", "-pthread"),
    *("-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math"),
)
# What a wheel for x86-64 carries, the best last: how each is compiled, and what /proc/cpuinfo must name for it. Each is
# a file of its own: in one, the linker could take an inline function compiled for the newest processor for all of them.
# AMX instructions arise only where the source asks for them, so a processor needs no AMX to run the last.
VARIANTS = {
    "x86-64-v2": (("-march=x86-64-v2",), "cx16 lahf_lm popcnt sse4_1 sse4_2 ssse3"),
    "x86-64-v3": (("-march=x86-64-v3",), "abm avx avx2 bmi1 bmi2 f16c fma movbe xsave"),
    "x86-64-v4": (("-march=x86-64-v4",), "avx512bw avx512cd avx512dq avx512f avx512vl"),
    "x86-64-v4-bf16": (("-march=x86-64-v4", "-mavx512bf16", "-mamx-tile", "-mamx-bf16"), "avx512_bf16"),
}


class Unavailable(Exception):
    """The native engine can't be had; the message says why, in one line."""


def find() -> Path:
    """The library for this machine, built if need be."""
    path = place()
    try:
        if not can_be_used(path):
            _build_once(path)
    except OSError as error:
        reason = f"{path.parent} can't be used ({error.strerror}); set HMRNN_CACHE" if error.strerror else str(error)
        raise Unavailable(reason) from None
    return path


def place() -> Path:
    """Where the library lies or will lie: beside this file, if it came with the package, or in the cache."""
    shipped = SHIPPED / f"{best_variant()}.so"
    return shipped if shipped.exists() else in_cache()


def can_be_used(path: Path) -> bool:
    """Whether a library is there that nobody else can have put there: it will be run."""
    from hmrnn.storage.cache import can_be_trusted, check_own

    if path.parent == SHIPPED:
        return True
    check_own(path.parent)
    return can_be_trusted(path)


def best_variant() -> str | None:
    """Of those that a wheel for this kind of processor carries, the best that this one can run."""
    machine = kind_of_processor()
    return choose_variant(processor_flags().split()) if machine == "x86-64" else machine


def choose_variant(flags: Sequence[str]) -> str | None:
    """The best for an x86-64 processor with these flags. Each variant also needs what those before it need."""
    best = None
    for name, (_, needed) in VARIANTS.items():
        if not set(needed.split()) <= set(flags):
            break
        best = name
    return best


def kind_of_processor() -> str:
    """That Python runs on; or is built for, where a wheel is cross-compiled (_PYTHON_HOST_PLATFORM=linux-aarch64)."""
    machine = sysconfig.get_platform().rsplit("-")[-1].replace("universal2", platform.machine())
    return {"x86_64": "x86-64", "arm64": "aarch64"}.get(machine, machine)


def processor_flags() -> str:
    """What the processor can do, as Linux tells it; elsewhere nothing but its name."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), platform.processor())


def in_cache() -> Path:
    """Where the library for this machine is kept, or would be. Whatever makes it unfit for use elsewhere is in its
    name: a home directory may be shared by machines that differ."""
    from hmrnn.storage.cache import cache_directory

    try:
        folder = cache_directory("native")
    except OSError as error:
        raise Unavailable(str(error)) from None
    key = hashlib.sha256(repr((compiler(), FLAGS, flags_for_here(), processor_flags())).encode())
    for path in sorted([*CSRC.glob("*.cpp"), *CSRC.glob("*.h")]):
        key.update(path.name.encode() + path.read_bytes())
    return folder / f"hmrnn-{key.hexdigest()[:16]}.so"


def compiler() -> list[str]:
    """The command, which may have arguments."""
    return shlex.split(os.environ.get("CXX", "")) or ["c++"]


def flags_for_here() -> tuple[str, ...]:
    """For the processor at hand, whatever it can do."""
    return {"x86-64": ("-march=native",), "aarch64": ("-mcpu=native",)}.get(kind_of_processor(), ())


def flags_for_wheel() -> dict[str, tuple[str, ...]]:
    """For each variant. Its machine may have an older libstdc++ than this one, so each brings its own, for itself."""
    exports = f"-Wl,--version-script={CSRC / 'exports.map'}"
    alone = ("-static-libstdc++", "-static-libgcc", exports) if sys.platform == "linux" else ()
    machine = kind_of_processor()
    if machine != "x86-64":
        return {machine: alone}
    return {name: (*flags, *alone) for name, (flags, _) in VARIANTS.items()}


def _build_once(target: Path) -> None:
    from hmrnn.storage.cache import own_cache_directory

    check_compiler()
    own_cache_directory("native")
    with _lock(target.with_suffix(".lock")):
        if can_be_used(target):  # another process built it meanwhile
            return
        for left in target.parent.glob(f"{target.stem}.*.part"):  # by a build that was killed
            shutil.rmtree(left, ignore_errors=True)
        _say("building the native engine; this takes 10 to 60 seconds, once")
        compile_library(target, flags_for_here())


def check_compiler() -> None:
    if sys.platform == "win32":
        raise Unavailable("it is not built on Windows")
    if shutil.which(compiler()[0]) is None:
        raise Unavailable(f"there is no C++ compiler ({shlex.join(compiler())} was not found; set CXX)")


def compile_library(target: Path, flags: Sequence[str]) -> None:
    """Compiles and links every source. The target appears when it is whole."""
    command = [*compiler(), *FLAGS, *flags]
    sources = sorted(CSRC.glob("*.cpp"))
    with tempfile.TemporaryDirectory(prefix=f"{target.stem}.", suffix=".part", dir=target.parent) as scratch:
        # In two units, for two cores: with one for each source, half of the time would go into reading headers again.
        units = [Path(scratch) / f"unit{k}.cpp" for k in range(2)]
        for k, unit in enumerate(units):
            unit.write_text("".join(f'#include "{source}"\n' for source in sources[k::2]), encoding="utf-8")
        with ThreadPoolExecutor(2) as both:
            compiled = both.map(
                lambda unit: _run([*command, "-c", str(unit), "-o", str(unit.with_suffix(".o"))]), units
            )
            list(compiled)  # raises what they raised
        _run([*command, "-shared", *(str(unit.with_suffix(".o")) for unit in units), "-o", f"{scratch}/library"])
        os.chmod(f"{scratch}/library", 0o755)
        os.replace(f"{scratch}/library", target)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise Unavailable(f"the build failed: {_first_error(done.stderr)}")


def _first_error(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return next((line for line in lines if "error" in line.lower()), lines[0] if lines else "?")


@contextmanager
def _lock(path: Path) -> Iterator[None]:
    import fcntl  # not on every system that can import this file

    # A lock of the system's own: it ends with the process that holds it, however that ends.
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("waiting for another process that builds the native engine")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _say(what: str) -> None:
    # Not by the logger, which an application may have silenced: half a minute without a word looks like a fault.
    if sys.stderr is not None:
        print(f"hmrnn: {what}", file=sys.stderr, flush=True)
