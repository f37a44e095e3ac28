"""A tar or zip archive in which an image and its fields share a name: ``22.05.png`` beside ``22.05.json``."""

from __future__ import annotations

import posixpath
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from itertools import groupby, islice
from pathlib import Path
from typing import Any

import pyarrow as pa

from tallymill.engine.manifests.base import BATCH_ROWS, Faults
from tallymill.engine.manifests.folder import is_image_name
from tallymill.engine.manifests.json_text import load_json
from tallymill.engine.manifests.rows import DictReader, Row
from tallymill.engine.manifests.text_files import as_object
from tallymill.errors import ManifestError

_FIELDS = (".json", ".txt")
# ``stored`` is the name as the archive has it, ``at`` and ``size`` say where a tar member's bytes are.
_INDEX = pa.schema(
    [("key", pa.string()), ("name", pa.string()), ("stored", pa.string()), ("at", pa.int64()), ("size", pa.int64())]
)
Member = dict[str, Any]


def archive_reader(path: Path) -> DictReader:
    """A reader of an archive's items in order of their keys.

    The key is the member's name without its last extension; members of one key may stand anywhere in the archive. A
    ``.json`` member has the fields of a row, a ``.txt`` member the prompt. ``image`` is ``ARCHIVE#MEMBER`` (without
    a leading ``./``) and ``item_id`` is the key unless the fields say otherwise. The names of all members are in
    memory, for an archive has no order that could be relied on.
    """
    return DictReader(path.name, "member", lambda faults: _rows(path, faults))


def _rows(path: Path, faults: Faults) -> Iterator[Row]:
    rows = _tar_rows if path.suffix.lower() == ".tar" else _zip_rows
    try:
        yield from rows(path, faults)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, OSError, EOFError) as error:
        raise ManifestError(f"{path.name}: not an archive that can be read: {error}") from error


def _tar_rows(path: Path, faults: Faults) -> Iterator[Row]:
    with tarfile.open(path, "r:") as archive, path.open("rb") as file:

        def read(member: Member) -> bytes:
            file.seek(member["at"])
            return file.read(member["size"])

        yield from _items(path.name, _index(_tar_members(archive, path.name, faults)), read, faults)


def _tar_members(archive: tarfile.TarFile, label: str, faults: Faults) -> Iterator[Member]:
    while (member := archive.next()) is not None:
        # The list of members grows with the archive and is of no use here.
        archive.members.clear()  # type: ignore[attr-defined]
        if member.issym() or member.islnk():
            faults.add(f"{label}, member {member.name}", "a link; pack the file itself (tar -h --hard-dereference)")
        elif member.isreg():
            yield _member(member.name, member.offset_data, member.size)


def _zip_rows(path: Path, faults: Faults) -> Iterator[Row]:
    with zipfile.ZipFile(path) as archive:
        if locked := [info.filename for info in archive.infolist() if info.flag_bits & 1]:
            raise ManifestError(f"{path.name}, member {locked[0]}: encrypted", hint="pack it without a password")
        members = (_member(info.filename, 0, info.file_size) for info in archive.infolist() if not info.is_dir())
        yield from _items(path.name, _index(members), lambda member: archive.read(member["stored"]), faults)


def _member(stored: str, at: int, size: int) -> Member:
    name = stored.removeprefix("./")
    return {"key": posixpath.splitext(name)[0], "name": name, "stored": stored, "at": at, "size": size}


def _index(members: Iterator[Member]) -> Iterator[Member]:
    """The members that matter, in order of key and name; held as Arrow columns, about 100 bytes each."""
    wanted = (member for member in members if _matters(posixpath.basename(member["name"])))
    pieces = []
    while piece := list(islice(wanted, BATCH_ROWS)):
        pieces.append(pa.RecordBatch.from_pylist(piece, _INDEX))
    table = pa.Table.from_batches(pieces, _INDEX).sort_by([("key", "ascending"), ("name", "ascending")])
    for batch in table.to_batches(BATCH_ROWS):
        yield from batch.to_pylist()


def _matters(name: str) -> bool:
    return is_image_name(name) or (name.lower().endswith(_FIELDS) and not name.startswith("."))


def _items(archive: str, members: Iterator[Member], read: Callable[[Member], bytes], faults: Faults) -> Iterator[Row]:
    for key, group in groupby(members, key=lambda member: member["key"]):
        row = _item(archive, key, list(group), read, faults)
        if row is not None:
            yield row


def _item(archive: str, key: str, members: list[Member], read: Callable[[Member], bytes], faults: Faults) -> Row | None:
    """The row of one key, or None when it has faults."""
    images = [member["name"] for member in members if is_image_name(posixpath.basename(member["name"]))]
    where = f"{archive}, member {members[-1]['name']}"
    if len(images) != 1:
        faults.add(where, f"{len(images)} images have this name" if images else "no image has this name")
        return None
    row: dict[str, Any] = {"item_id": key}
    for member in members:
        if member["name"] in images:
            continue
        where = f"{archive}, member {member['name']}"
        fields = _fields(where, member["name"], read(member), faults)
        if fields is None:
            return None
        differing = [name for name in fields if name in row and name != "item_id" and row[name] != fields[name]]
        if differing or "image" in fields:
            named = "image names the member itself: leave it out" if "image" in fields else f"another {differing[0]}"
            faults.add(where, named)
            return None
        row |= fields
    row["image"] = f"{archive}#{images[0]}"
    return images[0], row


def _fields(where: str, name: str, data: bytes, faults: Faults) -> dict[str, Any] | None:
    try:
        text = data.decode("utf-8-sig")
        return {"prompt": text.strip()} if name.lower().endswith(".txt") else as_object(load_json(text), where, faults)
    except UnicodeDecodeError as error:
        faults.add(where, f"not UTF-8 at byte {error.start}")
    except ValueError as error:
        faults.add(where, str(error))
    return None
