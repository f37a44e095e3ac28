import io
import warnings
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
import simplejpeg
from PIL import Image, ImageFile

from tallymill.engine import images
from tallymill.engine.images import decode
from tallymill.errors import ImageError


@pytest.fixture
def good(odd_images):
    return {name: data for name, (data, expectation) in odd_images.items() if expectation.good}


def outcome(data, **options):
    """The pixels, or the reason why there are none."""
    try:
        return decode(data, **options)
    except ImageError as error:
        return str(error)


def fault(data, expectation):
    result = outcome(data)
    if not expectation.good:
        if not isinstance(result, str):
            return "decoded"
        return None if expectation.reason in result else result
    if isinstance(result, str):
        return result
    if result.dtype != np.uint8 or result.shape != (*expectation.size, 3) or not result.flags.c_contiguous:
        return f"{result.dtype} {result.shape} {result.strides}"
    difference = np.abs(result.astype(int) - expectation.rgb).mean()
    return None if difference <= expectation.tolerance else f"off by {difference:.2f}"


def test_every_odd_file_shows_what_it_should_and_every_broken_one_says_why(odd_images):
    assert len(odd_images) > 100
    faults = {name: fault(*entry) for name, entry in odd_images.items()}
    assert {name: what for name, what in faults.items() if what} == {}


def test_a_checker_that_would_not_see_a_wrong_picture(odd_images):
    data, expectation = odd_images["exif_6.jpg"]
    assert fault(odd_images["exif_8.jpg"][0], expectation).startswith("off by")
    assert fault(data[:200], expectation) is not None
    assert fault(data, odd_images["cut.jpg"][1]) == "decoded"


def test_orientation_6_puts_a_red_top_left_corner_to_the_top_right(odd_images):
    data, _ = odd_images["exif_6.jpg"]
    stored = np.asarray(Image.open(io.BytesIO(data)))
    assert stored.shape == (20, 40, 3)
    assert stored[2, 2, 0] > 200 > stored[2, -3, 1]
    pixels = decode(data)
    assert pixels.shape == (40, 20, 3)
    red, others = pixels[2, -3], [pixels[2, 2], pixels[-3, 2], pixels[-3, -3]]
    assert red[0] > 200
    assert red[1] < 60
    assert all(other[1] > 30 and not (other[0] > 230 and other[1] < 60) for other in others)


def test_a_16_bit_ramp_keeps_all_256_levels(odd_images):
    pixels = decode(odd_images["ramp_16_bit.png"][0])
    np.testing.assert_array_equal(pixels, np.arange(256)[None, :, None].repeat(3, 2))


def test_garbage_after_the_end_and_further_frames_leave_the_pixels_as_they_were(odd_images):
    original = decode(odd_images["png_by_name_jpeg_by_content.png"][0])
    for name in ("garbage_after_the_end.jpg", "two_frames.mpo", "icc_garbage.jpg", "icc_wrong_sequence.jpg"):
        np.testing.assert_array_equal(decode(odd_images[name][0]), original, err_msg=name)


def test_cmyk_with_adobe_transform_0_and_2_is_the_same_colour(odd_images):
    files = [odd_images[f"cmyk_adobe_{n}.jpg"][0] for n in (0, 2)]
    assert [data[data.index(b"Adobe") + 11] for data in files] == [0, 2]
    first, second = (decode(data).astype(int) for data in files)
    assert np.abs(first - second).mean() < 2
    for data in files:
        np.testing.assert_array_equal(decode(data), np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))


def test_a_cut_image_between_two_good_ones_is_the_only_error(odd_images):
    files = [odd_images[name][0] for name in ("exif_1.jpg", "cut.jpg", "rgb.png")]
    kinds = [type(outcome(data)) for data in files]
    assert kinds == [np.ndarray, str, np.ndarray]


def test_common_jpegs_take_the_fast_path_and_agree_with_opencv(odd_images, monkeypatch):
    monkeypatch.setattr(images, "_to_rgb", lambda _: pytest.fail("the slow path"))
    for name in ("exif_1.jpg", "progressive.jpg", "subsampled.jpg", "gray.jpg", "exif_7.jpg"):
        data = odd_images[name][0]
        theirs = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR_RGB)
        assert np.abs(decode(data).astype(int) - theirs).mean() < 1, name


