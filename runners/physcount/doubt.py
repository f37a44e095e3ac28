"""Whether what a server refuses is a matter of single questions, or of everything that it is sent.

A refusal is for good, so it is written only once an answer has come after it. Where none comes, something else is
wrong (a filter, a gateway, a setting), and the questions stay open.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tallymill.engine.physcount.run_files import ANSWERED, REFUSED
from tallymill.engine.words import counted
from tallymill.errors import RunError
from tallymill.runners.physcount.replies import FATAL, TRANSIENT, Outcome

_FEWEST_IN_A_ROW = 20
# Each of these has used up all its attempts, which takes long: a server that never answered gets no more.
_MOST_FAILED_AT_FIRST = 3
# Of these no question is the reason, whenever they come.
_ALWAYS_FATAL = frozenset({401, 402, 407, 429})


class Doubt:
    """What came of the requests so far. ``answered``: this server has answered something of the RUN already."""

    def __init__(self, shown: str, *, answered: bool, concurrency: int) -> None:
        self._shown = shown
        self.answered = answered
        self._most = max(_FEWEST_IN_A_ROW, concurrency)
        self._in_a_row = self._failed = 0
        self._last: Outcome | None = None
        self._held: list[dict[str, Any]] = []

    def judged(self, outcome: Outcome) -> Outcome:
        """A fault of the whole run is one question's where others are answered: a filter says 403, say. And TLS that
        breaks off can pass where it held before.
        """
        if outcome.kind == FATAL and self.answered and outcome.unreachable:
            return replace(outcome, kind=TRANSIENT)
        status = outcome.http_status or 0
        if outcome.kind == FATAL and self.answered and 400 <= status < 500 and status not in _ALWAYS_FATAL:
            return replace(outcome, kind=REFUSED)
        return outcome

    def take(self, record: dict[str, Any], outcome: Outcome) -> list[dict[str, Any]]:
        """What is to be written now that a request is over; ``check`` comes after that."""
        if outcome.unsent:
            return [record]
        if outcome.kind == ANSWERED:
            self._in_a_row, self.answered = 0, True
            return [record, *self._release()]
        self._in_a_row, self._last = self._in_a_row + 1, outcome
        if outcome.kind == TRANSIENT:
            self._failed += 1
            return [record]
        self._held.append(record)
        return []

    def check(self) -> None:
        """Raise ``RunError`` where so many in a row came to nothing that the next ones will, too."""
        failed = 0 if self.answered else self._failed
        if self._in_a_row >= self._most or failed >= _MOST_FAILED_AT_FIRST:
            self._give_up()

    def finish(self) -> list[dict[str, Any]]:
        """What is to be written when nothing is left to ask; a ``RunError`` where nothing was ever answered."""
        if self._held and not self.answered:
            self._give_up()
        return self._release()

    def _release(self) -> list[dict[str, Any]]:
        held, self._held = self._held, []
        return held

    def _give_up(self) -> None:
        assert self._last is not None
        requests, last = counted(self._in_a_row, "request"), self._last
        known = f"{last.hint}; " if last.hint else ""
        if not self._held:
            raise RunError(
                f"{self._shown}: {requests} failed one after another, the last with: {last.error}",
                hint=f"{known}once the server is well again, the same command asks what is left",
            )
        came = "were refused" if len(self._held) == self._in_a_row else "were refused or failed"
        raise RunError(
            f"{self._shown}: {requests} {came} with no answer in between, the last with: {last.error}",
            hint=f"{known}no refusal of these is kept: once the reason is gone, the same command asks them again "
            f"(if it does mind the questions: a --concurrency above {self._most} lets more be refused in a row)",
        )
