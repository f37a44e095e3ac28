"""Weights by an id, from a cache of Hugging Face's made by hand."""

from __future__ import annotations

import json
import shutil

import pytest

from tallymill.errors import ModelError
from tallymill.exporters import acceptance
from tallymill.exporters.catalogue import recipe_of
from tallymill.exporters.export import export
from tallymill.exporters.weights import Origin, origin

FILES = {"config.json": b"{}", "model.safetensors": b"weights", "tokenizer.json": b"[]"}
REVISION = "4f" * 20
RECIPE = recipe_of("owlvit-base-patch32")


def filled(folder, **changes):
    folder.mkdir(parents=True)
    for name, content in {**FILES, **changes}.items():
        if content is not None:
            (folder / name).write_bytes(content)
    return folder


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """The cache of owner/model, of which REVISION is to be put into ``snapshots``."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    folder = tmp_path / "hub/models--owner--model"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs/main").write_text(REVISION)
    return folder


def test_an_id_is_the_snapshot_that_was_fetched(repository, tmp_path):
    filled(repository / "snapshots" / REVISION)
    found = origin("owner/model")
    whole = origin(filled(tmp_path / "whole", **{"pytorch_model.bin": b"the same in another form"}))
    assert (found.name, found.revision) == ("owner/model", REVISION)
    assert found.sha256 == origin(filled(tmp_path / "owl")).sha256
    assert found.unlike(whole) is whole.unlike(found) is None  # transformers fetches one form
    other = origin(filled(tmp_path / "other", **{"model.safetensors": b"other"}))
    assert found.unlike(other) == other.unlike(found) == "the SHA-256 of model.safetensors differs"
    apart = origin(filled(tmp_path / "apart", **{"model.safetensors": None, "model.bin": b"weights"}))
    assert found.unlike(apart) == "model.bin is only in one of them"


@pytest.mark.usefixtures("repository")
def test_of_an_id_that_was_not_fetched_nothing_is_known(tmp_path):
    found = origin("owner/model")
    assert found == Origin("owner/model", None, {})
    assert found.sha256 is None
    assert found.unlike(origin(filled(tmp_path / "owl"))) is None


def test_a_bundle_of_an_id_is_checked_against_a_folder_and_against_the_id(repository, small_folder, tmp_path):
    shutil.copytree(small_folder("owlvit"), repository / "snapshots" / REVISION)
    bundle = export(RECIPE, "owner/model", out=tmp_path / "bundle")
    told = json.loads((bundle.folder / "bundle.json").read_text())["source"]
    assert (told["weights"], told["revision"]) == ("owner/model", REVISION)
    assert told["sha256"] == origin(small_folder("owlvit")).sha256
    assert {"config.json", "model.safetensors", "preprocessor_config.json", "tokenizer.json"} <= set(told["files"])
    for source in (small_folder("owlvit"), "owner/model"):
        assert acceptance.check(bundle.folder, RECIPE, source, device="cpu").accepted
    config = repository / "snapshots" / REVISION / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(ModelError, match=r"owner/model: these are not the weights .* of config\.json differs"):
        acceptance.check(bundle.folder, RECIPE, "owner/model", device="cpu")


@pytest.mark.parametrize(
    ("model", "family"),
    [("rf-detr-nano", "d_fine"), ("rt-detr-v2-r18", "d_fine"), ("sam3", "owlvit"), ("ow-detr", "rf_detr")],
)
def test_weights_of_a_model_of_another_kind_are_refused(small_folder, model, family):
    with pytest.raises(ModelError, match=r"config\.json: model_type = '.*'; wanted '.*'"):
        recipe_of(model).load(small_folder(family))
