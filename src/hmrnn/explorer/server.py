"""The server: a page, and a WebSocket over which it asks."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request as HTTPRequest
from starlette.responses import Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from hmrnn.domains import DOMAINS
from hmrnn.explorer.connections import MOST_WAITING, Connection
from hmrnn.explorer.guard import Guard
from hmrnn.explorer.reading import Memory
from hmrnn.explorer.requests import Refused, Request
from hmrnn.explorer.runs import Answers, Run
from hmrnn.structure.reading import PredictsNothing

MOST_USERS = 200
MOST_REQUESTS = 100  # under way at one time: more are told to come again
LONGEST_MESSAGE = 1 << 18  # bytes
TIME_LIMIT = 60.0  # seconds for a request
PACE = 1 / 60  # seconds between two symbols or points that are made: to be watched, and to leave time to others
FORGET_EVERY = 60.0

PAGE = {
    "": ("page.html", "text/html"),
    "explorer.css": ("explorer.css", "text/css"),
    "icon.svg": ("icon.svg", "image/svg+xml"),
    **{name: (name, "text/javascript") for name in ("explorer.js", "panels.js", "asking.js", "picture.js")},
}
TEMPLATES = b"<!-- the templates of each domain: its explorer.html -->\n"
log = logging.getLogger(__name__)


class Explorer:
    """The runs, and the one thread that computes: requests take turns in it, answer by answer."""

    def __init__(self, runs: Sequence[Run[Any]], memory: Memory) -> None:
        self.runs, self.memory = runs, memory
        self.worker = ThreadPoolExecutor(1, "model")
        self.users = self.requests = 0

    def hello(self) -> dict[str, Any]:
        """What the page is told first."""
        return {"runs": [run.described() for run in self.runs]}

    async def compute(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self.worker, work)

    async def forget(self) -> None:
        """Drops what was remembered too long, also if nobody asks for anything."""
        while True:
            await asyncio.sleep(FORGET_EVERY)
            await self.compute(self.memory.forget)


class Conversation:
    """One user's socket. A new request of a kind to a run takes the place of the one before."""

    def __init__(self, explorer: Explorer, socket: WebSocket) -> None:
        self.explorer, self.socket = explorer, socket
        self.tasks: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def hold(self) -> None:
        await self.socket.accept()
        await self.send(self.explorer.hello())
        try:
            while (message := await self.socket.receive())["type"] != "websocket.disconnect":
                await self.hear(message.get("text") or "")
        finally:
            for task in self.tasks.values():
                task.cancel()

    async def hear(self, message: str) -> None:
        try:
            request = Request(message)
            run = self.explorer.runs[request.whole("run", 0, len(self.explorer.runs) - 1)]
            number = request.whole("id", 0, 1 << 53)
        except Refused as error:
            await self.send({"id": None, "error": str(error)})
            return
        kind = request.kind()
        if kind == "stop":
            self.replace(("generate", run.number), None)
        elif kind not in run.kinds:
            await self.send({"id": number, "error": f"kind must be stop or one of {', '.join(run.kinds)}"})
        elif self.explorer.requests >= MOST_REQUESTS:
            await self.send({"id": number, "busy": True})
        else:
            answering = self.answer(number, run.kinds[kind](request), PACE if kind == "generate" else 0.0)
            self.replace((kind, run.number), asyncio.create_task(answering))
            await asyncio.sleep(0)  # it begins, so that it has a last word even if it is stopped at once

    def replace(self, which: tuple[str, int], task: asyncio.Task[None] | None) -> None:
        before = self.tasks.pop(which, None)
        if before is not None:
            before.cancel()
        if task is not None:
            self.tasks[which] = task

    async def answer(self, number: int, answers: Answers, pace: float) -> None:
        """Sends the answers as they are made, and always a last word: done, or what went wrong."""
        self.explorer.requests += 1
        last: dict[str, Any] = {"done": True}
        try:
            await asyncio.wait_for(self.tell(number, answers, pace), TIME_LIMIT)
        except (Refused, PredictsNothing) as error:
            last = {"error": str(error)}
        except asyncio.TimeoutError:
            last = {"error": f"this took longer than {TIME_LIMIT:.0f} seconds"}
        except asyncio.CancelledError:
            last = {"stopped": True}
        except Exception:
            log.exception("a request failed")
            last = {"error": "the server failed at this; its terminal tells why"}
        finally:
            self.explorer.requests -= 1
        await self.send({"id": number, **last})

    async def tell(self, number: int, answers: Answers, pace: float) -> None:
        while True:
            answer = await self.explorer.compute(partial(next, answers, Ellipsis))
            if answer is Ellipsis:
                return
            if answer is not None:
                await self.send({"id": number, **answer})
                await asyncio.sleep(pace)

    async def send(self, answer: dict[str, Any]) -> None:
        with suppress(RuntimeError, WebSocketDisconnect):  # the user has gone
            await self.socket.send_text(json.dumps(answer, separators=(",", ":")))


def create_app(runs: Sequence[Run[Any]], memory: Memory) -> Starlette:
    explorer = Explorer(runs, memory)

    @asynccontextmanager
    async def lifespan(app: Starlette) -> AsyncIterator[None]:
        forgetting = asyncio.create_task(explorer.forget())
        yield
        forgetting.cancel()
        explorer.worker.shutdown(cancel_futures=True)

    async def socket(socket: WebSocket) -> None:
        if explorer.users >= MOST_USERS:
            await socket.close(1013, "too many users")
            return
        explorer.users += 1
        try:
            await Conversation(explorer, socket).hold()
        finally:
            explorer.users -= 1

    page = [Route(f"/{path}", always(content, kind)) for path, content, kind in page_files()]
    routes = [*page, WebSocketRoute("/socket", socket)]
    return Starlette(routes=routes, middleware=[Middleware(Guard)], lifespan=lifespan)


def server_of(app: Starlette) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="websockets-sansio",
        ws_max_size=LONGEST_MESSAGE,
        ws_per_message_deflate=False,  # there is no network to spare
        limit_concurrency=2 * (MOST_USERS + MOST_WAITING),
        proxy_headers=False,  # nobody stands between
        server_header=False,
        log_level="warning",
        timeout_graceful_shutdown=1,
    )
    return uvicorn.Server(config)


def always(content: bytes, kind: str) -> Callable[[HTTPRequest], Response]:
    return lambda request: Response(content, media_type=kind)


def page_files() -> Iterator[tuple[str, bytes, str]]:
    """Path, content and type of all that is served: read once, so that no request reaches the file system."""
    folder = Path(__file__).with_name("page")
    templates = b"".join(domain.page("html") for domain in DOMAINS.values())
    for path, (name, kind) in PAGE.items():
        content = (folder / name).read_bytes().replace(TEMPLATES, templates)
        yield path, content, f"{kind}; charset=utf-8"
    for domain in DOMAINS.values():
        yield f"{domain.name}.js", domain.page("js"), "text/javascript; charset=utf-8"
