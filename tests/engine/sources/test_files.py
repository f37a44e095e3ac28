"""Local files, whatever their names, and what is said of those that cannot be read."""

import hashlib
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallymill.engine.images import decode
from tallymill.engine.sources.reader import ImageReader, image_hash
from tallymill.errors import ImageError


@pytest.mark.parametrize(
    "name",
    [
        "img-12:30.jpg",
        "[d]/x.jpg",
        "a#b%20 é.jpg",
        "*.jpg",
        "a?b.jpg",
        "http:/host/x.jpg",
        "archive.tar#member.jpg",
        "part.parquet#row=0",
        "'quoted'; x.jpg",
        "22.05.png",
        "-rf",
        "~x.jpg",
        "line\nfeed.jpg",
    ],
)
def test_a_local_file_is_found_whatever_its_name(reader, tmp_path, name):
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"here")
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x.jpg").write_bytes(b"what a pattern would find")
    assert reader.read(name) == b"here"
    assert reader.read(str(path)) == b"here"
    assert reader.read(f"./{name}") == b"here"


def test_what_looks_like_a_url_is_a_file_where_there_is_one(reader, tmp_path):
    (tmp_path / "s3:").mkdir()
    (tmp_path / "s3:" / "x.jpg").write_bytes(b"here")
    assert reader.read("s3://x.jpg") == b"here"


def test_file_urls_are_local_files_percent_encoded_or_not(reader, tmp_path):
    (tmp_path / "a b%20.jpg").write_bytes(b"here")
    assert reader.read((tmp_path / "a b%20.jpg").as_uri()) == b"here"
    assert reader.read(f"file://{tmp_path}/a b%20.jpg") == b"here"


def test_without_a_root_references_start_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "x.jpg").write_bytes(b"here")
    monkeypatch.chdir(tmp_path)
    with ImageReader(None) as reader:
        assert reader.read("x.jpg") == b"here"


def test_the_files_of_a_relative_root(tmp_path, monkeypatch):
    (tmp_path / "root").mkdir()
    table = pa.table({"image": [{"bytes": None, "path": "x.jpg"}]})
    pq.write_table(table, tmp_path / "root" / "p.parquet")
    (tmp_path / "root" / "x.jpg").write_bytes(b"here")
    monkeypatch.chdir(tmp_path)
    with ImageReader("root") as reader:
        assert reader.read("p.parquet#row=0") == b"here"


@pytest.mark.parametrize(
    ("ref", "reason"),
    [
        ("none.jpg", "not found"),
        ("x.jpg/y.jpg", "not found"),
        ("folder", "is a folder"),
        ("", "is a folder"),
        ("pipe", "not a regular file"),
        ("a\0b", "null"),
        ("n" * 300, "too long"),
        ("none.tar#m.jpg", "not found: no file"),
        ("large.jpg", "above the limit of 100"),
        ("xyz://host/x.jpg", "xyz:// is no kind of URL"),
    ],
)
def test_what_cannot_be_read_is_an_image_error_with_reference_and_reason(tmp_path, ref, reason):
    (tmp_path / "x.jpg").write_bytes(b"here")
    (tmp_path / "large.jpg").write_bytes(bytes(101))
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    with ImageReader(str(tmp_path), max_bytes=100) as reader, pytest.raises(ImageError) as caught:
        reader.read(ref)
    assert str(caught.value).startswith(f"{ref}: ")
    assert reason in str(caught.value)


def test_a_file_without_permission(reader, tmp_path, monkeypatch):
    (tmp_path / "x.jpg").write_bytes(b"here")

    def denied(_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", denied)  # chmod does not stop root
    with pytest.raises(ImageError, match="not allowed to read it"):
        reader.read("x.jpg")


def test_an_empty_file_is_read_and_the_decoder_says_so(reader, tmp_path):
    (tmp_path / "x.jpg").write_bytes(b"")
    with pytest.raises(ImageError, match="empty"):
        decode(reader.read("x.jpg"))


def test_a_long_reference_is_shortened_in_the_message(reader):
    with pytest.raises(ImageError) as caught:
        reader.read("x" * 100_000)
    assert len(str(caught.value)) < 400


def test_many_keep_their_order_and_their_errors(reader, tmp_path):
    (tmp_path / "x.jpg").write_bytes(b"x")
    (tmp_path / "y.jpg").write_bytes(b"y")
    x, none, y = reader.read_many(["x.jpg", "none.jpg", "y.jpg"])
    assert (x, y) == (b"x", b"y")
    assert isinstance(none, ImageError)
    assert reader.read_many([]) == []


def test_the_hash_is_of_the_bytes():
    assert image_hash(b"abc") == hashlib.sha256(b"abc").hexdigest()[:32] == "ba7816bf8f01cfea414140de5dae2223"
