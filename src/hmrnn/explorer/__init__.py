"""The explorer: a page on this machine on which one types or draws, and watches what the layers of a run make of it."""

from __future__ import annotations

import socket
import threading
import webbrowser
from collections.abc import Sequence
from pathlib import Path

from hmrnn.config import ReadingConfig


def serve(
    runs: Sequence[Path], *, port: int = 0, open_browser: bool = True, reading: ReadingConfig | None = None
) -> None:
    """Serves the page for one run, or for two to compare, on 127.0.0.1 until it is interrupted. Port 0: a free one."""
    try:
        from hmrnn.explorer.server import create_app, server_of
    except ImportError as error:
        raise ValueError(
            f"the explorer needs the packages starlette, uvicorn and websockets: pip install 'hmrnn[explore]' ({error})"
        ) from None
    from hmrnn.explorer.loading import load
    from hmrnn.explorer.reading import Memory

    memory = Memory()
    app = create_app(load(runs, memory, reading), memory)
    with listening(port) as own:
        url = f"http://127.0.0.1:{own.getsockname()[1]}"
        print(f"{url} (Ctrl+C stops it)", flush=True)
        if open_browser:
            # in a thread: a browser in the terminal would not return
            threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()
        server_of(app).run(sockets=[own])


def listening(port: int) -> socket.socket:
    """A socket that already takes connections, which wait until the server is up."""
    # The protocol is named: asyncio sends small answers at once, and not after 40 ms, only on what it knows to be TCP.
    own = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    own.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        own.bind(("127.0.0.1", port))
    except (OSError, OverflowError) as error:
        own.close()
        raise ValueError(f"port {port} can't be had: {error}. Port 0 takes a free one") from None
    own.listen()
    return own
