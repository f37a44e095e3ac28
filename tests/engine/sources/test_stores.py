"""Images of other stores, through fsspec."""

import sys
from typing import Any, ClassVar

import fsspec
import pytest

from tallymill.engine.sources.reader import ImageReader
from tallymill.errors import ImageError, MissingExtraError


def test_stores_of_fsspec(pictures, tar_bytes, reader):
    store = fsspec.filesystem("memory")
    store.pipe({"/bucket/a b#[1].jpg": b"here", "/bucket/a.tar": tar_bytes(pictures)})
    try:
        assert reader.read("memory://bucket/a b#[1].jpg") == b"here"
        assert reader.read("memory://bucket/a.tar#07.png") == pictures["07.png"]
        with pytest.raises(ImageError, match=r"memory://bucket/none\.jpg: not found"):
            reader.read("memory://bucket/none.jpg")
        reason = "4 bytes, above the limit of 3"
        with ImageReader("memory://bucket", max_bytes=3) as small, pytest.raises(ImageError, match=reason):
            small.read("a b#[1].jpg")
    finally:
        store.rm("/bucket", recursive=True)


class Sized(fsspec.AbstractFileSystem):
    """A store of one file, that tells its size or does not; ``asked`` is what was read of it."""

    protocol = "sized"
    content, size = b"0123456789", 10
    asked: ClassVar[list[Any]] = []

    def info(self, path, **_):
        if self.size is NotImplementedError:
            raise NotImplementedError
        return {"name": path, "type": "file", "size": self.size}

    def cat_file(self, _path, start=None, end=None, **_):
        self.asked.append((start, end))
        return self.content[start:end]


@pytest.mark.parametrize(
    ("size", "limit", "asked", "reason"),
    [
        (10, 9, [], "10 bytes, above the limit of 9"),
        (10, 10, [(None, None)], None),
        (3, 9, [(None, None)], "10 bytes, above the limit of 9"),  # it grew meanwhile
        (None, 9, [(0, 10)], "more than the limit of 9 bytes"),
        (None, 10, [(0, 11)], None),
        (NotImplementedError, 9, [(0, 10)], "more than the limit of 9 bytes"),
    ],
)
def test_a_store_is_asked_for_the_size_before_the_file(monkeypatch, size, limit, asked, reason):
    fsspec.register_implementation("sized", Sized, clobber=True)
    monkeypatch.setattr(Sized, "size", size)
    monkeypatch.setattr(Sized, "asked", [])
    with ImageReader(None, max_bytes=limit, sleep=lambda _: None) as reader:
        if reason is None:
            assert reader.read("sized://bucket/x.jpg") == Sized.content
        else:
            with pytest.raises(ImageError, match=reason):
                reader.read("sized://bucket/x.jpg")
    assert Sized.asked == asked


class Refusing(fsspec.AbstractFileSystem):
    """A store whose library has errors of its own."""

    protocol = "refusing"

    class NoCredentialsError(Exception):
        pass

    def cat_file(self, path, **_):
        raise {"denied": PermissionError, "folder": IsADirectoryError}.get(
            path.split("/")[-1], self.NoCredentialsError
        )("no")


def test_the_errors_of_a_store_become_image_errors():
    fsspec.register_implementation("refusing", Refusing, clobber=True)
    with ImageReader(None, retries=1, sleep=lambda _: None) as reader:
        for name, reason in {"denied": "not allowed", "folder": "is a folder", "x": "NoCredentialsError: no"}.items():
            with pytest.raises(ImageError, match=reason):
                reader.read(f"refusing://{name}")


def test_a_store_whose_package_is_missing_names_it(reader, monkeypatch):
    monkeypatch.setitem(sys.modules, "s3fs", None)
    monkeypatch.delitem(sys.modules["fsspec.registry"]._registry, "s3", raising=False)
    for read in (reader.read, lambda ref: reader.read_many([ref, ref])):
        with pytest.raises(MissingExtraError, match="s3fs") as caught:
            read("s3://bucket/x.jpg")
        assert caught.value.hint == "pip install s3fs"
