import io

import numpy as np
import pytest
from PIL import Image

from tallymill.engine import jpeg
from tallymill.errors import ImageError


def picture(**options):
    exif = Image.Exif()
    exif[0x0112] = 6
    shades = np.random.default_rng(0).integers(0, 256, (20, 30, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(shades).save(file, "JPEG", quality=95, exif=exif, comment=b"said", **options)
    return file.getvalue()


@pytest.mark.parametrize("progressive", [False, True])
def test_the_header(progressive):
    data = picture(progressive=progressive, icc_profile=b"profile")
    header = jpeg.read_header(data)
    assert (header.width, header.height, header.components, header.orientation) == (30, 20, 3, 6)
    assert header.profile
    assert data[header.scan : header.scan + 2] == b"\xff\xda"
    assert not jpeg.read_header(picture()).profile


def test_pixels_are_the_same_without_metadata_and_not_turned():
    data = picture(icc_profile=b"profile")
    header = jpeg.read_header(data)
    bare = jpeg.without_metadata(data, header.scan)
    assert b"JFIF" in bare
    assert not any(word in bare for word in (b"Exif", b"ICC_PROFILE", b"said"))
    pixels = jpeg.decode(data, header)
    assert pixels.shape == (20, 30, 3)
    np.testing.assert_array_equal(pixels, jpeg.decode(bare, jpeg.read_header(bare)))


def test_a_subsampling_that_simplejpeg_does_not_know_is_no_error(odd_images):
    data = odd_images["odd_subsampling.jpg"][0]
    assert jpeg.decode(data, jpeg.read_header(data)) is None


def test_a_header_that_is_cut_short_or_corrupt():
    data = picture()
    with pytest.raises(ImageError, match="cut short"):
        jpeg.read_header(data[:100])
    with pytest.raises(ImageError, match="no JPEG marker at byte 2"):
        jpeg.read_header(data[:2] + b"\0" + data[3:])
    with pytest.raises(ValueError, match=r"(?i)premature end"):
        jpeg.decode(data[:-200], jpeg.read_header(data))
