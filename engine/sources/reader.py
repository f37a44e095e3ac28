"""From an image reference to the bytes of the file that it names.

A reference is, in this order: a local file, taken literally whatever its name holds; a member of an archive or a row of
a Parquet file (``shard.tar#cat.jpg``, ``photos.zip#a/b.png``, ``part.parquet#row=17``), local or remote; a URL that
fsspec reads (http, https, s3, gs, hf, memory and so on). ``file://`` URLs are local files.
"""

from __future__ import annotations

import hashlib
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import BinaryIO
from urllib.parse import unquote

from tallymill.engine.sources.containers import OpenContainers, is_container
from tallymill.engine.sources.remote import RemoteFiles, is_remote
from tallymill.errors import ImageError

MAX_BYTES = 1 << 30
_THREADS = 16  # a remote read waits far more than it works


def image_hash(data: bytes) -> str:
    """The first 32 hexadecimal digits of the SHA-256 of a file's bytes: equal for equal files, whatever their name."""
    return hashlib.sha256(data).hexdigest()[:32]


class ImageReader:
    """Reads image references; safe to share between threads, not between processes.

    Archives are indexed once and a few stay open, so that reading their members in order costs one pass. Out of order
    is as cheap for ``.tar`` and ``.zip``, but not for a compressed tar: to go back is to decompress from its start.

    Args:
        root: the folder (or URL) that relative references start from; None is the current folder.
        retries: further tries of a remote read that failed in a way that may pass.
        max_bytes: a file, member or value above this size is refused.
        timeout: seconds that one try over HTTP may take.
        sleep: waits between tries; tests put their own in.
    """

    def __init__(
        self,
        root: str | None,
        *,
        retries: int = 3,
        max_bytes: int = MAX_BYTES,
        timeout: float = 30.0,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._root = root if root is not None and is_remote(root) else str(_absolute(root or ""))
        self._max_bytes = max_bytes
        self._remote = RemoteFiles(retries=retries, max_bytes=max_bytes, timeout=timeout, sleep=sleep)
        self._containers = OpenContainers(self._open)
        self._pool: ThreadPoolExecutor | None = None
        self._pool_lock = threading.Lock()

    def read(self, ref: str) -> bytes:
        """The bytes that ``ref`` names. An empty file is no error here: ``decode`` says that it is empty.

        Raises:
            ImageError: it cannot be read; the message is the reference and the reason.
            MissingExtraError: a URL of a kind whose package is not installed.
        """
        try:
            return self._read(ref)
        except ImageError as error:
            raise ImageError(f"{_shown(ref)}: {error}", hint=error.hint, retryable=error.retryable) from error
        except (OSError, ValueError) as error:
            raise ImageError(f"{_shown(ref)}: {_reason(error)}") from error

    def read_many(self, refs: Sequence[str]) -> list[bytes | ImageError]:
        """As ``read`` for each reference, in order; an error takes the place of the bytes that could not be read.

        Threads are used only where a reference is remote: local files come faster from one.
        """
        if len(refs) > 1 and (is_remote(self._root) or any(map(is_remote, refs))):
            return list(self._threads().map(self._read_or_error, refs))
        return [self._read_or_error(ref) for ref in refs]

    def close(self) -> None:
        """Close archives and connections. The reader may be used again, and opens them anew."""
        with self._pool_lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown()
        self._containers.close()
        self._remote.close()

    def __enter__(self) -> ImageReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self, ref: str) -> bytes:
        for path in self._local_paths(ref):
            status = _status(path)
            if status is not None:
                return self._read_file(path, status)
        place = self._place(ref)
        containers = list(_splits(place))
        for container, key in containers:
            if is_remote(container) or _status(Path(container)) is not None:
                return self._read_member(container, key)
        if is_remote(place):
            return self._remote.read(place)
        raise ImageError(f"not found: no file {containers[0][0]}" if containers else "not found")

    def _read_or_error(self, ref: str) -> bytes | ImageError:
        try:
            return self.read(ref)
        except ImageError as error:
            return error

    def _place(self, ref: str) -> str:
        """The reference made absolute against the root: a local path or a URL."""
        if ref.startswith("file://"):
            return unquote(ref.removeprefix("file://"))
        if is_remote(ref):
            return ref
        if is_remote(self._root) and not Path(ref).is_absolute():
            return f"{self._root.rstrip('/')}/{ref.removeprefix('./')}"
        return str(Path(self._root, ref))

    def _local_paths(self, ref: str) -> Iterator[Path]:
        if ref.startswith("file://"):
            yield Path(ref.removeprefix("file://"))
            yield Path(self._place(ref))
        elif not is_remote(self._root) or Path(ref).is_absolute():
            # Even what looks like a URL: a file may bear such a name.
            yield Path(self._root, ref)

    def _read_file(self, path: Path, status: os.stat_result) -> bytes:
        _check_kind(status)
        if status.st_size > self._max_bytes:
            raise ImageError(f"{status.st_size} bytes, above the limit of {self._max_bytes}")
        return path.read_bytes()

    def _read_member(self, path: str, key: str) -> bytes:
        value = self._remote.again(lambda: self._value(path, key)) if is_remote(path) else self._value(path, key)
        if isinstance(value, bytes):
            return value
        # A Parquet row that names its image by a path, which starts from the Parquet file's own folder.
        folder = path.rpartition("/")[0]
        return self._read(value if is_remote(value) or value.startswith("/") else f"{folder}/{value}")

    def _value(self, path: str, key: str) -> bytes | str:
        with self._containers.borrow(path) as container:
            return container.read(key, self._max_bytes)

    def _open(self, path: str) -> BinaryIO:
        if is_remote(path):
            return self._remote.open(path)
        _check_kind(Path(path).stat())
        return Path(path).open("rb")

    def _threads(self) -> ThreadPoolExecutor:
        with self._pool_lock:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="tallymill-read")
            return self._pool


def _absolute(root: str) -> Path:
    return Path(unquote(root.removeprefix("file://")) if root.startswith("file://") else root).absolute()


def _splits(place: str) -> Iterator[tuple[str, str]]:
    """Each way to read ``place`` as a container and a key. Both may hold a # of their own."""
    at = place.find("#")
    while at >= 0:
        if is_container(place[:at]):
            yield place[:at], place[at + 1 :]
        at = place.find("#", at + 1)


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _check_kind(status: os.stat_result) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError
    if not stat.S_ISREG(status.st_mode):
        raise ImageError("not a regular file")  # a pipe or a device might never end


def _reason(error: OSError | ValueError) -> str:
    if isinstance(error, FileNotFoundError | NotADirectoryError):
        return "not found"
    if isinstance(error, IsADirectoryError):
        return "is a folder"
    if isinstance(error, PermissionError):
        return "not allowed to read it"
    return getattr(error, "strerror", None) or str(error) or type(error).__name__


def _shown(ref: str) -> str:
    return ref if len(ref) <= 300 else f"{ref[:200]}... ({len(ref)} characters)"
