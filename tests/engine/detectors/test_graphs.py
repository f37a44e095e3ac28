from __future__ import annotations

from pathlib import Path

import pytest

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.graphs import Graphs, images_a_call, part_of
from tallymill.errors import ModelError, OpenError


@pytest.fixture
def opened(monkeypatch):
    """The parts that were opened, in their order; a session is the name of its part."""
    parts = []
    monkeypatch.setattr(Bundle, "session", lambda _bundle, part, **_options: parts.append(part) or part)
    return parts


def graphs(sizes, device="cpu", **options):
    bundle = Bundle(Path("folder"), "m", "f", "onnx", "fp32", {}, {}, None, "0" * 64, device=device)
    return Graphs(bundle, "image", sizes, **options)


def test_a_graph_is_opened_once_and_when_it_is_needed(opened):
    found = graphs([(8, 16), (8, 8)])
    assert not opened
    assert found.frame(8, 9) == (8, 16)
    assert [found.first, found.of((8, 16)), found.of((8, 16))] == ["image-8x8", "image-8x16", "image-8x16"]
    assert opened == ["image-8x8", "image-8x16"]
    assert part_of("image", (8, 16)) == "image-8x16"


def test_one_graph_may_take_all_sizes(opened):
    found = graphs([], any_size=True)
    assert found.buckets is None
    assert found.frame(5, 7) == (5, 7)
    assert found.first == found.of((5, 7)) == "image"
    assert opened == ["image"]
    assert graphs([(8, 8)], any_size=True).first == "image-8x8"


def test_a_graph_that_an_image_cannot_be_given_is_no_error_of_the_image(monkeypatch):
    def refuse(_bundle, part, **_options):
        raise ModelError(f"{part}: has been changed", hint="start again")

    found = graphs([(8, 8), (8, 16)])
    monkeypatch.setattr(Bundle, "session", refuse)
    with pytest.raises(OpenError, match="image-8x16: has been changed\\n  start again") as caught:
        found.of((8, 16))
    assert not isinstance(caught.value, ModelError)
    with pytest.raises(ModelError, match="image-8x8: has been changed"):
        _ = found.first


def test_all_can_be_tried_and_none_is_kept(opened):
    found = graphs([(8, 16), (8, 8), (16, 16)])
    assert found.first == "image-8x8"
    found.open_others()
    assert opened == ["image-8x8", "image-8x16", "image-16x16"]
    assert found.of((8, 16)) == "image-8x16"
    assert opened[3:] == ["image-8x16"]
    one = graphs([], any_size=True)
    one.open_others()
    assert opened[4:] == []


@pytest.mark.parametrize(("sizes", "options"), [([], {}), ([(0, 8)], {}), ([(8, 8), (-1, 8)], {"any_size": True})])
def test_sizes_that_are_none_are_an_error_that_names_the_bundle(sizes, options):
    with pytest.raises(ModelError, match=r"folder: numbers\.buckets: buckets .* wanted pairs of positive"):
        graphs(sizes, **options)


@pytest.mark.parametrize(
    ("sizes", "device", "batch"),
    [
        ([(96, 96), (512, 512)], "cpu", 4),
        ([(96, 96), (800, 800)], "cpu", 1),
        ([], "cpu", 1),
        ([(800, 1333)], "cuda:0", 4),
    ],
)
def test_on_the_cpu_large_images_go_alone(sizes, device, batch):
    assert graphs(sizes, device=device, any_size=True).batch == batch


@pytest.mark.parametrize(
    ("pixels", "device", "images"), [(512**2, "cpu", 4), (768**2, "cpu", 1), (768**2, "cuda:0", 4)]
)
def test_a_square_of_many_pixels_goes_alone_on_the_cpu(pixels, device, images):
    assert images_a_call(pixels, device) == images
