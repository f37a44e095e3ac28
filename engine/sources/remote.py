"""Remote files through fsspec, with retries of what may pass."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar, cast

import fsspec
from fsspec.asyn import sync

from tallymill.errors import ImageError, MissingExtraError, TallymillError

T = TypeVar("T")

_CHUNK = 1 << 20
_LONGEST_WAIT = 8.0
_PASSING_STATUSES = (408, 425, 429)


def is_remote(ref: str) -> bool:
    """Whether ``ref`` has the form of a URL that is no local file's."""
    scheme, found, _ = ref.partition("://")
    return bool(found) and scheme.replace("+", "").replace("-", "").isalnum() and scheme != "file"


class RemoteFiles:
    """Reads URLs; safe to share between threads.

    A connection that breaks, a body shorter than declared, a timeout and the statuses 408, 425, 429 and 5xx are tried
    again ``retries`` times, after waits of 0.25, 0.5, 1 ... 8 seconds.
    """

    def __init__(self, *, retries: int, max_bytes: int, timeout: float, sleep: Callable[[float], None]) -> None:
        self._retries = retries
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._sleep = sleep
        self._filesystems: dict[str, Any] = {}
        self._lock = threading.Lock()

    def read(self, url: str) -> bytes:
        """All bytes of the file at ``url``.

        Raises:
            ImageError: it could not be read, with the reason (``retryable`` where it may pass).
            MissingExtraError: fsspec needs a package for this kind of URL that is not installed.
        """
        filesystem = self._filesystem(url)
        read = self._read_http if _is_http(url) else self._read_store
        return self.again(lambda: read(filesystem, url))

    def open(self, url: str) -> BinaryIO:
        """The file at ``url`` for reading at any place. What it raises is its filesystem's: see ``again``."""
        return cast(BinaryIO, self._filesystem(url).open(url, "rb"))

    def again(self, action: Callable[[], T]) -> T:
        """Do ``action``, and again where it fails in a way that may pass; all failures become ``ImageError``."""
        tries = 0
        while True:
            try:
                return _translated(action)
            except ImageError as error:
                if not error.retryable:
                    raise
                tries += 1
                if tries > self._retries:
                    raise ImageError(f"{error} (tried {tries} times)", retryable=True) from error
            self._sleep(min(0.25 * 2 ** (tries - 1), _LONGEST_WAIT))

    def close(self) -> None:
        """Let go of the connections."""
        with self._lock:
            self._filesystems.clear()

    def _read_http(self, filesystem: Any, url: str) -> bytes:
        chunks, total = [], 0
        # A size and no blocks: one request, streamed, so that an endless body can be left.
        with filesystem.open(url, "rb", block_size=0, size=1) as file:
            while chunk := file.read(_CHUNK):
                chunks.append(chunk)
                total += len(chunk)
                if total > self._max_bytes:
                    raise ImageError(f"more than the limit of {self._max_bytes} bytes")
        return b"".join(chunks)

    def _read_store(self, filesystem: Any, url: str) -> bytes:
        # A file comes whole, so its size is asked for first; without one, no more than the limit is.
        size = _size(filesystem, url)
        if size is not None:
            self._check_size(size)
            data: bytes = filesystem.cat_file(url)
            self._check_size(len(data))
            return data
        data = filesystem.cat_file(url, start=0, end=self._max_bytes + 1)
        if len(data) > self._max_bytes:
            raise ImageError(f"more than the limit of {self._max_bytes} bytes")
        return data

    def _check_size(self, size: int) -> None:
        if size > self._max_bytes:
            raise ImageError(f"{size} bytes, above the limit of {self._max_bytes}")

    def _filesystem(self, url: str) -> Any:
        scheme = url.partition("://")[0].lower()
        with self._lock:
            if scheme not in self._filesystems:
                self._filesystems[scheme] = _connect(scheme, self._timeout)
            return self._filesystems[scheme]


def _connect(scheme: str, timeout: float) -> Any:
    try:
        if scheme not in ("http", "https"):
            return fsspec.filesystem(scheme)
        import aiohttp  # only where it is needed: its import takes long

        limit = aiohttp.ClientTimeout(total=timeout)
        http = fsspec.filesystem(scheme, client_kwargs={"timeout": limit}, skip_instance_cache=True)
        # Before any thread does: fsspec lets two threads open a session each, and loses one.
        sync(http.loop, http.set_session)
        return http
    except ImportError as error:
        missing = error if isinstance(error, ModuleNotFoundError) else error.__cause__
        if not isinstance(missing, ModuleNotFoundError) or missing.name is None:
            raise
        package = missing.name.partition(".")[0]
        raise MissingExtraError(
            f"{scheme}:// needs the package {package!r}, which is not installed", hint=f"pip install {package}"
        ) from error
    except (TypeError, ValueError) as error:  # unknown, or in need of more than a URL says
        raise ImageError(f"{scheme}:// is no kind of URL that can be read") from error


def _is_http(url: str) -> bool:
    return url.lower().startswith(("http://", "https://"))


def _size(filesystem: Any, url: str) -> int | None:
    """The size of a file in bytes, or None where the store does not tell."""
    try:
        size = filesystem.info(url).get("size")
    except NotImplementedError:
        return None
    return None if size is None else int(size)


def _translated(action: Callable[[], T]) -> T:
    """Run one call of a filesystem, and make an ``ImageError`` of whatever it raises."""
    try:
        return action()
    except TallymillError:
        raise
    except FileNotFoundError as error:
        raise ImageError("not found") from error
    except IsADirectoryError as error:
        raise ImageError("is a folder") from error
    except PermissionError as error:
        raise ImageError("not allowed to read it") from error
    # Each filesystem has errors of its own (of botocore, httpx, aiohttp ...), which share no base but Exception.
    except Exception as error:
        status = getattr(error, "status", None)
        if isinstance(status, int) and status >= 300:
            passing = status >= 500 or status in _PASSING_STATUSES
            raise ImageError(f"the server answered {status}", retryable=passing) from error
        raise ImageError(_what(error), retryable=not isinstance(error, ValueError)) from error


def _what(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return "the server took too long"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
