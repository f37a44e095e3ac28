"""Where weights are said to be, and where a bundle is to go: looked at before the work."""

from __future__ import annotations

import os
import socket
import subprocess
import sys

import pytest

from tallymill.errors import ModelError, UsageError
from tallymill.exporters import weights
from tallymill.exporters.export import _tidy, require_free
from tallymill.exporters.hub import scratch_prefix
from tallymill.exporters.recipes.bucketed import require_levels
from tallymill.exporters.weights import is_local

with subprocess.Popen([sys.executable, "-c", ""]) as _ended:
    GONE = _ended.pid


@pytest.mark.parametrize("name", ["", "weights", "./weights", "/nowhere/weights", "a/b/c", "~/weights"])
def test_a_path_where_nothing_is_is_no_id(name):
    with pytest.raises(ModelError, match="no such folder or file") as caught:
        is_local(name)
    assert "OWNER/NAME" in (caught.value.hint or "")


def test_an_id_and_a_folder_are_told_apart(tmp_path):
    assert not is_local("owner/name")
    assert is_local(tmp_path)
    assert is_local(str(tmp_path))


def test_a_place_is_free_if_there_is_nothing_or_a_bundle(tmp_path):
    require_free(tmp_path / "none")
    require_free(tmp_path)
    (tmp_path / "bundle.json").write_text('{"files": {"image.onnx": "hash"}}')
    (tmp_path / "image.onnx").write_bytes(b"graph")
    require_free(tmp_path)
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(ModelError, match=r"holds notes\.txt, which is not of the bundle"):
        require_free(tmp_path)


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"files": 3}'])
def test_a_place_with_something_else_is_not_free(tmp_path, text):
    (tmp_path / "bundle.json").write_text(text)
    with pytest.raises(ModelError, match=r"its bundle\.json cannot be read"):
        require_free(tmp_path)
    (tmp_path / "bundle.json").rename(tmp_path / "report.json")
    for place in (tmp_path, tmp_path / "report.json"):
        with pytest.raises(ModelError, match="is there and is no bundle"):
            require_free(place)


def test_what_killed_exports_left_is_removed_and_what_they_moved_aside_comes_back(tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(os, "getpid", lambda: GONE)
        lost, other, mine = (tmp_path / f"{scratch_prefix(name)}abcdefgh" for name in ("lost", "new-one", "mine"))
    running, foreign = tmp_path / f"{scratch_prefix('here')}abcdefgh", tmp_path / ".lost-elsewhere-1-abcdefgh"
    backup = tmp_path / f".backup-{socket.gethostname()}-20241201-home"  # of somebody who names folders alike
    kept = [running, foreign, mine, backup]
    for folder in (lost / "before", other / "bundle", running / "bundle", foreign / "bundle", mine / "photos", backup):
        folder.mkdir(parents=True)
        (folder / "bundle.json").write_text(folder.name)
    _tidy(tmp_path)
    assert sorted(tmp_path.iterdir()) == sorted([tmp_path / "lost", *kept])
    assert (tmp_path / "lost" / "bundle.json").read_text() == "before"


def test_a_size_has_more_than_one_place_on_each_level():
    require_levels([(65, 64), (800, 1333)])
    with pytest.raises(UsageError, match="64x64: too small"):
        require_levels([(800, 800), (64, 64)])


def test_what_is_missing_in_a_folder_of_weights_is_told(tmp_path):
    with pytest.raises(ModelError, match=r"no config\.json in it"):
        weights._require_folder(tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(b"")
    with pytest.raises(ModelError, match="is a file; name the folder"):
        weights._require_folder(file)
    with pytest.raises(ModelError, match=r"no tokenizer in it: tokenizer\.json, or vocab\.json"):
        weights.tokenizer_from(tmp_path)
