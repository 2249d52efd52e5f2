"""What `hmrnn build` tells."""

from __future__ import annotations

import time

from hmrnn.cli.common import print_json
from hmrnn.engines.native import build


def build_native(*, as_json: bool) -> None:
    start = time.perf_counter()
    try:
        needed = not build.can_be_used(build.place())
        path = build.find()
    except build.Unavailable as error:
        raise ValueError(f"the native engine is not available: {error}") from None
    seconds = time.perf_counter() - start
    if as_json:
        print_json({"library": path, "built": needed, "seconds": seconds})
        return
    print(f"{path}: built in {seconds:.1f} seconds" if needed else f"{path}: there already")
