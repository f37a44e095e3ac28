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
from dataclasses import dataclass

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image
from PIL.AvifImagePlugin import AvifImageFile
from PIL.BmpImagePlugin import BmpImageFile
from PIL.GifImagePlugin import GifImageFile
from PIL.ImageFile import ImageFile
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.TiffImagePlugin import TiffImageFile
from PIL.WebPImagePlugin import WebPImageFile

from tallymill.errors import ImageError

RGB = NDArray[np.uint8]

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

_ORIENTATION_TAG = 0x0112
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


@dataclass(slots=True)
class _JpegHeader:
    width: int = 0
    height: int = 0
    components: int = 0
    orientation: int = 1
    profile: bool = False  # an ICC profile is present
    scan: int = 0  # where the first scan starts


def _decode_jpeg(data: bytes, max_pixels: int) -> RGB:
    header = _jpeg_header(data)
    _check_size(header.width, header.height, max_pixels)
    if header.profile:
        # libjpeg treats a garbled profile as corrupt data; without it the pixels are the same.
        data = _without_metadata(data, header.scan)
    space = "CMYK" if header.components == 4 else "RGB"
    try:
        pixels = simplejpeg.decode_jpeg(data, space)
    except ValueError as error:
        # simplejpeg reads only the usual chroma subsamplings; libjpeg, by way of Pillow, reads all.
        if "subsampling" not in str(error):
            raise
        bare = io.BytesIO(_without_metadata(data, header.scan))  # Pillow warns about odd EXIF
        return _upright(_to_rgb(JpegImageFile(bare)), header.orientation)
    if space == "CMYK":
        ink = Image.frombytes("CMYK", (header.width, header.height), (~pixels).tobytes())
        pixels = np.asarray(ink.convert("RGB"))
    return _upright(pixels, header.orientation)


def _jpeg_header(data: bytes) -> _JpegHeader:
    header = _JpegHeader()
    for marker, start, end in _jpeg_segments(data):
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            header.height, header.width, header.components = struct.unpack_from(">xHHB", data, start)
        elif marker == 0xE1 and data[start : start + 6] == b"Exif\0\0":
            header.orientation = _exif_orientation(data[start:end])
        elif marker == 0xE2 and data[start : start + 12] == b"ICC_PROFILE\0":
            header.profile = True
        elif marker == 0xDA:
            header.scan = start - 4
            return header
    raise ImageError("the file is cut short (no pixels after the JPEG header)")


def _jpeg_segments(data: bytes) -> list[tuple[int, int, int]]:
    """Marker, start and end of the payload of each segment up to the first scan."""
    segments = []
    at = 2
    while at + 4 <= len(data):
        if data[at] != 0xFF:
            raise ImageError(f"the file is corrupt (no JPEG marker at byte {at})")
        marker = data[at + 1]
        if marker == 0xFF or marker == 0x01 or 0xD0 <= marker <= 0xD7:  # a fill byte, or a marker without payload
            at += 1 if marker == 0xFF else 2
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        segments.append((marker, at + 4, end))
        if marker in (0xD9, 0xDA):
            break
        at = end
    return segments


def _without_metadata(data: bytes, scan: int) -> bytes:
    """The same file without comments and application segments, but for those that say how colours are stored."""
    kept = [data[:2]]
    for marker, start, end in _jpeg_segments(data)[:-1]:
        if marker in (0xE0, 0xEE) or not (0xE0 <= marker <= 0xEF or marker == 0xFE):
            kept.append(data[start - 4 : end])
    return b"".join([*kept, data[scan:]])


def _exif_orientation(exif: bytes) -> int:
    """The orientation (1 to 8) that an EXIF block states; 1 where it states none or makes no sense."""
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II": "<", b"MM": ">"}.get(tiff[:2])
    if order is None or len(tiff) < 8:
        return 1
    (ifd,) = struct.unpack_from(order + "I", tiff, 4)
    if ifd + 2 > len(tiff):
        return 1
    (entries,) = struct.unpack_from(order + "H", tiff, ifd)
    for at in range(ifd + 2, min(ifd + 2 + 12 * entries, len(tiff) - 11), 12):
        tag, kind = struct.unpack_from(order + "HH", tiff, at)
        if tag == _ORIENTATION_TAG:
            (value,) = struct.unpack_from(order + ("I" if kind == 4 else "H"), tiff, at + 8)
            return value if 1 <= value <= 8 else 1
    return 1


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
            orientation = _exif_orientation(data[at + 8 : end - 4])
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
        return _upright(_to_rgb(image), _exif_orientation(exif))


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
