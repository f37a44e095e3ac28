from __future__ import annotations

from pathlib import Path

import pytest

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.graphs import Graphs, part_of
from tallymill.errors import ModelError


@pytest.fixture
def opened(monkeypatch):
    """The parts that were opened, in their order; a session is the name of its part."""
    parts = []
    monkeypatch.setattr(Bundle, "session", lambda _bundle, part, **_options: parts.append(part) or part)
    return parts


def graphs(sizes, **options):
    bundle = Bundle(Path("folder"), "m", "f", "onnx", "fp32", {}, {}, None, "0" * 64)
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


@pytest.mark.parametrize(("sizes", "options"), [([], {}), ([(0, 8)], {}), ([(8, 8), (-1, 8)], {"any_size": True})])
def test_sizes_that_are_none_are_an_error_that_names_the_bundle(sizes, options):
    with pytest.raises(ModelError, match=r"folder: numbers\.buckets: buckets .* wanted pairs of positive"):
        graphs(sizes, **options)
