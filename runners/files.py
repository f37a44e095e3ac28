"""Files that appear whole or not at all: temporary name, fsync, rename."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import json
import math
import os
import secrets
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from tallymill import __version__
from tallymill.errors import UsageError
from tallymill.runners.writing import naming_output

_LONGEST_NAME = 255
# What a trial writes: a full disk may still have room for a name.
_BLOCK = 4096


@contextmanager
def appearing(path: Path, *, sync_folder: bool = True) -> Iterator[Path]:
    """Give a temporary file beside ``path`` to write to; on success it is synced and renamed, otherwise removed.

    Where ``path`` is a symbolic link, it stays one, and what it leads to is replaced. Folders that are made for a file
    go again where none came of it. Without ``sync_folder`` the name may be lost in a power failure, the content under
    the name never. A file system with a journal keeps renames in order, so of several files only the last one needs its
    folder synced.
    """
    with naming_output(path):
        target = _followed(path)
        _require_regular(target, path)
    with made_for(target.parent), _beside(target, path) as temporary:
        yield temporary
        sync(temporary)
        temporary.replace(target)
        if sync_folder:
            sync(target.parent)


@contextmanager
def appearing_together(folder: Path, names: Sequence[str], *, without: str | None = None) -> Iterator[dict[str, Path]]:
    """The same for files of one folder: none has its name before all are whole; they get them in the order given.

    A file ``without`` of the folder goes just before that.
    """
    with naming_output(folder, *(folder / name for name in names)):
        targets = {name: _followed(folder / name) for name in names}
    for target in targets.values():
        _remove_leftovers_of(target)
    with ExitStack() as stack:
        temporary = {name: stack.enter_context(_beside(target, folder)) for name, target in targets.items()}
        yield temporary
        for path in temporary.values():
            sync(path)
        for name, target in targets.items():
            _require_regular(target, folder / name)
        if without is not None:
            (folder / without).unlink(missing_ok=True)
        for name, path in temporary.items():
            path.replace(targets[name])
        sync(folder)


def require_writable(path: Path) -> None:
    """Try to write where a file or folder ``path`` will be, so that what hinders it is told before any work.

    Nothing is left behind, and no folder is made. What a process that was killed left of the same file goes. Raises
    ``OutputError``.
    """
    with naming_output(path):
        place = path if path.is_dir() else _followed(path).parent
        while not place.exists():
            _require_name(place)
            place = place.parent
        _require_name(path)
    with _beside(place / path.name, path) as trial:
        trial.write_bytes(bytes(_BLOCK))
    _remove_leftovers_of(place / path.name)


@contextmanager
def _beside(target: Path, named: Path) -> Iterator[Path]:
    """A new empty file in the folder of ``target``, which is made where it is not there; it goes in the end.

    Errors name ``named``. A lock is held as long: a file that can be locked is one that a killed process left.
    """
    temporary = _temporary(target)
    with naming_output(named, target, temporary, *temporary.parents):
        target.parent.mkdir(parents=True, exist_ok=True)
        handle = _locked(temporary)
        try:
            yield temporary
        finally:
            _remove(temporary)  # where it has not got its name
            os.close(handle)


def _locked(temporary: Path) -> int:
    while True:
        handle = os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o666)
        with suppress(OSError):  # a file system without locks: there nothing is taken for left behind
            fcntl.flock(handle, fcntl.LOCK_EX)
        if os.fstat(handle).st_nlink:
            return handle
        os.close(handle)  # before it was locked, another process took it for left behind


def _followed(path: Path) -> Path:
    """The file that a path leads to, which need not be there."""
    if not path.is_symlink():
        return path
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), os.fspath(path))
    return target


def _require_regular(target: Path, path: Path) -> None:
    if target.exists() and not target.is_file():  # a rename would put a plain file in the place of a device
        raise UsageError(f"{path} is no regular file", hint="name a file to write")


def _require_name(path: Path) -> None:
    """Known without a trial: no file system that is in use takes longer ones."""
    if len(os.fsencode(path.name)) > _LONGEST_NAME:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG), os.fspath(path))


def _remove(temporary: Path) -> None:
    with suppress(OSError):  # it is not there, or its folder is not
        temporary.unlink()


@contextmanager
def made_for(path: Path) -> Iterator[None]:
    """A folder that is made in here, and those above it, go again when nothing came of it."""
    made = [folder for folder in (path, *path.parents) if not os.path.exists(folder)]  # noqa: PTH110
    try:
        yield
    except BaseException:
        with suppress(OSError):  # it is not empty, or was never made
            for folder in made:
                folder.rmdir()
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON that appears whole or not at all."""
    with appearing(path) as temporary:
        temporary.write_bytes(encoded(json_text(value)))


def without_nan(value: Any) -> Any:
    """A value of dictionaries and sequences with null in place of NaN, which JSON does not know."""
    if isinstance(value, dict):
        return {key: without_nan(v) for key, v in value.items()}
    if isinstance(value, list | tuple):
        return [without_nan(v) for v in value]
    return None if isinstance(value, float) and math.isnan(value) else value


def encoded(text: str) -> bytes:
    """UTF-8; bytes of a file's name that are none stand as ``\\udcff``, which in JSON is what they are in Python."""
    return text.encode("utf-8", "backslashreplace")


def create_json(path: Path, value: Any) -> bool:
    """The same where there is no such file yet; False, and nothing written, when another process was first."""
    with _beside(path, path) as temporary:
        temporary.write_bytes(encoded(json_text(value)))
        sync(temporary)
        named = _name_first(temporary, path)
        sync(path.parent)
    return named


def of_version(document: Any) -> tuple[str | None, Any]:
    """The version that a JSON document says wrote it (None where it says none), and the document without that."""
    if not isinstance(document, dict):
        return None, document
    return document.get("tallymill"), {name: value for name, value in document.items() if name != "tallymill"}


def versions(writer: str | None) -> str:
    """What to add to an error where another version wrote a file than reads it."""
    if writer is None or writer == __version__:
        return ""
    return f" (tallymill {writer} wrote it, this is {__version__})"


def _name_first(temporary: Path, path: Path) -> bool:
    """Give a file its name; False where the name is taken, and a rename would replace."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links: two processes could both come through here
        if path.exists():
            return False
        temporary.replace(path)
    return True


def json_text(value: Any) -> str:
    """JSON as all files here have it."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _temporary(path: Path) -> Path:
    return path.parent / f"{_prefix(path)}{os.getpid()}-{secrets.token_hex(6)}.tmp"


def _prefix(path: Path) -> str:
    """What the names of all temporary files of ``path`` on this machine begin with."""
    name, host = path.name, socket.gethostname()
    if len(os.fsencode(name)) + len(host) > _LONGEST_NAME - 40:  # with what is added it would be too long
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return f".{name}.{host}-"


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of processes of this machine that are no longer there (they were killed)."""
    for file in folder.rglob(".*.tmp"):
        _remove_if_left(file)


def _remove_leftovers_of(path: Path) -> None:
    for file in path.parent.glob(f"{glob.escape(_prefix(path))}*.tmp"):
        _remove_if_left(file)


def _remove_if_left(file: Path) -> None:
    """By its lock: the number of a process says nothing where two containers of one name share a folder."""
    _, found, owner = file.name.removesuffix(".tmp").rpartition(f".{socket.gethostname()}-")
    if not found or not owner.partition("-")[0].isdecimal():
        return
    with suppress(OSError):  # it is gone, or being written
        handle = os.open(file, os.O_RDWR)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove(file)
        finally:
            os.close(handle)


def sync(path: Path) -> None:
    """Have what a file or folder holds on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
