"""What a wheel has that the source has not: the native engine's library, built for every processor of its kind.

Where it can't be built, the wheel is one of Python alone: it fits every machine, and compiles on first use. Editable
installs and source distributions carry nothing built.
"""

import importlib.util
import platform
import sysconfig
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

BUILD = "src/hmrnn/engines/native/build.py"


class NativeLibrary(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel" or version == "editable":
            return
        build = load(Path(self.root) / BUILD)
        self.scratch = tempfile.TemporaryDirectory()  # until the wheel is written
        try:
            build.check_compiler()
            for name, flags in build.flags_for_wheel().items():
                library = Path(self.scratch.name) / f"{name}.so"
                build.compile_library(library, flags)
                build_data["force_include"][str(library)] = f"hmrnn/engines/native/{build.SHIPPED.name}/{library.name}"
        except build.Unavailable as error:
            build_data["force_include"].clear()
            self.app.display_warning(f"hmrnn: this wheel comes without the native engine: {error}")
            return
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{platform_tag()}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if hasattr(self, "scratch"):
            self.scratch.cleanup()


def load(path: Path) -> ModuleType:
    """By its path: the package would import torch, which is not there while a wheel is built."""
    spec = importlib.util.spec_from_file_location("hmrnn_build", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def platform_tag() -> str:
    # A Python for two kinds of processor (macOS) compiles for the one that it runs on.
    tag = sysconfig.get_platform().replace("universal2", platform.machine())
    return tag.replace("-", "_").replace(".", "_")
