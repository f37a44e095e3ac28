"""Folders of images, with and without metadata."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tallymill.engine.items import ManifestOptions, read_items
from tallymill.errors import ManifestError

CAT = ManifestOptions(prompt="1 cat")


def images(manifest: Path, options: ManifestOptions = CAT) -> list[Any]:
    found: list[Any] = pa.Table.from_batches(read_items(manifest, options))["image"].to_pylist()
    return found


def fault(manifest: Path, options: ManifestOptions = CAT) -> str:
    with pytest.raises(ManifestError) as caught:
        list(read_items(manifest, options))
    return caught.value.message


def fill(root: Path, *names: str) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
    return root


def test_images_in_order_of_path_without_hidden_files(tmp_path: Path) -> None:
    names = ["b.png", "a/x.JPG", "a-b/y.webp", "a.png", "img-12:30.jpg", "[d]/z.jpg", "a#b%20 é.jpg"]
    fill(tmp_path, *names, "._b.png", ".hidden/c.png", ".DS_Store", "Thumbs.db", "notes.txt", "a/._x.JPG")
    assert images(tmp_path) == sorted(names)


def test_a_folder_with_a_bracketed_name(tmp_path: Path) -> None:
    assert images(fill(tmp_path / "[d]", "a.png")) == ["a.png"]


def test_links_end_and_lead_out(tmp_path: Path) -> None:
    root, other = fill(tmp_path / "root", "sub/a.png"), fill(tmp_path / "other", "b.png")
    (root / "loop").symlink_to(root)
    (root / "sub" / "up").symlink_to(tmp_path)
    (root / "out").symlink_to(other)
    (root / "out2").symlink_to(other)
    (other / "back").symlink_to(root / "sub")
    (other / "self").symlink_to(other)
    (root / "c.png").symlink_to(other / "b.png")
    (root / "broken").symlink_to(tmp_path / "none")
    assert images(root) == ["c.png", "out/b.png", "sub/a.png"]


def test_metadata_gives_the_rows(tmp_path: Path) -> None:
    fill(tmp_path, "a.png", "sub/b.png", "readme.md")
    lines = '{"file_name": "./sub/b.png", "prompt": "2 dogs"}\n{"file_name": "a.png", "targets": {"cat": 3}}\n'
    (tmp_path / "metadata.jsonl").write_text(lines + '{"file_name": "gone.png", "prompt": "4 cows"}\n')
    got = pa.Table.from_batches(read_items(tmp_path)).to_pylist()
    assert [(row["image"], row["targets"][0]["count"]) for row in got] == [
        ("./sub/b.png", 2),
        ("a.png", 3),
        ("gone.png", 4),
    ]
    assert "file_name" not in got[0]


def test_images_that_metadata_does_not_name_are_faults(tmp_path: Path) -> None:
    fill(tmp_path / "set", "a.png", "sub/b.png", "sub/._b.png")
    (tmp_path / "set" / "metadata.csv").write_text("file_name,targets\na.png,cat=3\nc.dat,cat=1\n")
    message = fault(tmp_path / "set")
    assert "1 fault" in message
    assert "set/sub/b.png: not in set/metadata.csv" in message


@pytest.mark.parametrize("name", ["metadata.csv", "metadata.jsonl"])
def test_faults_of_the_metadata(tmp_path: Path, name: str) -> None:
    fill(tmp_path / "set", "a.png")
    good = "file_name,targets\na.png,cat=3\na.png,cat=x\n"
    if name.endswith("jsonl"):
        good = '\n{"file_name": "a.png", "targets": "cat=3"}\n{"file_name": "a.png", "targets": "cat=x"}\n'
    (tmp_path / "set" / name).write_text(good)
    assert f"set/{name}, line 3, column targets: count 'x' is not a whole number" in fault(tmp_path / "set")
    (tmp_path / "set" / name).write_text(good.replace("file_name", "file"))
    assert "no column file_name" in fault(tmp_path / "set")


def test_ambiguous_and_empty_folders(tmp_path: Path) -> None:
    assert "no items" in fault(tmp_path)
    fill(tmp_path, "metadata.csv", "metadata.jsonl")
    assert "metadata.jsonl and metadata.csv" in fault(tmp_path)
    fill(tmp_path / "mixed", "p.parquet", "a.png")
    assert "both Parquet files (p.parquet) and images (a.png)" in fault(tmp_path / "mixed")
    fill(tmp_path / "plain", "a.png")
    assert "nothing says what was asked for" in fault(tmp_path / "plain", ManifestOptions())
