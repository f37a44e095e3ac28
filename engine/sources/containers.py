"""Files inside other files: which containers there are, and which of them are open."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import BinaryIO, Protocol

from tallymill.engine.sources.members import ParquetRows, TarMembers, ZipMembers, naming_damage
from tallymill.errors import ImageError

_TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_ZIP = (".zip",)
_PARQUET = (".parquet",)
_OPEN = 8  # containers kept open


def is_container(path: str) -> bool:
    """Whether the name ``path`` is that of a container that can be read."""
    return path.lower().endswith(_TAR + _ZIP + _PARQUET)


class Container(Protocol):
    """A file that holds images."""

    def read(self, key: str, max_bytes: int) -> bytes | str:
        """The bytes under ``key``, or the path of the file that has them. ``ImageError`` where there are none."""

    def close(self) -> None:
        """Let go of the file."""


class OpenContainers:
    """The containers used last stay open; the one used longest ago is closed when there are too many."""

    def __init__(self, open_file: Callable[[str], BinaryIO]) -> None:
        self._open_file = open_file
        self._slots: OrderedDict[str, _Slot] = OrderedDict()
        self._lock = threading.Lock()

    @contextmanager
    def borrow(self, path: str) -> Iterator[Container]:
        """The container at ``path``, for one thread at a time."""
        with self._lock:
            slot = self._slots.setdefault(path, _Slot())
            self._slots.move_to_end(path)
            surplus = [self._slots.popitem(last=False)[1] for _ in range(len(self._slots) - _OPEN)]
        for old in surplus:
            old.close()
        with slot.lock:
            done = False
            try:
                with naming_damage():
                    if slot.container is None:
                        slot.container = _open_container(path, self._open_file(path))
                    yield slot.container
                done = True
            except ImageError:
                done = slot.container is not None
                raise
            finally:
                # A slot that was dropped meanwhile ends with this use; after a failure the file is in no known state.
                with self._lock:
                    kept = done and self._slots.get(path) is slot
                if not kept:
                    slot.forget()

    def close(self) -> None:
        """Close all."""
        with self._lock:
            slots = list(self._slots.values())
            self._slots.clear()
        for slot in slots:
            slot.close()


class _Slot:
    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.container: Container | None = None

    def close(self) -> None:
        with self.lock:
            self.forget()

    def forget(self) -> None:
        if self.container is not None:
            self.container.close()
            self.container = None


def _open_container(path: str, file: BinaryIO) -> Container:
    name = path.lower()
    kind = TarMembers if name.endswith(_TAR) else ZipMembers if name.endswith(_ZIP) else ParquetRows
    opened = False
    try:
        container: Container = kind(file)
        opened = True
    finally:
        if not opened:
            file.close()
    return container
