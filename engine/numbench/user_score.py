"""A score that the user writes in Python, compiled with numba and called for every scored image."""

from __future__ import annotations

import hashlib
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tallymill.errors import MissingExtraError, UsageError

PARAMETERS = "(soft, hard, requested)"
MAX_TEXT = 200
_PLACE = re.compile(r'File "([^"]+)", line (\d+)')
# What stands before numba's reason.
_NOT_A_REASON = ("Failed in", "During:", "Enable logging", "- ")


class UserScore:
    """``function(soft, hard, requested) -> float`` compiled to machine code.

    The three arguments are float64 arrays with an entry a target, in the order of the request, that may not be written
    to: the soft and the hard count in objects a detector, and the count that was asked for. The result is the image's
    score: any finite number, or NaN for "no score".
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = getattr(function, "py_func", function)  # of one that is compiled already, what was written
        self.name: str = getattr(self.function, "__name__", "")
        self._loop = _compiled(self.function)

    def record(self) -> dict[str, str]:
        """What ``run.json`` says of it: its name, its file, and the file's SHA-256 (without a file, of its code)."""
        file = Path(self.function.__code__.co_filename)
        code = file.read_bytes() if file.is_file() else self.function.__code__.co_code
        return {"name": self.name, "file": str(file), "sha256": hashlib.sha256(code).hexdigest()}

    def __call__(
        self,
        soft: NDArray[np.float64],
        hard: NDArray[np.float64],
        requested: NDArray[Any],
        target_offsets: NDArray[np.int64],
        scored: NDArray[np.bool_],
    ) -> NDArray[np.float64]:
        """The score of each item, float64 [I]; NaN for items that are not ``scored`` and where the function says so.

        What the function raises, or a score that is infinite, is a ``FailedItemError`` with the place of the item.
        """
        result = np.full(len(scored), np.nan)
        at = np.zeros(1, np.int64)
        try:
            self._loop(soft, hard, requested.astype(np.float64), target_offsets, scored, result, at)
        except Exception as exc:  # the user's own code can raise anything
            raise FailedItemError(int(at[0]), f"raised {type(exc).__name__}: {exc}") from exc
        infinite = np.flatnonzero(np.isinf(result))
        if len(infinite):
            raise FailedItemError(int(infinite[0]), f"gave {result[infinite[0]]}")
        return result

    def failure(self, item: str, failed: FailedItemError) -> UsageError:
        """The error for the user, who knows the item by its id."""
        return UsageError(
            f"{_place(self.function)}: for item {item!r}: {self.name} {failed.reason}",
            hint="a score is a finite number, or float('nan') for an image that shall have none",
        )


class FailedItemError(Exception):
    """The user's function failed for the item at ``place`` of those that it was given."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(place, reason)
        self.place, self.reason = place, reason


def _compiled(function: Callable[..., Any]) -> Callable[..., None]:
    """The loop over images with the function compiled into it. Faults are a ``UsageError``."""
    with MissingExtraError.unless("numba", extra="numba"):
        import numba
        from numba.core.errors import NumbaError
    if not inspect.isfunction(function):
        raise UsageError(f"the score {function!r} is not a Python function")
    if len(inspect.signature(function).parameters) != 3:
        raise UsageError(
            f"{_place(function)}: {function.__name__}{inspect.signature(function)} must take three arrays",
            hint=f"def {function.__name__}{PARAMETERS}: soft counts, hard counts, counts requested, an entry a target",
        )
    counts = numba.types.Array(numba.float64, 1, "C", readonly=True)
    each = numba.njit(nogil=True, boundscheck=True)(function)
    try:
        each.compile((counts, counts, counts))
    except NumbaError as exc:
        raise _does_not_compile(function, str(exc)) from None
    except Exception as exc:  # numba's own defects are of all kinds
        raise _does_not_compile(function, f"{type(exc).__name__}: {exc}") from exc
    result = each.nopython_signatures[0].return_type
    if not isinstance(result, numba.types.Integer | numba.types.Float | numba.types.Boolean):
        raise UsageError(
            f"{_place(function)}: {function.__name__} gives {_short(str(result))}; a score must be a number",
            hint="let every path return a number, float('nan') where an image has no score",
        )
    return _loop_over(numba, each)


def _loop_over(numba: Any, each: Callable[..., Any]) -> Callable[..., None]:
    counts = numba.types.Array(numba.float64, 1, "C", readonly=True)
    offsets, scored = (numba.types.Array(kind, 1, "C", readonly=True) for kind in (numba.int64, numba.boolean))
    signature = numba.void(counts, counts, counts, offsets, scored, numba.float64[::1], numba.int64[::1])

    @numba.njit(signature, nogil=True)
    def loop(soft, hard, requested, offsets, scored, result, at):  # type: ignore[no-untyped-def]
        for i in range(len(scored)):
            if scored[i]:
                at[0] = i
                first, last = offsets[i], offsets[i + 1]
                result[i] = each(soft[first:last], hard[first:last], requested[first:last])

    compiled: Callable[..., None] = loop
    return compiled


def _place(function: Callable[..., Any]) -> str:
    code = function.__code__
    return f"{code.co_filename}, line {code.co_firstlineno}"


def _does_not_compile(function: Callable[..., Any], text: str) -> UsageError:
    """Of numba's long message: the innermost line of the user's file that it names, and its reason."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    file = function.__code__.co_filename
    lines = [int(line) for name, line in _PLACE.findall(text) if _same_file(name, file)]
    place = f"{file}, line {lines[-1]}" if lines else _place(function)
    return UsageError(
        f"{place}: numba cannot compile {function.__name__}: {_reason(text)}",
        hint="numbers, loops and most of NumPy compile; a function that it calls needs @numba.njit above it",
    )


def _same_file(name: str, file: str) -> bool:
    """Numba names files relative to the working folder, and shortens long paths."""
    return Path(name).name == Path(file).name


def _reason(text: str) -> str:
    """The first lines that say something, up to the first quotation of the source."""
    lines = (line.strip() for line in text.partition('\nFile "')[0].splitlines())
    reason = " ".join([line for line in lines if line and not line.startswith(_NOT_A_REASON)][:2])
    return _short(reason)


def _short(text: str) -> str:
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."
