"""Files that appear whole or not at all: temporary name, fsync, rename."""

from __future__ import annotations

import json
import math
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tallymill import __version__
from tallymill.errors import UsageError


@contextmanager
def appearing(path: Path, *, sync_folder: bool = True) -> Iterator[Path]:
    """Give a temporary path beside ``path`` to write to; on success it is synced and renamed, otherwise removed.

    Without ``sync_folder`` the name may be lost in a power failure, the content under the name never. A file system
    with a journal keeps renames in order, so of several files only the last one needs its folder synced.
    """
    if path.exists() and not path.is_file():  # a rename would put a plain file in the place of a device
        raise UsageError(f"{path} is no regular file", hint="name a file to write")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        yield temporary
        _sync(temporary)
        temporary.replace(path)
        if sync_folder:
            _sync(path.parent)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def made_for(path: Path) -> Iterator[None]:
    """A folder that is made in here goes again when nothing came of it."""
    existed = path.exists()
    try:
        yield
    except BaseException:
        if not existed:
            with suppress(OSError):  # it is not empty, or was never made
                path.rmdir()
        raise


def write_json(path: Path, value: Any) -> None:
    """Write JSON that appears whole or not at all."""
    with appearing(path) as temporary:
        temporary.write_bytes(encoded(_document(value)))


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
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        temporary.write_bytes(encoded(_document(value)))
        _sync(temporary)
        _name_first(temporary, path)
        _sync(path.parent)
    except FileExistsError:
        return False
    finally:
        temporary.unlink(missing_ok=True)
    return True


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


def _name_first(temporary: Path, path: Path) -> None:
    """Give a file its name unless the name is taken (``FileExistsError``), where a rename would replace."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links: two processes could both come through here
        if path.exists():
            raise FileExistsError(path) from None
        temporary.replace(path)


def _document(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def _temporary(path: Path) -> Path:
    return path.with_name(f".{path.name}.{socket.gethostname()}-{os.getpid()}.tmp")


def remove_leftovers(folder: Path) -> None:
    """Remove temporary files of processes of this machine that are no longer there (they were killed)."""
    prefix = f".{socket.gethostname()}-"
    for file in folder.rglob(".*.tmp"):
        _, found, owner = file.name.removesuffix(".tmp").rpartition(prefix)
        if found and owner.isdecimal() and not _runs(owner):
            file.unlink(missing_ok=True)


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
