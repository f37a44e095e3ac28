"""Which reasoning effort the server takes: the strongest that it does not refuse."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tallymill.engine.physcount.run_files import ANSWERED, REFUSED
from tallymill.runners.physcount.plan import AUTO
from tallymill.runners.physcount.replies import Outcome

STRONGEST_FIRST: tuple[str | None, ...] = ("xhigh", "high", None)
_FIELD = re.compile(r"reasoning[._ ]?effort", re.IGNORECASE)


class Effort:
    """The reasoning effort that is sent; None sends none. Once an answer has come it stays what it is.

    ``effort`` is "auto", or what is known to be right.
    """

    def __init__(self, effort: str | None) -> None:
        self._left = list(STRONGEST_FIRST) if effort == AUTO else [effort]
        self.settled = effort != AUTO

    @property
    def current(self) -> str | None:
        """What to send."""
        return self._left[0]

    def ask_again(self, sent: str | None, outcome: Outcome) -> bool:
        """Whether an outcome is void because of the effort that was ``sent``: it was refused, or is another by now."""
        if outcome.kind == ANSWERED:
            if sent != self.current:
                return True
            self.settled = True
            return False
        if outcome.kind != REFUSED or self.settled or not _FIELD.search(outcome.error or ""):
            return False
        if sent == self.current and len(self._left) > 1:
            self._left.pop(0)
            return True
        return sent != self.current


def named_in(error: str | None, fields: Iterable[str]) -> str | None:
    """The first of the fields of a request that an error names."""
    return next((name for name in fields if name in (error or "")), None)
