"""Files that appear whole or not at all: temporary name, fsync, rename."""

from __future__ import annotations

import errno
import glob
import hashlib
import json
import math
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
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
    """Give a temporary path beside ``path`` to write to; on success it is synced and renamed, otherwise removed.

    Without ``sync_folder`` the name may be lost in a power failure, the content under the name never. A file system
    with a journal keeps renames in order, so of several files only the last one needs its folder synced.
    """
    if path.exists() and not path.is_file():  # a rename would put a plain file in the place of a device
        raise UsageError(f"{path} is no regular file", hint="name a file to write")
    temporary = _temporary(path)
    try:
        with naming_output(path, temporary):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            _sync(temporary)
            temporary.replace(path)
            if sync_folder:
                _sync(path.parent)
    finally:
        _remove(temporary)


@contextmanager
def appearing_together(folder: Path, names: Sequence[str]) -> Iterator[dict[str, Path]]:
    """The same for files of one folder: none has its name before all are whole; they get them in the order given."""
    temporary = {name: _temporary(folder / name) for name in names}
    try:
        with naming_output(folder, *temporary.values()):
            folder.mkdir(parents=True, exist_ok=True)
            for path in temporary.values():
                _remove_leftovers_of(path)
            yield temporary
            for path in temporary.values():
                _sync(path)
            for name, path in temporary.items():
                path.replace(folder / name)
            _sync(folder)
    finally:
        for path in temporary.values():
            _remove(path)


def require_writable(path: Path) -> None:
    """Try to write where a file or folder ``path`` will be, so that what hinders it is told before any work.

    Nothing is left behind, and no folder is made. What a process that was killed left of the same file goes. Raises
    ``OutputError``.
    """
    place = path if path.is_dir() else path.parent
    with naming_output(path, path, *path.parents):
        while not place.exists():
            _require_name(place.name)
            place = place.parent
        _require_name(path.name)
    trial = _temporary(place / path.name)
    try:
        with naming_output(path, trial):
            trial.write_bytes(bytes(_BLOCK))
    finally:
        _remove(trial)
    _remove_leftovers_of(trial)


def _remove_leftovers_of(temporary: Path) -> None:
    for file in temporary.parent.glob(f"{glob.escape(temporary.name.rpartition('-')[0])}-*.tmp"):
        _remove_if_left(file)


def _require_name(name: str) -> None:
    """Known without a trial: no file system that is in use takes longer ones."""
    if len(os.fsencode(name)) > _LONGEST_NAME:
        raise OSError(errno.ENAMETOOLONG, os.strerror(errno.ENAMETOOLONG))


def _remove(temporary: Path) -> None:
    with suppress(OSError):  # it is not there, or its folder is not
        temporary.unlink()


@contextmanager
def made_for(path: Path) -> Iterator[None]:
    """A folder that is made in here, and those above it, go again when nothing came of it."""
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
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
    temporary = _temporary(path)
    try:
        with naming_output(path, temporary):
            path.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(encoded(json_text(value)))
            _sync(temporary)
            named = _name_first(temporary, path)
            _sync(path.parent)
    finally:
        _remove(temporary)
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
    name, host = path.name, socket.gethostname()
    if len(os.fsencode(name)) + len(host) > _LONGEST_NAME - 40:  # with what is added it would be too long
        name = hashlib.sha256(os.fsencode(name)).hexdigest()
    return path.parent / f".{name}.{host}-{os.getpid()}.tmp"


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of processes of this machine that are no longer there (they were killed)."""
    for file in folder.rglob(".*.tmp"):
        _remove_if_left(file)


def _remove_if_left(file: Path) -> None:
    _, found, owner = file.name.removesuffix(".tmp").rpartition(f".{socket.gethostname()}-")
    if found and owner.isdecimal() and not _runs(owner):
        _remove(file)


def _runs(process: str) -> bool:
    """Whether a process is alive. One that was killed stays in the table until its parent asks for its status."""
    try:
        status = Path("/proc", process, "stat").read_text("utf-8", "replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return status.rpartition(") ")[2][0] not in "ZX"


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
