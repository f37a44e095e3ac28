from __future__ import annotations

import pytest

from tallymill.engine.abacus.settings import EditSettings, with_changes
from tallymill.engine.abacus.suite import SHIPPED, Suite, load_suite
from tallymill.errors import UsageError

TEXT = """
[segmenter]
name = "s"
family = "coco_ssd"
model = "s.onnx"

[[confirmers]]
name = "a"
family = "coco_ssd"
model = "a.onnx"

[[confirmers]]
name = "b"
family = "coco_ssd"
model = "known"
"""


def load(folder, text):
    path = folder / "mine.toml"
    path.write_text(text)
    return load_suite(path)


@pytest.mark.parametrize("name", sorted(path.stem for path in SHIPPED.glob("*.toml")))
def test_shipped_suites_can_be_read_and_written_down(name):
    suite = load_suite(name)
    assert suite.name == name
    assert Suite.from_dict(suite.as_dict()) == suite
    assert len(dict(suite.models())) == 5


def test_a_suite_of_ones_own(tmp_path):
    suite = load(tmp_path, TEXT + "[settings]\npresence = 0.4\nslices = [2]\n")
    assert suite.name == "mine"
    assert suite.segmenter.model == str(tmp_path / "s.onnx")
    assert suite.confirmers[1].model == "known"
    assert suite.flow.family == "dis"
    assert suite.upscaler is None
    assert suite.settings == EditSettings(presence=0.4, slices=(2,))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (TEXT + "[zoom]\n", "unknown key 'zoom'"),
        (TEXT.rpartition("[[confirmers]]")[0], "two .*confirmers"),
        (TEXT.replace('name = "b"', 'name = "s"'), "names of detectors repeat"),
        (TEXT.replace('family = "coco_ssd"', 'family = "none"'), "'none' is not one of"),
        (TEXT + '[flow]\nfamily = "raft"\n', "'raft' needs a model"),
        (TEXT + '[flow]\nfamily = "still"\n', "'still' is not one of dis, raft"),
        (TEXT + '[upscaler]\nfamily = "conv2x"\nmodel = 3\n', "model 3 must be text"),
        (TEXT + "[settings]\npresence = 2\n", "presence=2"),
        (TEXT + "[settings]\nfloor = 0.1\n", "floor=0.1: not a setting"),
        ("segmenter = 3\n" + TEXT.replace("[segmenter]", "[other]"), "unknown key 'other'"),
        ("[", "not a TOML file"),
    ],
)
def test_faults_name_the_file(tmp_path, text, message):
    with pytest.raises(UsageError, match=message) as caught:
        load(tmp_path, text)
    assert "mine.toml" in str(caught.value)


def test_a_suite_that_is_not_there():
    with pytest.raises(UsageError, match="no suite 'gone'"):
        load_suite("gone")


@pytest.mark.parametrize(
    "change",
    [
        "presence=0",
        "match_iou=1.1",
        "margin=0",
        "margin=2.5",
        "slices=[1]",
        "slices=2",
        "crop_scale=0.5",
        "nms_iou=true",
        "crop_side=x",
        "other=1",
        "presence",
    ],
)
def test_settings_that_make_no_sense(change):
    with pytest.raises(UsageError, match=change.partition("=")[0]):
        with_changes(EditSettings(), [change])


def test_settings_are_written_down_and_read_back():
    settings = with_changes(EditSettings(), ["slices=[2,3]", "match_iou=0.4", "max_pixels=100"])
    assert settings.slices == (2, 3)
    assert EditSettings.from_dict(settings.as_dict()) == settings
