"""The loop that asks: requests in flight, attempts, and a record for every one that is over."""

from __future__ import annotations

import asyncio
import datetime
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import asdict, dataclass
from typing import Any

from tallymill.engine.physcount.request import body_around_image
from tallymill.engine.physcount.run_files import ANSWERED, FAILED, REFUSED
from tallymill.errors import RunError
from tallymill.runners.physcount.answers import AnswerLog
from tallymill.runners.physcount.client import Client, Endpoint
from tallymill.runners.physcount.doubt import Doubt
from tallymill.runners.physcount.effort import Effort, named_in
from tallymill.runners.physcount.images import Images, Ready
from tallymill.runners.physcount.pace import LONGEST_WAIT, Pace, Patience, in_words
from tallymill.runners.physcount.plan import AskSettings, ImageRequests, Request
from tallymill.runners.physcount.replies import FATAL, TRANSIENT, Outcome
from tallymill.runners.sweep import SweepProgress

_MOST_TIMEOUTS = 2
# A server that has a request, and takes this long over its first reply, has taken the settings and is thinking.
_FIRST_REPLY = 15.0
_LOOK = 1.0


@dataclass(frozen=True, slots=True)
class Speed:
    """What asking took: questions that were over, requests sent, seconds."""

    questions: int
    requests: int
    seconds: float
    questions_per_second: float


@dataclass(frozen=True, slots=True)
class Job:
    """What is asked, and how. ``total`` counts the questions that are over, too. ``fresh``: this server has
    answered none of them, and nothing shows yet that it takes the settings.
    """

    work: Sequence[ImageRequests]
    model: str
    settings: AskSettings
    patience: Patience
    concurrency: int
    total: int
    fresh: bool

    @property
    def questions(self) -> int:
        """How many questions that is."""
        return sum(len(request.question_ids) for item in self.work for request in item.requests)


