"""What hinders a file from being written, in words that say what to do."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tallymill.errors import OutputError

_ROOM = "make room there, or choose another place; then run the same command again"
_ALLOWED = "choose a place that you may write to, or change its permissions"
# What to do about faults of a place; any other error is not of the place, or nobody knows what to do about it.
_HINTS = {
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EFBIG: "files may not become so large here: raise the limit (ulimit -f), or choose another place",
    errno.EACCES: _ALLOWED,
    errno.EPERM: _ALLOWED,
    errno.EROFS: "choose a place that can be written",
    errno.ENOTDIR: "a part of this path is a file and no folder: choose another place",
    errno.ENAMETOOLONG: "choose a shorter name",
    errno.ENOENT: "no folder can be made there: choose another place",
    errno.EEXIST: "a part of this path is a file and no folder: choose another place",
    errno.ELOOP: "its symbolic links lead in a circle: choose another place",
    errno.EISDIR: "choose another name",
    errno.EIO: "the disk or the network fails: choose another place",
    errno.ESTALE: "the network's folder is gone: choose another place",
}
# Arrow's errors name no file. What keeps a file from being opened is then of another one: ours are open before.
_WITHOUT_NAME = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.ESTALE)
_RETRYABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)


@contextmanager
def naming_output(path: Path, *names: Path) -> Iterator[None]:
    """An ``OSError`` inside that comes of writing ``path`` is an ``OutputError`` that names it.

    ``names`` are other names that the same file has meanwhile. An error that names any other file is left alone.
    """
    try:
        yield
    except OSError as exc:
        own = {os.fspath(name) for name in (path, *path.parents, *names)}
        if exc.filename is None:
            ours = exc.errno in _WITHOUT_NAME
        else:
            ours = exc.errno in _HINTS and os.fsdecode(exc.filename) in own
        if not ours or exc.errno is None:
            raise
        raise OutputError(
            f"{path} cannot be written: {os.strerror(exc.errno)}",
            hint=_HINTS[exc.errno],
            retryable=exc.errno in _RETRYABLE,
        ) from exc


def told(exc: OSError) -> str:
    """An error of the system in words, without its number."""
    if exc.strerror is None:
        return str(exc)
    return exc.strerror if exc.filename is None else f"{os.fsdecode(exc.filename)}: {exc.strerror}"
