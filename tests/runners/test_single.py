import json
import math
import os

import numpy as np
import pytest
from PIL import Image

import tallymill
from tallymill.engine import devices
from tallymill.engine.devices import Cards
from tallymill.engine.ensemble import DetectorConfig, EnsembleConfig
from tallymill.engine.settings import Settings
from tallymill.errors import ManifestError, ModelError, UsageError

PIXELS = np.random.default_rng(0).integers(0, 256, (60, 80, 3)).astype(np.uint8)


@pytest.fixture
def photo(tmp_path):
    path = tmp_path / "a b#é.png"
    Image.fromarray(PIXELS).save(path)
    return path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, image_ensemble_file):
    return image_ensemble_file(tmp_path_factory.mktemp("models") / "tiny.toml", "one", "two")


def counts(result):
    return result.status, result.cw_nps, result.b_nps, result.targets


def test_a_path_bytes_and_an_array_give_the_same_score(photo, tiny):
    wanted = {"cat": 3, "dog": 2}
    by_path = tallymill.score(photo, wanted, ensemble=tiny)
    assert by_path.status == "scored"
    assert by_path.image == str(photo)
    assert counts(tallymill.score(str(photo), wanted, ensemble=tiny)) == counts(by_path)
    data = photo.read_bytes()
    for image in (data, bytearray(data), memoryview(data), PIXELS, np.asfortranarray(PIXELS), PIXELS[:, ::-1][:, ::-1]):
        result = tallymill.score(image, wanted, ensemble=tiny)
        assert counts(result) == counts(by_path)
        assert result.image == "(memory)"


def test_a_score_is_that_of_a_sweep(tmp_path, image_folder, tiny):
    images = image_folder(tmp_path / "images", 6)
    tallymill.sweep(images, tmp_path / "RUN", ensemble=tiny, workers=0, settings=Settings(slices=(2,)))
    for row in tallymill.load(tmp_path / "RUN").scores.to_pylist():
        wanted = {t["category"]: t["requested"] for t in row["targets"]}
        result = tallymill.score(images / row["item_id"], wanted, ensemble=tiny, settings=Settings(slices=[2]))
        assert (result.cw_nps, result.b_nps) == (row["cw_nps"], row["b_nps"])
        assert [(t.soft, t.hard) for t in result.targets] == [(t["soft"], t["hard"]) for t in row["targets"]]


@pytest.mark.parametrize(
    "targets", ["3 cats and 2 dogs", {"cat": 3, "dog": 2}, [("cat", 3), ("dog", 2)], (["cat", 3], ["dog", 2])]
)
def test_targets_in_every_form(targets, photo, tiny):
    result = tallymill.score(photo, targets, ensemble=tiny)
    assert [(t.category, t.requested) for t in result.targets] == [("cat", 3), ("dog", 2)]
    assert counts(result) == counts(tallymill.score(photo, {"cat": 3, "dog": 2}, ensemble=tiny))


def test_each_detector_tells_its_own_count(photo, tiny):
    result = tallymill.score(photo, {"cat": 3, "dog": 2}, ensemble=tiny)
    for target in result.targets:
        assert set(target.detectors) == {"one", "two"}
        assert target.soft == math.fsum(soft for soft, _ in target.detectors.values()) / 2
        assert target.hard == sum(hard for _, hard in target.detectors.values()) / 2
    assert set(result.proposals) == {"one", "two"}
    assert json.loads(json.dumps(result.as_dict()))["targets"][0]["category"] == "cat"


def test_a_category_that_nothing_covers(photo, tiny):
    result = tallymill.score(photo, {"cat": 3, "raccoon": 2}, ensemble=tiny)
    assert (result.status, result.cw_nps, result.b_nps) == ("uncovered", None, None)
    cat, raccoon = result.targets
    assert cat.soft is not None
    assert (raccoon.soft, raccoon.hard, raccoon.detectors) == (None, None, {})


