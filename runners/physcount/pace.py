"""How many requests may be in flight, and how long a failed one waits: as much as the server takes, and no more."""

from __future__ import annotations

import asyncio
import random
import time
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

from tallymill.errors import UsageError

START = 8
LONGEST_WAIT = 120.0


@dataclass(frozen=True, slots=True)
class Patience:
    """How often and how long is waited for one request; times in seconds.

    ``first_wait`` doubles with each failed attempt, up to ``LONGEST_WAIT``. A request that had no reply in ``timeout``
    is sent once more only.
    """

    attempts: int = 6
    first_wait: float = 1.0
    timeout: float = 1800.0
    connect_timeout: float = 30.0

    def __post_init__(self) -> None:
        if type(self.attempts) is not int or self.attempts < 1:
            raise UsageError(f"attempts = {self.attempts!r}: must be a whole number, at least 1")
        for name in ("first_wait", "timeout", "connect_timeout"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UsageError(f"{name} = {getattr(self, name)!r}: must be a number of seconds above 0")


class Window:
    """The number of requests that may be in flight.

    It is halved when the server says that it is too much, or does not answer in time: once for all requests that were
    on their way when it was last halved. Until then it grows by one with every success, and afterwards by one with as
    many successes as it has places, lest it be at the same bound again after one round trip.
    """

    def __init__(self, most: int, *, start: int = START) -> None:
        if type(most) is not int or most < 1:
            raise UsageError(f"concurrency = {most!r}: must be a whole number, at least 1")
        self._most = most
        self._limit = float(min(start, most))
        self._halved_at = float("-inf")

    @property
    def limit(self) -> int:
        """How many that is now."""
        return int(self._limit + 1e-9)  # three thirds are one

    def succeeded(self) -> None:
        """A request was served."""
        first = self._halved_at == float("-inf")
        self._limit = min(self._most, self._limit + (1 if first else 1 / self.limit))

    def overloaded(self, sent_at: float, now: float) -> None:
        """A request that was sent at ``sent_at`` was turned away, or given up."""
        if sent_at >= self._halved_at:
            self._limit = float(max(1, self.limit // 2))
            self._halved_at = now


class Pace:
    """Lets requests of one event loop through, first come, first served: ``async with pace.slot() as sent_at``."""

    def __init__(
        self, most: int, patience: Patience, *, seed: int = 0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._window = Window(most)
        self._patience = patience
        self._random = random.Random(seed)
        self._clock = clock
        self._quiet_until = float("-inf")
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._in_flight = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """A place among the requests in flight; gives the time at which it was free."""
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._admit()
        try:
            await place
            yield self._clock()
        finally:
            if place.done() and not place.cancelled():
                self._in_flight -= 1
            self._admit()

    def _admit(self) -> None:
        quiet = self._quiet_until - self._clock()
        if quiet > 0:
            asyncio.get_running_loop().call_later(quiet, self._admit)
            return
        while self._waiting and self._in_flight < self._window.limit:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                self._in_flight += 1

    def succeeded(self) -> None:
        """A request was served."""
        self._window.succeeded()

    @property
    def paused(self) -> bool:
        """Whether the server asked for a wait that is not over."""
        return self._clock() < self._quiet_until

    def overloaded(self, sent_at: float, retry_after: float | None) -> None:
        """A request was turned away or had no reply: fewer at a time, and none before the server's own time."""
        now = self._clock()
        self._window.overloaded(sent_at, now)
        if retry_after is not None:
            self._quiet_until = max(self._quiet_until, now + min(retry_after, LONGEST_WAIT))

    def wait_after(self, attempt: int, retry_after: float | None) -> float:
        """Seconds to wait after the failed ``attempt`` (from 1), and not less than what the server asks for.

        A random share of up to a half is taken off, lest requests that failed together come back together.
        """
        wait = min(LONGEST_WAIT, self._patience.first_wait * 2.0 ** min(attempt - 1, 30))
        wait *= 1 - self._random.random() / 2
        return wait if retry_after is None else max(wait, min(retry_after, LONGEST_WAIT))


def in_words(seconds: float) -> str:
    """A wait for people: ``5 min``, ``24 h``."""
    return f"{seconds / 60:.3g} min" if seconds < 3600 else f"{seconds / 3600:.3g} h"
