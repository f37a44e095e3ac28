"""nvImageCodec for real, on its CPU backend; on a card where there is one. Needs nvidia-nvimgcodec-cu13."""

from __future__ import annotations

import io
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from PIL import Image

from tallymill.engine.arrays import to_host
from tallymill.engine.decoders.base import HostDecoder
from tallymill.engine.decoders.nvimgcodec import NvImageCodec
from tallymill.errors import ImageError

pytestmark = pytest.mark.skipif(
    find_spec("nvidia") is None or find_spec("nvidia.nvimgcodec") is None, reason="needs nvidia-nvimgcodec-cu13"
)


def files():
    """Plain ones, and between them those that the host has to read, or that nobody can."""
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (9, 13, 3)).astype(np.uint8))
    picture = small.resize((130, 90), Image.Resampling.BICUBIC)

    def saved(image=picture, form="JPEG", **options):
        stream = io.BytesIO()
        image.save(stream, form, **options)
        return stream.getvalue()

    exif = Image.Exif()
    exif[0x0112] = 6
    plain = [saved(), saved(picture.convert("L")), saved(progressive=True), saved(subsampling=0, quality=95)]
    whole = saved(picture.resize((640, 480)))
    broken = whole[:400] + whole[-2:]
    return [plain[0], b"", plain[1], saved(exif=exif), broken, plain[2], saved(form="PNG"), whole[:900], plain[3]]


def check(device, levels):
    expected = HostDecoder().decode(files(), 1 << 20)
    found = NvImageCodec(device).decode(files(), 1 << 20)
    assert [isinstance(each, ImageError) for each in expected] == [k in (1, 4, 7) for k in range(9)]
    for ours, theirs in zip(found, expected, strict=True):
        if isinstance(theirs, ImageError):
            assert isinstance(ours, ImageError)
            assert ours.message == theirs.message
        else:
            assert tuple(ours.shape) == theirs.shape
            assert np.abs(to_host(ours).astype(int) - theirs).max() <= levels


def test_the_cpu_backend_gives_the_pixels_and_the_errors_of_the_host():
    check("cpu", levels=0)


def test_a_file_above_the_limit_is_refused_by_the_host():
    (found,) = NvImageCodec("cpu").decode(files()[:1], 90 * 130 - 1)
    assert isinstance(found, ImageError)
    assert "above the limit" in found.message


def test_nothing_to_decode():
    assert NvImageCodec("cpu").decode([], 100) == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
def test_a_card_gives_the_pixels_of_the_host_to_a_level_or_two():
    check("cuda:0", levels=3)
