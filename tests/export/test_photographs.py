"""The gate on photographs of a user's own, besides the pictures that it draws."""

from __future__ import annotations

import json

import pytest
import skimage.data
from PIL import Image

from tallymill.cli import main
from tallymill.errors import ModelError, UsageError
from tallymill.exporters import acceptance, gate
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.photographs import read_photographs

RECIPE = recipe_of("owlvit-base-patch32")


@pytest.fixture
def photographs(tmp_path):
    folder = tmp_path / "photographs"
    folder.mkdir()
    Image.fromarray(skimage.data.chelsea()).save(folder / "cat.png")
    Image.fromarray(skimage.data.coffee()).save(folder / "cup.jpg")
    (folder / ".hidden").write_text("not looked at")
    return folder


def test_the_whole_is_compared_on_photographs_too(small_folder, photographs, tmp_path):
    bundle = export(RECIPE, small_folder("owlvit"), out=tmp_path / "owl", photographs=photographs)
    findings = json.loads((bundle.folder / "bundle.json").read_text())["gate"]
    checks = {each["check"] for each in findings if each["output"] == "boxes (pixels)"}
    assert {f"photograph {name}, 'cat' against the original" for name in ("cat.png", "cup.jpg")} <= checks
    assert "picture of 320x240, 'cat' against the original" in checks
    assert acceptance.check(
        bundle.folder, RECIPE, small_folder("owlvit"), device="cpu", photographs=photographs
    ).accepted


def test_what_only_photographs_show_is_refused(small_folder, photographs, tmp_path, monkeypatch):
    whole = gate._whole

    def amiss(check, found, wanted, bounds):
        return whole(check, (found[0] + 9, found[1]) if "photograph" in check else found, wanted, bounds)

    monkeypatch.setattr(gate, "_whole", amiss)
    with pytest.raises(ModelError, match=r"photograph cat\.png, 'cat' against the original: boxes \(pixels\) differs"):
        export(RECIPE, small_folder("owlvit"), out=tmp_path / "owl", photographs=photographs)
    assert not (tmp_path / "owl").exists()


def test_what_is_no_photograph_is_told_before_the_work(photographs, tmp_path, capsys):
    assert list(read_photographs(photographs)) == ["cat.png", "cup.jpg"]
    (photographs / "notes.txt").write_text("hello")
    with pytest.raises(UsageError, match=r"--photographs .*notes\.txt: "):
        read_photographs(photographs)
    (tmp_path / "none").mkdir()
    with pytest.raises(UsageError, match="no files in it"):
        read_photographs(tmp_path / "none")
    with pytest.raises(SystemExit, match="2"):
        main(["export", "owlvit-base-patch32", "--weights", "./w", "--photographs", "nowhere"])
    told = capsys.readouterr().err
    assert "--photographs nowhere: No such file or directory" in told
    assert "loading" not in told


def test_a_bundle_of_a_folder_is_checked_against_that_folder_alone(small_folder, tmp_path):
    bundle = export(RECIPE, small_folder("owlvit"), out=tmp_path / "owl")
    with pytest.raises(UsageError, match="was made of 'owlvit', which is no id") as caught:
        acceptance.check(bundle.folder, RECIPE, device="cpu")
    assert "--weights" in (caught.value.hint or "")
    manifest = bundle.folder / "bundle.json"
    manifest.write_text(json.dumps({**json.loads(manifest.read_text()), "source": None}))
    with pytest.raises(ModelError, match="does not say what weights it was made of"):
        acceptance.check(bundle.folder, RECIPE, small_folder("owlvit"), device="cpu")
