"""Which files weights were read from: folders made by hand."""

from __future__ import annotations

import hashlib

import pytest

from tallymill.exporters.weights import origin

FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"[]", "README.md": b"of no matter"}


def filled(folder, **changes):
    folder.mkdir(parents=True)
    for name, content in {**FILES, **changes}.items():
        if content is not None:
            (folder / name).write_bytes(content)
    return folder


def test_the_files_of_a_folder_are_those_that_are_read(tmp_path):
    found = origin(filled(tmp_path / "owl"))
    assert (found.name, found.revision) == ("owl", None)
    assert found.files == {
        name: hashlib.sha256(content).hexdigest() for name, content in FILES.items() if name != "README.md"
    }


@pytest.mark.parametrize("changed", ["config.json", "model.safetensors", "tokenizer.json"])
def test_each_of_them_tells_one_folder_from_another(tmp_path, changed):
    one, same = origin(filled(tmp_path / "one")), origin(filled(tmp_path / "same", **{"README.md": b"else"}))
    other = origin(filled(tmp_path / "other", **{changed: b"other"}))
    assert one.sha256 == same.sha256
    assert one.unlike(same) is None
    assert one.sha256 != other.sha256
    assert one.unlike(other) == f"the SHA-256 of {changed} differs"


def test_weights_in_one_of_two_folders_tell_them_apart(tmp_path):
    one, other = origin(filled(tmp_path / "one")), origin(filled(tmp_path / "other", **{"more.bin": b"more"}))
    assert one.unlike(other) == other.unlike(one) == "more.bin is only in one of them"


def test_a_file_is_its_own_origin(tmp_path):
    file = filled(tmp_path / "owl") / "model.safetensors"
    assert origin(file).files == {"model.safetensors": hashlib.sha256(b"weights").hexdigest()}