@pytest.mark.parametrize("where", ["gone.png", "bad.png", b"", b"not an image"])
def test_an_image_that_cannot_be_read_is_a_result_with_an_error(where, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bad.png").write_bytes(b"not an image")
    result = tallymill.score(where, {"cat": 3}, ensemble=tiny)
    assert (result.status, result.cw_nps, result.b_nps) == ("error", None, None)
    assert result.error.startswith("image: ")
    assert (result.targets[0].soft, result.targets[0].detectors) == (None, {})


def test_relative_paths_start_from_the_current_folder_of_each_call(photo, tiny, tmp_path, monkeypatch):
    monkeypatch.chdir(photo.parent)
    assert tallymill.score(photo.name, {"cat": 3}, ensemble=tiny).status == "scored"
    os.mkdir(tmp_path / "empty")  # noqa: PTH102
    monkeypatch.chdir(tmp_path / "empty")
    assert tallymill.score(photo.name, {"cat": 3}, ensemble=tiny).status == "error"
    monkeypatch.chdir(photo.parent)
    assert tallymill.score(photo.name, {"cat": 3}, ensemble=tiny).status == "scored"


@pytest.mark.parametrize("targets", [[("cat", 1), ("cat", 2)], {"cat": 0}, {"cat": 101}, [("cat", 1), ("Cat", 1)]])
def test_targets_that_cannot_be_scored_are_a_result_with_an_error(targets, photo, tiny):
    result = tallymill.score(photo, targets, ensemble=tiny)
    assert (result.status, result.cw_nps) == ("error", None)
    assert result.error.startswith("targets: ")


@pytest.mark.parametrize(
    "image",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 4), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
        np.zeros((1, 4, 4, 3), np.uint8),
    ],
)
def test_an_array_that_is_no_image(image, tiny):
    with pytest.raises(UsageError, match=r"must be RGB uint8 \[H, W, 3\]"):
        tallymill.score(image, {"cat": 1}, ensemble=tiny)


@pytest.mark.parametrize(
    ("targets", "kind"),
    [
        ({}, UsageError),
        ([], UsageError),
        ([("cat",)], UsageError),
        (["cat"], UsageError),
        ([("cat", 1), ("dog", "x")], UsageError),
        ({"cat": 10**30}, UsageError),
        ({"cat": "3"}, ManifestError),
        ({"cat": 2.5}, ManifestError),
        ({"": 1}, ManifestError),
        ("", UsageError),
        ("some cats", UsageError),
    ],
)
def test_targets_that_are_none(targets, kind, photo, tiny):
    with pytest.raises(kind):
        tallymill.score(photo, targets, ensemble=tiny)


def test_an_image_above_max_pixels(photo, tiny):
    result = tallymill.score(photo, {"cat": 1}, ensemble=tiny, settings=Settings(max_pixels=60 * 80 - 1))
    assert result.status == "error"
    assert "pixels" in result.error


def test_the_floor_must_fit_the_temperatures(photo):
    hot = EnsembleConfig("hot", (DetectorConfig("a", "synthetic", tau=4.0),))
    with pytest.raises(UsageError, match=r"a: with tau = 4\.0"):
        tallymill.score(photo, {"cat": 1}, ensemble=hot)


def test_a_device_that_is_not_there(photo):
    with pytest.raises(UsageError, match="cuda"):
        tallymill.score(photo, {"cat": 1}, ensemble="synthetic", device="cuda")


def test_one_image_is_looked_at_on_one_device(photo, tiny, monkeypatch):
    monkeypatch.setattr(devices, "cards", lambda: Cards(2, "somebody finds 2"))
    with pytest.raises(UsageError, match="'cuda:0,1': one image is looked at on one device"):
        tallymill.score(photo, {"cat": 1}, ensemble="synthetic", device="cuda:0,1")
    with pytest.raises(ModelError, match="the device 'cuda:1' was asked for"):
        tallymill.score(photo, {"cat": 1}, ensemble=tiny, device="cuda:1")
    assert tallymill.score(photo, {"cat": 1}, ensemble=tiny, device="auto").status == "scored"


def test_a_model_that_was_not_fetched(photo, tmp_path, monkeypatch):
    monkeypatch.setenv("TALLYMILL_CACHE", str(tmp_path / "cache"))
    with pytest.raises(ModelError, match="has not been fetched") as caught:
        tallymill.score(photo, {"cat": 1}, ensemble="coco-cpu", settings=Settings(floor=0.06))
    assert caught.value.hint == "tallymill models get coco-cpu"


@pytest.mark.models
def test_the_shipped_detectors_see_a_cat():
    import skimage.data

    from tallymill.exporters import hub

    hub.get("coco-cpu")
    cat = skimage.data.chelsea()
    result = tallymill.score(cat, "1 cat and 2 dogs", settings=Settings(slices=()))
    assert result.status == "scored"
    seen, unseen = result.targets
    assert set(seen.detectors) == {"coco-ssd", "nanodet", "centernet"}
    assert seen.hard > 0 == unseen.hard
    mirrored = cat[:, ::-1]  # a view with a negative stride
    other = tallymill.score(mirrored, "1 cat", settings=Settings(slices=()))
    assert counts(other) == counts(tallymill.score(mirrored.copy(), "1 cat", settings=Settings(slices=())))
