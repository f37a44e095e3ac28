"""Images on their way out: each is read, made smaller and encoded once, a few ahead, within bounded memory."""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tallymill.engine.physcount.picture import to_send
from tallymill.errors import ImageError
from tallymill.runners.physcount.plan import ImageRequests

MOST_BYTES = 512 << 20


@dataclass(slots=True)
class Ready:
    """An image as data URL, or why there is none: ``error``, which ``passes`` where the file could not be read.

    ``waiting`` requests still need it.
    """

    url: bytes
    error: str | None
    passes: bool
    waiting: int


class Images:
    """Gives the images of some work in order; an image stays in memory until all its requests are ``done``."""

    def __init__(self, work: Sequence[ImageRequests], long_edge: int, *, most_bytes: int = MOST_BYTES) -> None:
        self._work = work
        self._long_edge = long_edge
        self._most = most_bytes
        self._held = 0
        self._freed = asyncio.Event()
        self._threads = min(4, len(os.sched_getaffinity(0)))

    async def __aiter__(self) -> AsyncGenerator[tuple[ImageRequests, Ready], None]:
        loop = asyncio.get_running_loop()
        ahead: deque[tuple[ImageRequests, asyncio.Future[Ready]]] = deque()
        left = iter(self._work)
        with ThreadPoolExecutor(self._threads, thread_name_prefix="images") as threads:
            try:
                while True:
                    while len(ahead) <= self._threads and (item := next(left, None)) is not None:
                        ahead.append((item, loop.run_in_executor(threads, prepare, item, self._long_edge)))
                    if not ahead:
                        return
                    item, future = ahead.popleft()
                    ready = await future
                    await self._room_for(len(ready.url))
                    yield item, ready
            finally:
                for _, future in ahead:
                    future.cancel()

    async def _room_for(self, size: int) -> None:
        """Wait until what is held leaves room; one image is always let through."""
        while self._held and self._held + size > self._most:
            self._freed.clear()
            await self._freed.wait()
        self._held += size

    def done(self, ready: Ready) -> None:
        """One of an image's requests needs it no longer."""
        ready.waiting -= 1
        if ready.waiting == 0:
            self._held -= len(ready.url)
            ready.url = b""
            self._freed.set()


def prepare(item: ImageRequests, long_edge: int) -> Ready:
    """Read and encode one image."""
    waiting = len(item.requests)
    try:
        return Ready(to_send(item.path.read_bytes(), long_edge=long_edge).data_url(), None, False, waiting)
    except ImageError as exc:
        return Ready(b"", f"image: {exc.message}", False, waiting)
    except OSError as exc:
        return Ready(b"", f"image: {exc.strerror or exc}", True, waiting)
