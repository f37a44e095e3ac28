"""What containers hold: members of tar and zip archives, rows of Parquet files. Each reads one open file."""

from __future__ import annotations

import gzip
import lzma
import posixpath
import tarfile
import zipfile
import zlib
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import accumulate
from typing import IO, Any, BinaryIO, cast

import pyarrow as pa
import pyarrow.parquet as pq

from tallymill.errors import ImageError

_LINKS = 8  # links followed before a circle is assumed

_DAMAGE = (
    pa.ArrowInvalid,
    tarfile.TarError,
    zipfile.BadZipFile,
    gzip.BadGzipFile,
    EOFError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
)


@contextmanager
def naming_damage() -> Iterator[None]:
    """Make an ``ImageError`` of what damaged containers raise, and of nothing that another try may mend."""
    try:
        yield
    except _DAMAGE as error:
        raise _damaged(error) from error
    except OSError as error:
        if error.args != ("Invalid data stream",):  # bz2 has no error of its own
            raise
        raise _damaged(error) from error


def _damaged(error: Exception) -> ImageError:
    return ImageError(f"the container is damaged or of an unsupported kind ({error or type(error).__name__})")


def _plain_name(member: str) -> str:
    return member.removeprefix("./")


def _no_member(key: str, note: str = "") -> ImageError:
    return ImageError(f"not found: no member {key!r}{note}")


def _check_size(size: int, max_bytes: int) -> None:
    if size > max_bytes:
        raise ImageError(f"{size} bytes, above the limit of {max_bytes}")


class TarMembers:
    """The members of a tar file, plain or compressed, by their offset in the (decompressed) stream.

    Of a damaged archive the members before the damage can be read. Compressed formats notice damage late (gzip by its
    checksum at the end, bzip2 after a block of up to 900 kB), so the last of these may be garbled: decoding tells.
    """

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._tar = tarfile.open(fileobj=file, mode="r:*")  # noqa: SIM115
        self._places: dict[str, tuple[int, int]] = {}
        self._links: dict[str, str] = {}
        self._others: set[str] = set()
        self._damage: ImageError | None = None
        try:
            with naming_damage():
                self._index()
        except ImageError as error:  # what lies before the damage can be read
            self._damage = error
            self._rewind()

    def _index(self) -> None:
        members = self._tar.members  # type: ignore[attr-defined]  # public, but not in the stubs
        while (member := self._tar.next()) is not None:
            members.clear()  # else the archive keeps a kilobyte for each
            self._add(member)
        # tarfile takes a header that it cannot read for the end, unless it is the first.
        self._stream.seek(self._tar.offset)
        if any(self._stream.read(tarfile.BLOCKSIZE)):
            raise tarfile.ReadError(f"no header at byte {self._tar.offset}")

    @property
    def _stream(self) -> IO[bytes]:
        return cast(IO[bytes], self._tar.fileobj)

    def _rewind(self) -> None:
        """Start to decompress anew: after an error, the stream may be in no known state."""
        self._tar.close()
        self._file.seek(0)
        self._tar = tarfile.open(fileobj=self._file, mode="r:*")  # noqa: SIM115

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
            raise _no_member(key, f"; {self._damage}, perhaps cut short" if self._damage else "")
        offset, size = self._places[name]
        _check_size(size, max_bytes)
        try:
            with naming_damage():
                self._stream.seek(offset)
                data = self._stream.read(size)
        except ImageError as error:
            # The index stays: to make it again is to decompress the archive again.
            self._damage = self._damage or error
            self._rewind()
            raise
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
        with naming_damage():  # here, so that one bad member does not close the archive
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
        self._bad: dict[int, str] = {}

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
            self._load(group)
        value = self._values[row - self._starts[group]].as_py()
        if isinstance(value, dict):
            value = value["bytes"] if value["bytes"] is not None else value.get("path")
        if value is None:
            raise ImageError(f"the column {self._column!r} is empty in this row")
        _check_size(len(value), max_bytes)
        return value if isinstance(value, bytes | str) else bytes(value)

    def _load(self, group: int) -> None:
        if group in self._bad:  # read once, not once for each of its rows
            raise ImageError(self._bad[group])
        self._group, self._values = -1, None  # free the old one first
        try:
            with naming_damage():
                values = self._parquet.read_row_group(group, columns=[self._column]).column(self._column)
            declared = self._starts[group + 1] - self._starts[group]
            if len(values) != declared:
                raise ImageError(f"the container is damaged (row group {group} has {len(values)} rows, not {declared})")
        except ImageError as error:
            self._bad[group] = error.message
            raise
        self._group, self._values = group, values

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
