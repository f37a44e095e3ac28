import io

import numpy as np
import pytest
from PIL import Image

from tallymill.engine.decoders.base import HostDecoder, decoder_of, require_card
from tallymill.engine.decoders.nvimgcodec import is_plain
from tallymill.errors import ImageError, MissingExtraError, UsageError

PIXELS = np.random.default_rng(0).integers(0, 256, (24, 40, 3)).astype(np.uint8)


def file_of(mode="RGB", form="JPEG", **options):
    stream = io.BytesIO()
    Image.fromarray(PIXELS).convert(mode).save(stream, form, **options)
    return stream.getvalue()


def turned():
    exif = Image.Exif()
    exif[0x0112] = 6
    return file_of(exif=exif)


@pytest.mark.parametrize(
    "options", [{}, {"mode": "L"}, {"progressive": True}, {"subsampling": 0}, {"subsampling": 1}, {"subsampling": 2}]
)
def test_jpeg_files_with_nothing_to_decide_are_plain(options):
    data = file_of(**options)
    assert is_plain(data, 24 * 40)
    assert not is_plain(data, 24 * 40 - 1)
    assert not is_plain(data[:-2], 24 * 40)  # cut short
    assert not is_plain(data + b"\0", 24 * 40)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff\xd8\xff",
        b"\xff\xd8\xff\xd9",
        file_of(form="PNG"),
        file_of(mode="CMYK"),
        file_of(keep_rgb=True),
        file_of(icc_profile=b"x" * 200),
        turned(),
        file_of().replace(b"\xff\xc0", b"\xff\xc3", 1),  # lossless
        file_of().replace(b"\x00\x11\x08", b"\x00\x11\x0c", 1),  # 12 bits
        file_of().replace(b"\x01\x22\x00", b"\x01\x41\x00", 1),  # 4:1:1
    ],
)
def test_whatever_needs_a_decision_is_not_plain(data):
    assert not is_plain(data, 1 << 20)


def test_the_host_decodes_file_by_file():
    good, bad = HostDecoder().decode([file_of(form="PNG"), b""], 1 << 20)
    np.testing.assert_array_equal(good, PIXELS)
    assert isinstance(bad, ImageError)
    assert isinstance(HostDecoder().decode([file_of()], 10)[0], ImageError)


def test_a_decoder_is_chosen_by_name(monkeypatch):
    assert isinstance(decoder_of("cpu", "cuda:0"), HostDecoder)
    monkeypatch.setattr("tallymill.engine.decoders.nvimgcodec.find_spec", lambda _name: None)
    with pytest.raises(MissingExtraError, match="nvidia-nvimgcodec"):
        decoder_of("nvimgcodec", "cuda:0")


def test_a_card_is_needed_to_decode_on_one():
    require_card("cpu", "cpu")
    require_card("nvimgcodec", "cuda:1")
    with pytest.raises(UsageError, match="decodes on a card, and the device is 'cpu'"):
        require_card("nvimgcodec", "cpu")
