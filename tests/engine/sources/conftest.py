"""A reader, and archives to be read."""

from __future__ import annotations

import io
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tallymill.engine.sources.reader import ImageReader


def write_tar(members: Mapping[str, bytes], mode: str = "w") -> bytes:
    """The bytes of a tar of these members; ``mode`` is that of tarfile, ``w:gz`` for one."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def write_zip(members: Mapping[str, bytes]) -> bytes:
    """The bytes of a zip of these members."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return buffer.getvalue()


def write_archive(name: str, members: Mapping[str, bytes]) -> bytes:
    """The bytes of the kind of archive that ``name`` tells."""
    kind = name.rpartition(".")[2].lower()
    return (
        write_zip(members) if kind == "zip" else write_tar(members, {"tar": "w", "tgz": "w:gz"}.get(kind, f"w:{kind}"))
    )


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[ImageReader]:
    with ImageReader(str(tmp_path), sleep=lambda _: None) as made:
        yield made


@pytest.fixture(scope="session")
def pictures() -> dict[str, bytes]:
    """Members of an archive."""
    return {f"{n:02}.png": bytes([n]) * (1000 + n) for n in range(30)}


@pytest.fixture(scope="session")
def tar_bytes() -> Callable[..., bytes]:
    return write_tar


@pytest.fixture(scope="session")
def zip_bytes() -> Callable[[Mapping[str, bytes]], bytes]:
    return write_zip


@pytest.fixture(scope="session")
def archive_bytes() -> Callable[[str, Mapping[str, bytes]], bytes]:
    return write_archive
