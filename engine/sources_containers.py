"""Files inside other files: members of tar and zip archives, rows of Parquet files."""

from __future__ import annotations

import gzip
import lzma
import posixpath
import tarfile
import threading
import zipfile
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import Any, BinaryIO, Protocol

import pyarrow as pa
import pyarrow.parquet as pq

from tallymill.errors import ImageError

_TAR = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
_ZIP = (".zip",)
_PARQUET = (".parquet",)
_OPEN = 8  # containers kept open
_LINKS = 8  # links followed before a circle is assumed

_DAMAGE = (
    tarfile.TarError,
    zipfile.BadZipFile,
    EOFError,
    NotImplementedError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
)


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
                if slot.container is None:
                    slot.container = _open_container(path, self._open_file(path))
                yield slot.container
                done = True
            except ImageError:
                done = slot.container is not None
                raise
            except _DAMAGE as error:
                raise ImageError(f"the container is damaged or of an unsupported kind ({error})") from error
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


def _plain_name(member: str) -> str:
    return member.removeprefix("./")


def _no_member(key: str, note: str = "") -> ImageError:
    return ImageError(f"not found: no member {key!r}{note}")


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise ImageError(f"{size} bytes, above the limit of {max_bytes}")


class TarMembers:
    """The members of a tar file, plain or compressed, by their offset in the (decompressed) stream."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._tar = tarfile.open(fileobj=file, mode="r:*")  # noqa: SIM115
        self._places: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        self._others: set[str] = set()
        self._faulty = False
        self._index()

    def _index(self) -> None:
        members = self._tar.members  # type: ignore[attr-defined]  # public, but not in the stubs
        try:
            while (member := self._tar.next()) is not None:
                members.clear()  # else the archive keeps a kilobyte for each
                self._add(member)
        except (tarfile.ReadError, EOFError, gzip.BadGzipFile, lzma.LZMAError):
            # What lies before the fault can be read.
            self._faulty = True

    def _add(self, member: tarfile.TarInfo) -> None:
        name = _plain_name(member.name)
        for table in (self._places, self._links, self._others):
            table.pop(name, None) if isinstance(table, dict) else table.discard(name)
        if member.issym():
            self._links[name] = posixpath.normpath(posixpath.join(posixpath.dirname(name), member.linkname))
        elif member.islnk():
            self._links[name] = _plain_name(member.linkname)
        elif member.isreg() and not member.issparse():
            self._places[name] = (member.offset_data, member.size)
        else:
            self._others.add(name)

    def read(self, key: str, max_bytes: int) -> bytes:
        """The bytes of the member ``key``, with or without ``./`` before it."""
        name = _plain_name(key)
        for _ in range(_LINKS):
            name = self._links.get(name, name)
        if name in self._others:
            raise ImageError("is a folder or no regular file")
        if name not in self._places:
            raise _no_member(key, "; the archive is cut short or damaged" if self._faulty else "")
        offset, size = self._places[name]
        _check_size(size, max_bytes)
        stream = self._tar.fileobj
        assert stream is not None
        stream.seek(offset)
        data = stream.read(size)
        if len(data) < size:
            raise ImageError(f"the archive is cut short inside the member {key!r}")
        return data

    def close(self) -> None:
        """Close the archive."""
        self._tar.close()
        self._file.close()


class ZipMembers:
    """The members of a zip file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._zip = zipfile.ZipFile(file)
        self._members = {_plain_name(member.filename): member for member in self._zip.infolist()}

    def read(self, key: str, max_bytes: int) -> bytes:
        """The bytes of the member ``key``, with or without ``./`` before it."""
        name = _plain_name(key)
        if name not in self._members:
            if name.rstrip("/") + "/" in self._members:
                raise ImageError("is a folder")
            raise _no_member(key)
        member = self._members[name]
        if member.is_dir():
            raise ImageError("is a folder")
        _check_size(member.file_size, max_bytes)
        return self._zip.read(member)

    def close(self) -> None:
        """Close the archive."""
        self._zip.close()
        self._file.close()


class ParquetRows:
    """The images of a Parquet file: its column ``image``, or else the only column that holds bytes.

    Values are binary, or a struct of ``bytes`` and ``path`` as Hugging Face data sets have it. The row group read last
    is kept, so that rows in order are read once; a row group is held in memory whole.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._parquet = pq.ParquetFile(file)
        self._column = _image_column(self._parquet.schema_arrow)
        metadata = self._parquet.metadata
        self._starts = [0, *accumulate(metadata.row_group(g).num_rows for g in range(metadata.num_row_groups))]
        self._group = -1
        self._values: Any = None

    def read(self, key: str, max_bytes: int) -> bytes | str:
        """The image of the row that ``key`` names: ``row=N``, counted from 0."""
        name, _, digits = key.partition("=")
        if name != "row" or not (digits.isascii() and digits.isdigit()):
            raise ImageError("a row of a Parquet file is named as #row=N, N counted from 0")
        row = int(digits)
        if row >= self._starts[-1]:
            raise ImageError(f"not found: the file has {self._starts[-1]} rows, counted from 0")
        group = bisect_right(self._starts, row) - 1
        if group != self._group:
            self._group, self._values = -1, None  # free the old one first
            self._values = self._parquet.read_row_group(group, columns=[self._column]).column(self._column)
            self._group = group
        value = self._values[row - self._starts[group]].as_py()
        if isinstance(value, dict):
            value = value["bytes"] if value["bytes"] is not None else value.get("path")
        if value is None:
            raise ImageError(f"the column {self._column!r} is empty in this row")
        _check_size(len(value), max_bytes)
        return value if isinstance(value, bytes | str) else bytes(value)

    def close(self) -> None:
        """Close the file."""
        self._values = None
        self._parquet.close()
        self._file.close()


def _image_column(schema: pa.Schema) -> str:
    names = [field.name for field in schema if _holds_bytes(field.type)]
    if "image" in names:
        return "image"
    if len(names) == 1:
        return str(names[0])
    raise ImageError(
        f"no column 'image' of bytes (or of a struct with bytes) among {', '.join(schema.names) or 'no columns'}"
    )


def _holds_bytes(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        place = kind.get_field_index("bytes")
        # Where all images are named by path, the bytes may have the type of nothing but nulls.
        return place >= 0 and (pa.types.is_null(kind.field(place).type) or _holds_bytes(kind.field(place).type))
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))
