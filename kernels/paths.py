"""Instruction paths: the implementations that are one source compiled for several instruction sets."""

from __future__ import annotations

from functools import cache

from tallymill.errors import UsageError
from tallymill.kernels import _native

PATHS = ("avx512", "avx2", "portable")


@cache
def supported() -> tuple[str, ...]:
    """Names of the paths that this machine can run, the best one (which ``cpu`` stands for) first."""
    return tuple(_native.paths())


def require(operation: str, chosen: str) -> None:
    """Refuse with :class:`UsageError` a path that this machine cannot run; other names pass."""
    if chosen in PATHS and chosen not in supported():
        raise UsageError(
            f"{operation}: this machine cannot run {chosen!r}", hint=f"it can run: {', '.join(supported())}"
        )
