"""Connections that say nothing must not keep others out."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

TO_ASK = 10.0  # seconds until a connection must have become a conversation, or is closed: a page takes less than one
MOST_WAITING = 200  # connections from one address that have not: a new one takes the place of the oldest


class Connection(H11Protocol):
    """One over which the page is asked for, or which is about to become a conversation over a WebSocket."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.since = self.loop.time()
        self.deadline = self.loop.call_later(TO_ASK, transport.close)
        waiting = [own for own in self.connections if isinstance(own, Connection) and own.is_rival_of(self)]
        if len(waiting) > MOST_WAITING:
            min(waiting, key=lambda own: own.since).transport.abort()

    def is_rival_of(self, other: Connection) -> bool:
        """Whether both are from one address, and this one still waits."""
        same = self.client is None or other.client is None or self.client[0] == other.client[0]
        return same and not self.transport.is_closing()

    def handle_websocket_upgrade(self, event: Any) -> None:
        self.deadline.cancel()
        super().handle_websocket_upgrade(event)

    def connection_lost(self, exc: Exception | None) -> None:
        self.deadline.cancel()
        super().connection_lost(exc)
