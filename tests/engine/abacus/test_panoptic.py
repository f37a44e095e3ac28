from __future__ import annotations

import json

import numpy as np
import pytest
from PIL import Image

from tallymill.engine.abacus.panoptic import Panoptic
from tallymill.errors import ImageError, ManifestError

CATEGORIES = [
    {"id": 1, "name": "person", "isthing": 1},
    {"id": 62, "name": "couch", "isthing": 1},
    {"id": 119, "name": "sky", "isthing": 0},
]


def segment(number, category=1, **more):
    return {"id": number, "category_id": category, "iscrowd": 0, **more}


def write(folder, ids, segments, **document):
    ids = np.asarray(ids, np.uint32)
    (folder / "panoptic").mkdir()
    colours = np.stack([ids & 255, ids >> 8 & 255, ids >> 16], axis=2).astype(np.uint8)
    Image.fromarray(colours).save(folder / "panoptic/000007.png")
    whole = {
        "images": [{"id": 7, "file_name": "photo.jpg"}],
        "annotations": [{"image_id": 7, "file_name": "000007.png", "segments_info": segments}],
        "categories": CATEGORIES,
        **document,
    }
    path = folder / "panoptic.json"
    path.write_text(json.dumps(whole))
    return path


IDS = [[0, 70000, 70000, 3], [5, 70000, 9, 3]]
SEGMENTS = [segment(70000), segment(3, 62), segment(5, iscrowd=1), segment(9, 119)]


def read(path, names=None, size=(2, 4)):
    panoptic = Panoptic(path)
    annotation = panoptic.of("images/photo.png", None)
    assert annotation is not None
    return panoptic.read(annotation, names or {"person": "person"}, size)


def test_masks_are_those_of_the_ids(tmp_path):
    found = read(write(tmp_path, IDS, SEGMENTS), {"person": "person", "sofa": "couch"})
    np.testing.assert_array_equal(found.instances["person"].masks.to_arrays(), [np.array(IDS) == 70000])
    np.testing.assert_array_equal(found.instances["sofa"].masks.to_arrays(), [np.array(IDS) == 3])
    assert found.instances["person"].boxes.tolist() == [[1, 0, 3, 2]]
    assert found.crowd == 1
    assert found.covered == 5 / 8  # neither void, nor crowd, nor sky


def test_what_has_no_instances_has_none(tmp_path):
    found = read(write(tmp_path, IDS, SEGMENTS), {"sky": "sky", "dog": "dog"})
    assert [len(each) for each in found.instances.values()] == [0, 0]


def test_an_image_is_found_by_id_or_by_name(tmp_path):
    panoptic = Panoptic(write(tmp_path, IDS, SEGMENTS))
    assert len(panoptic) == 1
    assert panoptic.of("other.jpg", "7") is panoptic.of("set.tar#a/photo.webp", None)
    assert panoptic.of("photo.jpg", "8") is None
    assert panoptic.of("other.jpg", None) is None


@pytest.mark.parametrize("image_id", [7, "7", "000000000007"])
@pytest.mark.parametrize("asked", ["7", "000000000007", "07"])
def test_ids_of_digits_are_numbers(tmp_path, image_id, asked):
    annotations = [{"image_id": image_id, "file_name": "000007.png", "segments_info": SEGMENTS}]
    images = [{"id": "0007", "file_name": "photo.jpg"}]
    panoptic = Panoptic(write(tmp_path, IDS, SEGMENTS, annotations=annotations, images=images))
    assert panoptic.of("other.jpg", asked) is panoptic.of("photo.png", None)
    assert panoptic.of("other.jpg", asked) is not None
    assert panoptic.of("other.jpg", "70") is None


@pytest.mark.parametrize(("one", "other"), [("a7", "a07"), (0, "-0"), ("²", 2)])
def test_other_ids_are_words(tmp_path, one, other):
    annotations = [{"image_id": each, "file_name": "000007.png", "segments_info": SEGMENTS} for each in (one, other)]
    panoptic = Panoptic(write(tmp_path, IDS, SEGMENTS, annotations=annotations))
    assert panoptic.of("", str(one)) is not panoptic.of("", str(other))


def test_two_images_of_one_name_are_told_apart_by_id_alone(tmp_path):
    images = [{"id": 7, "file_name": "a/photo.jpg"}, {"id": 8, "file_name": "b/photo.jpg"}]
    panoptic = Panoptic(write(tmp_path, IDS, SEGMENTS, images=images))
    assert panoptic.of("a/photo.jpg", None) is None
    assert panoptic.of("a/photo.jpg", "7") is not None


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        (SEGMENTS[1:], r"000007.png: has pixels of segment 70000, which the JSON does not list"),
        (SEGMENTS[3:], r"has pixels of segments 3, 5, 70000, which"),
        ([*SEGMENTS, segment(11), segment(12)], r"no pixel has segments 11, 12, which the JSON lists"),
    ],
)
def test_png_and_json_have_to_agree(tmp_path, segments, message):
    with pytest.raises(ImageError, match=message):
        read(write(tmp_path, IDS, segments))


def test_png_and_image_have_one_size(tmp_path):
    with pytest.raises(ImageError, match="is 4x2, its image 3x2"):
        read(write(tmp_path, IDS, SEGMENTS), size=(2, 3))


def test_a_png_that_is_not_there_or_broken(tmp_path):
    path = write(tmp_path, IDS, SEGMENTS)
    (tmp_path / "panoptic/000007.png").write_bytes(b"\x89PNG\r\n\x1a\n")
    with pytest.raises(ImageError, match=r"000007\.png: the file is cut short"):
        read(path)
    (tmp_path / "panoptic/000007.png").unlink()
    with pytest.raises(ImageError, match=r"000007\.png: No such file"):
        read(path)


@pytest.mark.parametrize(
    ("segments", "message"),
    [
        ([segment(0)], r"segments_info\[0\]: id 0 is no colour"),
        ([segment(1 << 24)], "no colour"),
        ([segment(3), segment(3)], r"segments_info\[1\]: id 3 stands twice"),
        ([segment(3, 90)], "category_id 90 is not among the categories"),
        ([{"id": "3", "category_id": 1}], r"segments_info\[0\]: id is '3'"),
        (["x"], "id is None"),
    ],
)
def test_faults_of_the_json_are_named_by_their_place(tmp_path, segments, message):
    with pytest.raises(ManifestError, match=r"panoptic.json: annotations\[0\]") as caught:
        Panoptic(write(tmp_path, IDS, segments))
    assert caught.match(message)


def test_files_that_are_no_panoptic_files(tmp_path):
    path = write(tmp_path, IDS, SEGMENTS, annotations={})
    with pytest.raises(ManifestError, match="no list 'annotations'"):
        Panoptic(path)
    path.write_text("[")
    with pytest.raises(ManifestError, match="not JSON"):
        Panoptic(path)
    with pytest.raises(ManifestError, match=r"gone\.json: cannot be read"):
        Panoptic(tmp_path / "gone.json")


def test_an_image_that_is_annotated_twice(tmp_path):
    twice = [{"image_id": 7, "file_name": "000007.png", "segments_info": SEGMENTS}] * 2
    with pytest.raises(ManifestError, match=r"annotations\[1\]: image_id 7 stands twice"):
        Panoptic(write(tmp_path, IDS, SEGMENTS, annotations=twice))
