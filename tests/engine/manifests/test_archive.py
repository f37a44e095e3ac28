"""Tar and zip archives: members of one name are one item."""

import io
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tallymill.engine.items import ManifestOptions, read_items
from tallymill.errors import ManifestError

Members = list[tuple[str, bytes]]


def pack(path: Path, members: Members) -> Path:
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members:
                archive.writestr(name, data)
        return path
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def rows(manifest: Path, options: ManifestOptions = ManifestOptions()) -> list[dict[str, Any]]:  # noqa: B008
    found: list[dict[str, Any]] = pa.Table.from_batches(read_items(manifest, options)).to_pylist()
    return found


def fault(manifest: Path, options: ManifestOptions = ManifestOptions()) -> str:  # noqa: B008
    with pytest.raises(ManifestError) as caught:
        list(read_items(manifest, options))
    return caught.value.message


@pytest.mark.parametrize("kind", ["tar", "zip"])
def test_members_of_one_key_are_one_item(tmp_path: Path, kind: str) -> None:
    members = [
        ("./22.05.png", b"image"),
        ("./b/c.txt", b"\xef\xbb\xbf2 dogs\n"),
        ("./._22.05.png", b"x"),
        ("./22.05.json", b'{"targets": {"cat": 3}, "seed": 4}'),
        ("./b/c.jpg", b"image"),
        ("./b/c.npy", b"x"),
        ("README.md", b"x"),
    ]
    first, second = rows(pack(tmp_path / f"m.{kind}", members))
    assert (first["item_id"], first["image"], first["seed"]) == ("22.05", f"m.{kind}#22.05.png", 4)
    assert first["targets"] == [{"category": "cat", "count": 3}]
    assert (second["item_id"], second["image"]) == ("b/c", f"m.{kind}#b/c.jpg")
    assert second["targets"] == [{"category": "dog", "count": 2}]


def test_images_alone_take_the_one_prompt_and_fields_may_name_the_item(tmp_path: Path) -> None:
    archive = pack(tmp_path / "m.tar", [("b.png", b""), ("a.png", b""), ("a.json", b'{"item_id": "first"}')])
    got = rows(archive, ManifestOptions(prompt="3 cats"))
    assert [(row["item_id"], row["image"]) for row in got] == [("first", "m.tar#a.png"), ("b", "m.tar#b.png")]


@pytest.mark.parametrize(
    ("members", "words"),
    [
        ([("a.json", b'{"targets": {"cat": 3}}')], "member a.json: no image has this name"),
        ([("a.png", b""), ("a.jpg", b"")], "member a.png: 2 images have this name"),
        ([("a.png", b""), ("a.json", b'{"targets": }')], "member a.json: not JSON at column 13"),
        ([("a.png", b""), ("a.json", b"[]")], "member a.json: not an object"),
        ([("a.png", b""), ("a.json", b'{"image": "b.png"}')], "member a.json: image names the member itself"),
        ([("a.png", b""), ("a.json", b'{"prompt": "2 cats"}'), ("a.txt", b"3 cats")], "member a.txt: another prompt"),
        ([("a.png", b""), ("a.txt", b"some cats")], "member a.png, column prompt: prompt 'some cats'"),
        ([("a.png", b""), ("a.txt", b"\xff")], "member a.txt: not UTF-8"),
    ],
)
def test_faults(tmp_path: Path, members: Members, words: str) -> None:
    good = [("z.png", b""), ("z.txt", b"1 cat")]
    message = fault(pack(tmp_path / "m.tar", [*members, *good]))
    assert "m.tar, " + words in message
    assert "1 fault" in message


def test_links_in_a_tar_are_faults(tmp_path: Path) -> None:
    path = pack(tmp_path / "m.tar", [("a.png", b""), ("a.txt", b"1 cat")])
    with tarfile.open(path, "a") as tar:
        link = tarfile.TarInfo("b.png")
        link.type, link.linkname = tarfile.SYMTYPE, "a.png"
        tar.addfile(link)
    assert "member b.png: a link" in fault(path)


@pytest.mark.parametrize("name", ["m.tar", "m.zip"])
def test_archives_that_are_none(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"nothing of the kind" * 100)
    assert f"{name}: not an archive" in fault(tmp_path / name)
    cut = pack(tmp_path / name, [(f"{i}.png", bytes(5000)) for i in range(4)]).read_bytes()
    (tmp_path / name).write_bytes(cut[:12_000])
    assert f"{name}: not an archive" in fault(tmp_path / name, ManifestOptions(prompt="1 cat"))
