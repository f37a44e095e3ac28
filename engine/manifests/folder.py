"""A folder of images, with or without a metadata file in it."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa

from tallymill.engine.manifests.base import BATCH_ROWS, Faults, RawBatch, Reader
from tallymill.engine.manifests.hashing import UInt64s, hash64
from tallymill.engine.manifests.text_files import CsvReader, jsonl_reader
from tallymill.errors import ManifestError

# fmt: off
IMAGE_EXTENSIONS = frozenset({
    ".apng", ".avif", ".bmp", ".dib", ".gif", ".heic", ".heif", ".j2k", ".jfif", ".jp2", ".jpe", ".jpeg", ".jpg",
    ".mpo", ".pbm", ".pgm", ".png", ".pnm", ".ppm", ".tga", ".tif", ".tiff", ".webp",
})
# fmt: on
METADATA_NAMES = ("metadata.jsonl", "metadata.csv")
_RENAME = {"file_name": "image"}


def is_image_name(name: str) -> bool:
    """Whether a file's name (no folders) is that of an image; hidden ones, ``._x.jpg`` too, are none."""
    return not name.startswith(".") and posixpath.splitext(name)[1].lower() in IMAGE_EXTENSIONS


class PlainFolderReader:
    """Every image of a folder, in order of its path; the targets come from outside."""

    def __init__(self, root: Path) -> None:
        self.name = root.name
        self._root = root
        self.schema = pa.schema([("image", pa.string())])

    def batches(self, faults: Faults) -> Iterator[RawBatch]:
        """Yield the images found."""
        names, first = walk_images(self._root, faults), 1
        while chunk := list(islice(names, BATCH_ROWS)):
            data = pa.RecordBatch.from_arrays([pa.array(chunk, pa.string())], schema=self.schema)
            yield RawBatch(data, self.name, "image", np.arange(first, first + len(chunk)))
            first += len(chunk)


class MetadataFolderReader:
    """The rows of a folder's metadata file. A row whose image is missing is kept, for it becomes an error row when
    the image is read; an image without a row is a fault, told after the last row."""

    def __init__(self, root: Path, metadata: Path) -> None:
        self.name = f"{root.name}/{metadata.name}"
        self._root = root
        rows: Reader = (
            CsvReader(metadata, self.name, _RENAME)
            if metadata.suffix == ".csv"
            else jsonl_reader(metadata, self.name, _RENAME)
        )
        if "image" not in rows.schema.names:
            raise ManifestError(
                f"{self.name}: no column file_name; the columns are {', '.join(rows.schema.names) or 'none'}",
                hint="file_name is the path of the image inside the folder",
            )
        self._rows = rows
        self.schema = rows.schema

    def batches(self, faults: Faults) -> Iterator[RawBatch]:
        """Yield the rows of the metadata file, then look for images that it does not name."""
        # Eight bytes a row: names are compared by hash, and an equal one at worst hides an unlisted image.
        listed: list[UInt64s] = []
        for raw in self._rows.batches(faults):
            names = [posixpath.normpath(name) if name else "" for name in raw.data.column("image").to_pylist()]
            listed.append(hash64(pa.array(names, pa.string())))
            yield raw
        known = np.sort(np.concatenate([*listed, np.zeros(0, np.uint64)]))
        images = walk_images(self._root, faults)
        while chunk := list(islice(images, BATCH_ROWS)):
            hashes = hash64(pa.array(chunk, pa.string()))
            at = np.searchsorted(known, hashes)
            found = (
                np.zeros(len(chunk), np.bool_) if not len(known) else known[np.minimum(at, len(known) - 1)] == hashes
            )
            for row in np.flatnonzero(~found):
                faults.add(f"{self._root.name}/{chunk[row]}", f"not in {self.name}; add a row for it or move it away")


def metadata_file(root: Path) -> Path | None:
    """The metadata file of a folder, if it has one; two are an error."""
    found = [root / name for name in METADATA_NAMES if (root / name).is_file()]
    if len(found) > 1:
        raise ManifestError(f"{root.name}: both {' and '.join(METADATA_NAMES)}", hint="keep one of them")
    return found[0] if found else None


def walk_images(root: Path, faults: Faults) -> Iterator[str]:
    """Paths of images below a folder, relative to it with ``/``, in order of the whole path.

    Links to folders are followed when they lead out of the tree, each folder once; links into the tree or to one of
    its parents are not, so that loops end. Hidden folders are left out. One folder's names are in memory at a time.
    """
    real = os.path.realpath(root)
    yield from _walk(str(root), "", real, {real}, faults)


def _walk(folder: str, prefix: str, root: str, visited: set[str], faults: Faults) -> Iterator[str]:
    try:
        with os.scandir(folder) as found:
            entries = [(entry.name, entry.is_dir(), entry.is_symlink()) for entry in found if entry.name[0] != "."]
    except OSError as error:
        faults.add(prefix or folder, f"cannot be listed: {error.strerror}")
        return
    # A folder sorts as its children do, "name/...": the order is that of the whole paths.
    for name, is_folder, is_link in sorted(entries, key=lambda entry: entry[0] + "/" * entry[1]):
        path = f"{folder}/{name}"
        if is_folder:
            if is_link and not _leads_out(os.path.realpath(path), root, visited):
                continue
            yield from _walk(path, f"{prefix}{name}/", root, visited, faults)
        elif is_image_name(name):
            if any("\ud800" <= character <= "\udfff" for character in prefix + name):
                faults.add(repr(prefix + name), "the file's name is not UTF-8")
            else:
                yield prefix + name


def _leads_out(target: str, root: str, visited: set[str]) -> bool:
    inside = target == root or target.startswith(root.rstrip("/") + "/")
    around = root.startswith(target.rstrip("/") + "/")
    if inside or around or target in visited:
        return False
    visited.add(target)
    return True
