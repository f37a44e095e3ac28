"""Where the time of a shard goes, stage by stage, and what is to be paid once only."""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from types import TracebackType


class StageClock:
    """Adds up seconds by stage: ``with clock("decode"): ...``. Stages do not nest.

    ``encoded`` counts the categories that text models have encoded, by detector: each once in the life of a worker.
    """

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.encoded: Counter[str] = Counter()

    def __call__(self, stage: str) -> _Span:
        """A context manager that adds its duration to ``stage``."""
        return _Span(self, stage)

    def take(self) -> dict[str, float]:
        """The seconds so far, after which the clock starts again from nothing."""
        seconds = dict(self.seconds)
        self.seconds.clear()
        return seconds

    def take_encoded(self) -> dict[str, int]:
        """The same of ``encoded``."""
        encoded = dict(self.encoded)
        self.encoded.clear()
        return encoded


class _Span:
    __slots__ = ("clock", "stage", "start")

    def __init__(self, clock: StageClock, stage: str) -> None:
        self.clock, self.stage = clock, stage

    def __enter__(self) -> None:
        self.start = time.perf_counter()

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, tb: TracebackType | None) -> None:
        self.clock.seconds[self.stage] += time.perf_counter() - self.start