def test_the_odd_subsampling_is_one_that_simplejpeg_refuses(odd_images):
    with pytest.raises(ValueError, match="subsampling"):
        simplejpeg.decode_jpeg(odd_images["odd_subsampling.jpg"][0])


def test_corruption_that_other_decoders_pass_over_in_silence(odd_images):
    data = odd_images["corrupt.jpg"][0]
    assert cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR).shape == (64, 64, 3)
    with pytest.raises(ImageError, match="corrupt"):
        decode(data)


def test_the_pixel_limit_is_read_from_the_header_before_anything_is_decoded(odd_images, monkeypatch):
    pictures = {name: entry for name, entry in odd_images.items() if entry[1].good and entry[1].size[0] >= 20}
    assert len(pictures) > 60
    for data, expectation in pictures.values():
        pixels = expectation.size[0] * expectation.size[1]
        assert not isinstance(outcome(data, max_pixels=pixels), str)

    def never(*_, **__):
        pytest.fail("decoded")

    monkeypatch.setattr(simplejpeg, "decode_jpeg", never)
    monkeypatch.setattr(images, "_to_rgb", never)
    for name, (data, expectation) in pictures.items():
        height, width = expectation.size
        with pytest.raises(ImageError, match="above the limit of") as caught:
            decode(data, max_pixels=height * width - 1)
        assert "max_pixels" in caught.value.hint, name


def test_between_pillows_own_limits_and_ours_no_warning_escapes(odd_images):
    # 99 million pixels: Image.open warns about a bomb, which is an error here.
    small = odd_images["rgb.png"][0]
    wide = small[:8] + png_head(9900, 10000) + small[33:]
    with pytest.raises(Image.DecompressionBombWarning):
        Image.open(io.BytesIO(wide))
    with pytest.raises(ImageError, match="cut short"):
        decode(wide)


def png_head(width, height):
    from struct import pack
    from zlib import crc32

    body = b"IHDR" + pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return pack(">I", 13) + body + pack(">I", crc32(body))


@pytest.mark.parametrize("name", ["too_many_entries.tif", "animation_without_frames.png"])
def test_files_that_pillow_warns_about_are_read_without_a_warning(odd_images, name):
    data = odd_images[name][0]
    with pytest.raises(UserWarning):
        Image.open(io.BytesIO(data)).load()
    assert decode(data).shape == (20, 40, 3)


def test_threads_leave_the_process_as_it_was_and_get_the_same_pixels(good):
    before = Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters)
    alone = [decode(data) for data in good.values()]
    with ThreadPoolExecutor(8) as pool:
        together = [list(pool.map(decode, good.values())) for _ in range(3)]
    for result in together:
        for first, second in zip(alone, result, strict=True):
            np.testing.assert_array_equal(first, second)
    assert (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES, list(warnings.filters)) == before


def test_whatever_the_bytes_the_only_error_is_an_image_error(good):
    rng = np.random.default_rng(9)
    refused = 0
    for name, data in good.items():
        if name == "text_bomb.png":
            continue
        for trial in range(40):
            changed = bytearray(data)
            # One in three is cut; of the others, half are changed in the first 200 bytes, where headers are.
            if trial % 3 == 0:
                del changed[int(rng.integers(len(data))) :]
            for _ in range(1 + trial % 4 if trial % 3 else 0):
                changed[int(rng.integers(len(data) if trial % 2 else min(len(data), 200)))] = int(rng.integers(256))
            refused += isinstance(outcome(bytes(changed), max_pixels=1_000_000), str)
    assert refused > 1000


def test_the_error_says_what_the_decoder_said(odd_images):
    with pytest.raises(ImageError, match="Premature end of JPEG file") as caught:
        decode(odd_images["cut.jpg"][0])
    assert isinstance(caught.value.__cause__, ValueError)
