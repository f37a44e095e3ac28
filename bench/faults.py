"""What a check found wrong, in words, so that the rest is seen too."""

from __future__ import annotations

from collections.abc import Callable


def fault_of(check: Callable[[], object]) -> str | None:
    """The first line of what a check raises, whatever that is; None where it raises nothing."""
    try:
        check()
    except Exception as error:  # a card has many ways to fail
        return str(error).strip().split("\n")[0] or type(error).__name__
    return None
