"""Image files to RGB arrays, under one policy for every odd file.

The format is found by content, never by name. The first frame is taken, EXIF orientation is applied, alpha is dropped
(not blended), samples of 16 bits become ``v >> 8``, CMYK is read as Adobe writes it (inverted), and ICC profiles are
ignored. A file that is cut short, corrupt or too large is an ``ImageError`` with the reason in plain words.

JPEG, by far the commonest, goes through simplejpeg, which alone among the usual decoders reports corrupt data in the
middle of a file. Everything else goes through Pillow's format classes. They are called directly because ``Image.open``
answers large images with a process-wide limit and a warning, where we want a limit of each call and an error.
"""

from __future__ import annotations

import io
import struct
import threading
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import cv2
import numpy as np
from PIL import Image
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from tallymill.engine import jpeg
from tallymill.engine.jpeg import RGB, exif_orientation
from tallymill.errors import ImageError

MAX_PIXELS = 178_000_000

# What Pillow's format classes raise on files that are not as they should be.
_DECODER_ERRORS = (
    Image.DecompressionBombError,
    ArithmeticError,
    AttributeError,
    EOFError,
    LookupError,
    MemoryError,
    OSError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
    struct.error,
    zlib.error,
)

_PNG_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PIXEL_CHUNKS = (b"IHDR", b"PLTE", b"IDAT", b"IEND")

_STARTS = {
    b"\xff\xd8\xff": "JPEG",
    _PNG_SIGNATURE: "PNG",
    b"GIF87a": "GIF",
    b"GIF89a": "GIF",
    b"BM": "BMP",
    b"II*\0": "TIFF",
    b"MM\0*": "TIFF",
    b"II+\0": "TIFF",  # BigTIFF
    b"MM\0+": "TIFF",
}
_PILLOW: dict[str, type[ImageFile]] = {
    "AVIF": AvifImageFile,
    "BMP": BmpImageFile,
    "GIF": GifImageFile,
    "TIFF": TiffImageFile,
    "WebP": WebPImageFile,
}

# Pillow warns about odd metadata in these formats, and warning filters belong to the whole process: they are changed
# by one thread at a time, and put back. (AVIF loses nothing by it: its decoder uses all cores for one image.)
_WARNS = (AvifImageFile, GifImageFile, TiffImageFile)
_WARNING_LOCK = threading.Lock()


def decode(data: bytes, *, max_pixels: int = MAX_PIXELS) -> RGB:
    """Decode one image file.

    Args:
        data: the bytes of a JPEG, PNG, GIF, WebP, BMP, TIFF or AVIF file.
        max_pixels: a file whose header declares more pixels (width x height) is refused before it is decoded.

    Returns:
        RGB, uint8 [H, W, 3], C-contiguous, upright (EXIF orientation applied). It may be read-only.

    Raises:
        ImageError: empty, no image, of an unknown format, cut short, corrupt, or above ``max_pixels``.
    """
    kind = _format(data)
    try:
        if kind == "JPEG":
            return _decode_jpeg(data, max_pixels)
        if kind == "PNG":
            return _decode_png(data, max_pixels)
        if kind is not None:
            return _decode_by(_PILLOW[kind], data, max_pixels)
    except _DECODER_ERRORS as error:
        raise ImageError(_plain(error)) from error
    raise ImageError(_why_no_image(data))


def _format(data: bytes) -> str | None:
    head = data[:64]
    for start, kind in _STARTS.items():
        if head.startswith(start):
            return kind
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "WebP"
    # The brands of the first box: a still AVIF may name itself by its second brand only.
    if head[4:8] == b"ftyp" and (b"avif" in head[8:] or b"avis" in head[8:]):
        return "AVIF"
    return None


def _why_no_image(data: bytes) -> str:
    if not data:
        return "the file is empty"
    head = bytes(data[:512]).lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if head.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "not an image: the file is an HTML page"
    if head.startswith(b"version https://git-lfs"):
        return "not an image: the file is a Git LFS pointer"
    if not any(data):
        return "not an image: the file holds zeros only"
    if _PNG_SIGNATURE.startswith(data[:8]) or b"\xff\xd8\xff".startswith(data[:3]):
        return "the file is cut short"
    return "not an image of a format that is read (JPEG, PNG, GIF, WebP, BMP, TIFF, AVIF)"


def _plain(error: BaseException) -> str:
    text = str(error) or type(error).__name__
    cut = ("premature end", "truncated", "unexpected end", "not enough", "bytes not processed")
    if isinstance(error, EOFError) or any(mark in text.lower() for mark in cut):
        return f"the file is cut short ({text})"
    return f"the file is corrupt or of an unsupported kind ({text})"


