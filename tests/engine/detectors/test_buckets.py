from __future__ import annotations

import numpy as np
import pytest

from tallymill.engine.detectors.buckets import Buckets, name, parse
from tallymill.errors import ModelError

DEFAULT = Buckets([(800, 800), (1333, 800), (800, 1333)])


@pytest.mark.parametrize(
    ("size", "resized"),
    [
        ((1024, 1024), (800, 800)),
        ((480, 640), (800, 1066)),
        ((640, 480), (1066, 800)),
        ((300, 451), (800, 1202)),
        ((400, 600), (800, 1200)),
        ((500, 1000), (666, 1333)),
        ((1000, 500), (1333, 666)),
        ((10, 2000), (7, 1333)),  # 6.665, to the nearest
        ((800, 900), (800, 900)),
        ((800, 1400), (762, 1333)),
        ((267, 1333), (267, 1333)),
        ((268, 1335), (268, 1333)),  # the processors leave it at 1335
        ((1, 5000), (1, 1333)),  # and come to 0 here
    ],
)
def test_the_size_rule(size, resized):
    assert Buckets.rule(*size, 800, 1333) == resized


def test_every_image_fits_a_default_bucket():
    rng = np.random.default_rng(0)
    for height, width in rng.integers(1, 4000, (5000, 2)).tolist():
        resized = Buckets.rule(height, width, 800, 1333)
        bucket = DEFAULT.of(*resized)
        assert resized[0] <= bucket[0]
        assert resized[1] <= bucket[1]


def test_the_smallest_bucket_that_holds_an_image():
    assert DEFAULT.of(800, 800) == (800, 800)
    assert DEFAULT.of(800, 801) == (800, 1333)
    assert DEFAULT.of(801, 640) == (1333, 800)
    with pytest.raises(ModelError, match="801 x 801 fits none of the sizes exported: 800x800, 800x1333, 1333x800"):
        DEFAULT.of(801, 801)


def test_a_bucket_is_written_as_height_and_width():
    assert parse(" 800x1333") == (800, 1333)
    assert name(parse("800x1333")) == "800x1333"
    for wrong in ("800", "800x", "x800", "800x-3", "axb", "0x5", "800x800x3", "", "800x8193", "9" * 5000 + "x8"):
        with pytest.raises(ValueError, match=r"is not a height|has no pixels|has a side above 8192"):
            parse(wrong)
    for wrong in ([], [(0, 5)]):
        with pytest.raises(ValueError, match="positive"):
            Buckets(wrong)
