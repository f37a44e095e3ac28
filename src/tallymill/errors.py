"""The errors that tallymill raises for a user to act on. Everything else is a defect of ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class TallymillError(Exception):
    """Something the user can mend.

    The message names the file, row and value; ``hint`` says what to do; ``retryable`` is true when the same call
    may succeed later (a server that was busy, say).
    """

    def __init__(self, message: str, *, hint: str | None = None, retryable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.retryable = retryable

    def __str__(self) -> str:
        """The message and, on a line of its own, what to do."""
        return f"{self.message}\n  {self.hint}" if self.hint else self.message

    def __reduce__(self) -> tuple[object, ...]:
        # The default reduction drops keyword arguments, and these errors cross process boundaries.
        return _rebuild, (type(self), self.message, self.hint, self.retryable)


def _rebuild(kind: type[TallymillError], message: str, hint: str | None, retryable: bool) -> TallymillError:
    return kind(message, hint=hint, retryable=retryable)


class UsageError(TallymillError):
    """A flag, argument or setting that makes no sense as given (exit code 2)."""


class ManifestError(TallymillError):
    """A manifest or prompt file with faults; the message lists them by file, line and column."""


class ImageError(TallymillError):
    """One image that cannot be read; it becomes an error row and never ends a shard."""


class ModelError(TallymillError):
    """A model that cannot be fetched, converted, checked or run."""


class DeviceError(TallymillError):
    """A card that failed, or memory that ran out, while a model ran: it is no image's fault, and so ends the work
    instead of a row.
    """


class OpenError(TallymillError):
    """A part of a model that cannot be opened in the middle of work: as with a card that fails, no image's fault."""


class RunError(TallymillError):
    """A RUN folder that cannot be continued or read as asked."""


class OutputError(TallymillError):
    """A file or folder that cannot be written: no permission, no room, a name that does not fit."""


class MissingExtraError(TallymillError):
    """An optional package that is not installed; the hint names the extra that brings it."""

    @classmethod
    def of(cls, package: str, extra: str) -> MissingExtraError:
        """Name the package that is missing and the extra that installs it."""
        return cls(f"the package {package!r} is not installed", hint=f"pip install 'tallymill[{extra}]'")

    @classmethod
    @contextmanager
    def unless(cls, *packages: str, extra: str) -> Iterator[None]:
        """Put around the import of optional packages; another import that fails is not ours to explain."""
        try:
            yield
        except ModuleNotFoundError as exc:
            package = (exc.name or "").partition(".")[0]
            if package not in packages:
                raise
            raise cls.of(package, extra) from None