def _check_size(width: int, height: int, max_pixels: int) -> None:
    if width < 1 or height < 1:
        raise ImageError(f"the header declares {width}x{height} pixels")
    if width * height > max_pixels:
        raise ImageError(
            f"the header declares {width}x{height} pixels, above the limit of {max_pixels}",
            hint="the setting max_pixels raises the limit",
        )


# JPEG


def _decode_jpeg(data: bytes, max_pixels: int) -> RGB:
    header = jpeg.read_header(data)
    _check_size(header.width, header.height, max_pixels)
    pixels = jpeg.decode(data, header)
    if pixels is None:  # Pillow reads all subsamplings, but warns about odd EXIF
        pixels = _to_rgb(JpegImageFile(io.BytesIO(jpeg.without_metadata(data, header.scan))))
    return _upright(pixels, header.orientation)


def _upright(pixels: RGB, orientation: int) -> RGB:
    if orientation == 1:
        return pixels
    if orientation >= 5:
        pixels = np.asarray(cv2.transpose(pixels), np.uint8)
    # What remains after the transposition: OpenCV's flip code, 0 upside down, 1 left to right, -1 both.
    flip = {2: 1, 3: -1, 4: 0, 6: 1, 7: -1, 8: 0}.get(orientation)
    return pixels if flip is None else np.asarray(cv2.flip(pixels, flip), np.uint8)


# PNG


def _decode_png(data: bytes, max_pixels: int) -> RGB:
    """Hand on nothing but the chunks that make pixels: frames, profiles and texts can then do no harm."""
    kept, orientation, ended = [_PNG_SIGNATURE], 1, False
    at = len(_PNG_SIGNATURE)
    while at + 12 <= len(data) and not ended:
        (length,) = struct.unpack_from(">I", data, at)
        kind, end = data[at + 4 : at + 8], at + 12 + length
        if end > len(data):
            break
        if kind == b"IHDR":
            width, height = struct.unpack_from(">II", data, at + 8)
            _check_size(width, height, max_pixels)
        elif kind == b"eXIf":
            orientation = exif_orientation(data[at + 8 : end - 4])
        if kind in _PIXEL_CHUNKS:
            if zlib.crc32(data[at + 4 : end - 4]) != int.from_bytes(data[end - 4 : end], "big"):
                raise ImageError(f"the file is corrupt (checksum of the PNG chunk at byte {at})")
            kept.append(data[at:end])
        ended = kind == b"IEND"
        at = end
    if not ended:
        raise ImageError("the file is cut short (a PNG without its end)")
    return _upright(_to_rgb(PngImageFile(io.BytesIO(b"".join(kept)))), orientation)


# Everything else


def _decode_by(kind: type[ImageFile], data: bytes, max_pixels: int) -> RGB:
    if kind is WebPImageFile and int.from_bytes(data[4:8], "little") + 8 > len(data):
        raise ImageError("the file is cut short (a WebP file shorter than it declares)")
    with _quiet() if kind in _WARNS else nullcontext(), kind(io.BytesIO(data)) as image:
        width, height = image.size
        _check_size(width, height, max_pixels)
        # Pillow turns a TIFF upright itself, and its AVIF class states the container's rotation as EXIF.
        exif = b"" if kind is TiffImageFile else image.info.get("exif", b"")
        return _upright(_to_rgb(image), exif_orientation(exif))


@contextmanager
def _quiet() -> Iterator[None]:
    with _WARNING_LOCK, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _to_rgb(image: ImageFile) -> RGB:
    image.load()
    if image.mode.startswith("I;16"):
        return _from_16_bits(image)
    if image.mode in ("RGBa", "La"):
        return np.asarray(image.convert(image.mode.upper()).convert("RGB"))
    if image.mode not in ("1", "L", "LA", "P", "PA", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr"):
        raise ImageError(f"pixels of mode {image.mode} (signed, 32-bit or Lab) have no agreed range of colours")
    # Pillow warns about a transparent palette, and transparency is dropped in any case.
    image.info.pop("transparency", None)
    return np.asarray(image if image.mode == "RGB" else image.convert("RGB"))


def _from_16_bits(image: ImageFile) -> RGB:
    samples = np.asarray(image)
    bits, white_is_zero = 16, False
    if isinstance(image, TiffImageFile):
        bits = image.tag_v2.get(258, (16,))[0]
        white_is_zero = image.tag_v2.get(262) == 0
    gray = (samples >> (bits - 8)).astype(np.uint8)
    return np.asarray(cv2.cvtColor(~gray if white_is_zero else gray, cv2.COLOR_GRAY2RGB), np.uint8)
