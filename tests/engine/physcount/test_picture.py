"""What a model is sent of an image file."""

from __future__ import annotations

import base64
import io

import numpy as np
import pytest
from PIL import Image

from tallymill.engine.images import decode
from tallymill.engine.physcount.picture import fitted, to_send
from tallymill.errors import ImageError


def opened(picture):
    with Image.open(io.BytesIO(picture.data)) as image:
        return image.format, np.asarray(image.convert("RGB"))


@pytest.fixture(scope="module")
def scene():
    return np.random.default_rng(0).integers(0, 255, (40, 60, 3), np.uint8)


def encoded(pixels, kind, **options):
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.parametrize(("kind", "mime"), [("JPEG", "jpeg"), ("PNG", "png"), ("WebP", "webp"), ("GIF", "gif")])
def test_a_plain_file_goes_as_it_is(scene, kind, mime):
    data = encoded(scene, kind)
    picture = to_send(data)
    assert (picture.data, picture.mime, picture.original) == (data, f"image/{mime}", True)
    assert (picture.width, picture.height) == (60, 40)
    assert picture.data_url() == f"data:image/{mime};base64,{base64.b64encode(data).decode()}".encode()
    assert to_send(data, long_edge=60).data == data


@pytest.mark.parametrize("kind", ["BMP", "TIFF", "AVIF"])
def test_other_formats_go_as_png(scene, kind):
    data = encoded(scene, kind)
    picture = to_send(data)
    assert (picture.mime, picture.original) == ("image/png", False)
    kind, pixels = opened(picture)
    assert kind == "PNG"
    assert np.array_equal(pixels, decode(data))


def test_a_large_image_is_made_smaller_by_lanczos(scene):
    picture = to_send(encoded(scene, "PNG"), long_edge=30)
    assert (picture.mime, picture.width, picture.height, picture.original) == ("image/png", 30, 20, False)
    expected = Image.fromarray(scene).resize((30, 20), Image.Resampling.LANCZOS)
    assert np.array_equal(opened(picture)[1], np.asarray(expected))


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("kind", ["JPEG", "PNG", "WebP"])
def test_an_image_that_lies_on_its_side_is_sent_upright(scene, kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    data = encoded(scene, kind, exif=exif)
    picture = to_send(data)
    assert picture.original == (orientation == 1)
    if orientation > 1:
        assert opened(picture)[0] == "PNG"
        assert np.array_equal(opened(picture)[1], decode(data))
    assert (picture.width, picture.height) == ((40, 60) if orientation > 4 else (60, 40))


@pytest.mark.parametrize("kind", ["PNG", "GIF", "WebP"])
def test_of_an_animation_the_first_frame_is_sent(scene, kind):
    data = encoded(scene, kind, save_all=True, append_images=[Image.fromarray(255 - scene)])
    picture = to_send(data)
    assert (picture.mime, picture.original) == ("image/png", False)
    assert np.array_equal(opened(picture)[1], decode(data))


def test_sixteen_bits_and_cmyk_go_as_png(scene):
    deep = np.arange(40 * 60, dtype=np.uint16).reshape(40, 60) * 27
    cmyk = io.BytesIO()
    Image.fromarray(scene).convert("CMYK").save(cmyk, "JPEG")
    for data in (encoded(deep, "PNG"), cmyk.getvalue()):
        picture = to_send(data)
        assert (picture.mime, picture.original) == ("image/png", False)
        assert np.array_equal(opened(picture)[1], decode(data))


def with_alpha(scene, kind, **options):
    alpha = np.full((*scene.shape[:2], 1), 90, np.uint8)
    alpha[:20] = 255
    return encoded(np.concatenate([scene, alpha], axis=2), kind, **options)


def saved(image, kind, **options):
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


TRANSPARENT = {
    "PNG, RGBA": lambda scene: with_alpha(scene, "PNG"),
    "PNG, gray": lambda scene: saved(Image.fromarray(scene).convert("LA"), "PNG"),
    "PNG, palette": lambda scene: saved(Image.fromarray(scene).quantize(64), "PNG", transparency=3),
    "PNG, one colour": lambda scene: saved(Image.fromarray(scene), "PNG", transparency=(1, 2, 3)),
    "WebP, lossy": lambda scene: with_alpha(scene, "WebP"),
    "WebP, lossless": lambda scene: with_alpha(scene, "WebP", lossless=True),
    "GIF": lambda scene: saved(Image.fromarray(scene).quantize(64), "GIF", transparency=3),
}


@pytest.mark.parametrize("kind", TRANSPARENT)
def test_what_is_transparent_goes_without_it(scene, kind):
    """Servers blend with white, with black, or not at all."""
    data = TRANSPARENT[kind](scene)
    picture = to_send(data)
    assert (picture.mime, picture.original) == ("image/png", False)
    with Image.open(io.BytesIO(picture.data)) as image:
        assert image.mode == "RGB"
    assert np.array_equal(opened(picture)[1], decode(data))


def test_lossless_webp_without_alpha_goes_as_it_is(scene):
    assert to_send(encoded(scene, "WebP", lossless=True)).original


def test_every_odd_file_is_sent_or_an_error(odd_images):
    for name, (data, expected) in odd_images.items():
        if not expected.good:
            with pytest.raises(ImageError):
                to_send(data)
            continue
        picture = to_send(data)
        if picture.original:
            assert picture.data == data, name
        else:
            assert np.array_equal(opened(picture)[1], decode(data)), name


@pytest.mark.parametrize(
    ("size", "edge", "result"),
    [
        ((100, 50), 100, (100, 50)),
        ((10, 5), 100, (10, 5)),
        ((200, 100), 100, (100, 50)),
        ((100, 200), 100, (50, 100)),
        ((4097, 1), 4096, (4096, 1)),
        ((10_000, 3), 100, (100, 1)),
        ((5, 3), 3, (3, 2)),
        ((4, 1), 2, (2, 1)),  # a half is rounded up
        ((6000, 4000), 4096, (4096, 2731)),
    ],
)
def test_sizes(size, edge, result):
    assert fitted(*size, edge) == result
