"""Who may ask: the page that this server served, and nobody else.

The server listens on 127.0.0.1 only, but a browser on this machine runs other people's pages, and those can send
requests here. They can't lie about where they come from: the browser writes Host, Origin and Sec-Fetch-Site.
"""

from __future__ import annotations

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

OURS = ("127.0.0.1", "localhost")
POLICY = {
    "Content-Security-Policy": "default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",  # of two explorers on one port, one after the other, each has its own page
}


class Guard:
    """Refuses requests from elsewhere, and tells browsers what the page may do."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        refusal = refused(scope)
        if refusal is None:
            await self.app(scope, receive, with_policy(send))
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": refusal})  # before accept: a 403
        else:
            await PlainTextResponse(refusal + "\n", 403)(scope, receive, with_policy(send))


def refused(scope: Scope) -> str | None:
    """Why, if it is."""
    headers, port = Headers(scope=scope), scope["server"][1]
    hosts = {name if port == 80 else f"{name}:{port}" for name in OURS}
    host, origin, site = (headers.get(name) for name in ("host", "origin", "sec-fetch-site"))
    if host not in hosts:
        return f"this is {' and '.join(sorted(hosts))}, and goes by no other name"
    # A browser always says where a WebSocket comes from. What else says nothing, as a bookmark does, is let in.
    if origin != f"http://{host}" and (origin is not None or scope["type"] == "websocket"):
        return "only the page of this server may ask it"
    if site not in (None, "same-origin", "none"):
        return "other pages may not use this one"
    return None


def with_policy(send: Send) -> Send:
    async def sent(message: Message) -> None:
        if message["type"] == "http.response.start":
            MutableHeaders(scope=message).update(POLICY)
        await send(message)

    return sent