class Asking:
    """Sends everything that a job holds. ``run`` is for one event loop; ``stop`` may be called from any thread.

    ``settle`` is told the reasoning effort before the first answer is written.
    """

    def __init__(
        self,
        job: Job,
        effort: Effort,
        log: AnswerLog,
        progress: SweepProgress,
        *,
        settle: Callable[[str | None], None],
    ) -> None:
        self._job, self._effort, self._log, self._progress = job, effort, log, progress
        self._settle = settle
        self._settled = effort.settled
        self._open = not job.fresh
        self._sent_at: float | None = None
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._main: asyncio.Task[None] | None = None
        self._requests = self._questions = 0
        self._seconds: float | None = None

    async def run(self, endpoint: Endpoint, check: Callable[[], None]) -> None:
        """Ask everything; ``check`` raises where the server is known to be gone.

        Raises ``RunError`` where going on makes no sense. What has come is kept then too.
        """
        self._loop, self._main = asyncio.get_running_loop(), asyncio.current_task()
        if self._stopped:
            return
        self._progress.start(self._job.total, self._job.total - self._job.questions)
        self._endpoint, self._check = endpoint, check
        self._doubt = Doubt(endpoint.shown, answered=not self._job.fresh, concurrency=self._job.concurrency)
        patience = self._job.patience
        self._pace = Pace(self._job.concurrency, patience)
        self._images = Images(self._job.work, self._job.settings.long_edge)
        self._room = asyncio.Semaphore(self._job.concurrency)
        begun = time.monotonic()
        try:
            async with Client(endpoint, timeout=patience.timeout, connect_timeout=patience.connect_timeout) as client:
                self._client = client
                await self._send_all()
            for record in self._doubt.finish():
                await self._write(record)
        except BaseExceptionGroup as group:
            raise _first(group) from None
        finally:
            await self._log.flush()
            self._seconds = time.monotonic() - begun

    def stop(self) -> None:
        """Send nothing more, and give up what is in flight."""
        self._stopped = True
        if self._loop is not None and self._main is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._main.cancel)

    @property
    def speed(self) -> Speed | None:
        """What was done since the beginning; None before it."""
        if self._seconds is None:
            return None
        rate = self._questions / self._seconds if self._seconds > 0 else 0.0
        return Speed(self._questions, self._requests, round(self._seconds, 3), round(rate, 3))

    async def _send_all(self) -> None:
        async with asyncio.TaskGroup() as tasks, aclosing(aiter(self._images)) as images:
            async for item, image in images:
                for request in item.requests:
                    await self._room.acquire()
                    task = tasks.create_task(self._see_through(request, image))
                    if not self._open:
                        # What the server makes of the settings comes before it is sent more of the same.
                        await self._taken(task)
                        self._open = self._doubt.answered or not task.done()

    async def _taken(self, task: asyncio.Task[None]) -> None:
        """Return when the only task that asks is over, or the server seems to be thinking over what it was sent."""
        while not task.done():
            left = _FIRST_REPLY if self._sent_at is None else self._sent_at + _FIRST_REPLY - time.monotonic()
            if left <= 0:
                return
            await asyncio.wait({task}, timeout=min(left, _LOOK))

    async def _see_through(self, request: Request, image: Ready) -> None:
        """One request until it is over and its record is on the disk."""
        try:
            if image.error is not None:
                outcome = Outcome(TRANSIENT if image.passes else REFUSED, error=image.error, unsent=True)
                await self._keep(request, outcome, 0, 0.0)
            else:
                await self._keep(request, *await self._attempts(request, image))
        finally:
            self._images.done(image)
            self._room.release()

    async def _attempts(self, request: Request, image: Ready) -> tuple[Outcome, int, float]:
        """The outcome that counts, how many attempts it took, and the seconds of the last one."""
        attempt = timeouts = 0
        while True:
            effort = self._effort.current
            outcome, seconds, counts = await self._attempt(request, image, effort)
            outcome = self._doubt.judged(outcome)
            if self._effort.ask_again(effort, outcome):
                continue
            attempt += counts
            timeouts += outcome.timed_out
            self._stop_if_hopeless(outcome, attempt)
            over = attempt >= self._job.patience.attempts or timeouts >= _MOST_TIMEOUTS
            if outcome.kind != TRANSIENT or (counts and over):
                return outcome, attempt, seconds
            await asyncio.sleep(self._pace.wait_after(attempt, outcome.retry_after))

    async def _attempt(self, request: Request, image: Ready, effort: str | None) -> tuple[Outcome, float, bool]:
        """What came of it, its seconds, and whether it counts: not where the server asks everybody to wait already."""
        before, after = body_around_image(self._job.model, request.text, self._job.settings.options(effort))
        paused = False
        async with self._pace.slot() as sent_at:
            self._requests += 1
            begun = time.monotonic()
            outcome = await self._client.ask((before, image.url, after), self._mark_sent)
            self._sent_at = None
            seconds = time.monotonic() - begun
            if outcome.kind == ANSWERED:
                self._pace.succeeded()
            elif outcome.overloaded or outcome.timed_out:
                paused = outcome.overloaded and self._pace.paused
                self._pace.overloaded(sent_at, outcome.retry_after)
        return outcome, seconds, not paused or outcome.kind != TRANSIENT

    def _mark_sent(self) -> None:
        self._sent_at = time.monotonic()

    def _stop_if_hopeless(self, outcome: Outcome, attempt: int) -> None:
        """Raise where every further request would come to the same."""
        if outcome.kind == FATAL:
            raise RunError(f"{self._endpoint.shown}: {outcome.error}", hint=outcome.hint)
        if outcome.kind == TRANSIENT and (outcome.retry_after or 0.0) > LONGEST_WAIT:
            wait = in_words(outcome.retry_after or 0.0)
            hint = "the same command goes on after that"
            raise RunError(
                f"{self._endpoint.shown}: the server asks to wait {wait}: {outcome.error}", hint=hint, retryable=True
            )
        if outcome.unreachable:
            self._check()
        if self._doubt.answered:
            return
        field = named_in(outcome.error, self._job.settings.options(self._effort.current))
        if outcome.kind == REFUSED and field is not None:
            option = "--max-tokens and --token-field" if "tokens" in field else f"--{field.replace('_', '-')}"
            raise RunError(f"{self._endpoint.shown}: {outcome.error}", hint=f"it is about {field}: see {option}")
        if outcome.unreachable and attempt >= self._job.patience.attempts:
            raise RunError(f"{self._endpoint.shown}: {outcome.error}", hint="start the server, or look at --endpoint")

    async def _keep(self, request: Request, outcome: Outcome, attempts: int, seconds: float) -> None:
        """Count the request as over; its record is written, or held back while its refusal is in doubt."""
        if self._effort.settled and not self._settled:
            self._settle(self._effort.current)
            self._settled = True
        for record in self._doubt.take(_record(request, outcome, attempts, seconds), outcome):
            await self._write(record)
        self._doubt.check()

    async def _write(self, record: dict[str, Any]) -> None:
        await self._log.append(record)
        questions = len(record["question_ids"])
        self._questions += questions
        self._progress.advance(questions, 0 if record["status"] == ANSWERED else questions)


def _record(request: Request, outcome: Outcome, attempts: int, seconds: float) -> dict[str, Any]:
    return {
        "question_ids": list(request.question_ids),
        "group_id": request.group_id,
        "status": FAILED if outcome.kind == TRANSIENT else outcome.kind,
        "response": outcome.response,
        "reasoning": outcome.reasoning,
        "finish_reason": outcome.finish_reason,
        "http_status": outcome.http_status,
        "error": outcome.error,
        "attempts": attempts,
        "seconds": round(seconds, 3),
        "usage": asdict(outcome.usage),
        "at": datetime.datetime.now(datetime.UTC).isoformat(timespec="milliseconds"),
    }


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """One of the errors that ended a group of tasks: the others are of the same kind, or followed from it."""
    inner = group.exceptions[0]
    return _first(inner) if isinstance(inner, BaseExceptionGroup) else inner
