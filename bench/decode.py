"""Decoding of photographs: our ``decode`` beside Pillow and OpenCV, in one process, interleaved."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from statistics import median

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray
from PIL import Image

from tallymill.engine.images import decode
from tallymill.errors import TallymillError, UsageError

RGB = NDArray[np.uint8]
SIDE = 1024
QUALITY = 90

# Decoders of the same JPEG differ by rounding only; anything above is a different picture.
AGREEMENT = 1.0


def run(images: int = 60, repeats: int = 5) -> dict[str, object]:
    """Time the decoders on ``images`` photographs of 1024x1024 pixels (JPEG, quality 90).

    Each repeat times every decoder once on all photographs, in rotating order. Returns the medians in images a second
    (``images_per_s``) and the medians of the ratios of ours to each peer within one repeat (``ratio``). One thread.

    Raises:
        UsageError: nothing to time.
        TallymillError: the decoders do not agree, so that times would compare nothing.
    """
    if images < 1 or repeats < 1:
        raise UsageError(f"images={images}, repeats={repeats}: both must be positive")
    files = photographs(images)
    decoders: dict[str, Callable[[bytes], RGB]] = {"tallymill": decode, "pillow": _pillow, "opencv": _opencv}
    _agree(files, decoders)
    rates: dict[str, list[float]] = {name: [] for name in decoders}
    names = list(decoders)
    for repeat in range(repeats):
        for turn in range(len(names)):
            name = names[(repeat + turn) % len(names)]
            rates[name].append(_rate(decoders[name], files))
    ours = rates["tallymill"]
    return {
        "bench": "decode",
        "images": images,
        "repeats": repeats,
        "side": SIDE,
        "quality": QUALITY,
        "mean_bytes": sum(map(len, files)) // len(files),
        "images_per_s": {name: round(median(rate), 1) for name, rate in rates.items()},
        "ratio": {name: round(median(a / b for a, b in zip(ours, rates[name], strict=True)), 3) for name in names[1:]},
    }


def table(result: dict[str, object]) -> str:
    """The result of ``run`` for reading."""
    rates, ratios = result["images_per_s"], result["ratio"]
    assert isinstance(rates, dict)
    assert isinstance(ratios, dict)
    lines = [f"{'decoder':<12}{'images/s':>10}{'ours/peer':>11}"]
    for name, rate in rates.items():
        lines.append(f"{name:<12}{rate:>10.1f}" + (f"{ratios[name]:>11.2f}" if name in ratios else ""))
    return "\n".join(lines)


def photographs(images: int) -> list[bytes]:
    """JPEG files of square crops, different in place and size, of three photographs that scikit-image ships."""
    from skimage import data

    sources = [getattr(data, name)() for name in ("astronaut", "coffee", "chelsea")]
    rng = np.random.default_rng(0)
    files = []
    for number in range(images):
        source = sources[number % len(sources)]
        side = int(rng.integers(200, min(source.shape[:2]) + 1))
        top, left = (int(rng.integers(0, extent - side + 1)) for extent in source.shape[:2])
        crop = np.ascontiguousarray(source[top : top + side, left : left + side])
        picture = cv2.resize(crop, (SIDE, SIDE), interpolation=cv2.INTER_CUBIC)
        files.append(simplejpeg.encode_jpeg(picture, QUALITY, colorsubsampling="420"))
    return files


def _pillow(data: bytes) -> RGB:
    return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))


def _opencv(data: bytes) -> RGB:
    bgr = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
    return np.asarray(cv2.cvtColor(np.asarray(bgr), cv2.COLOR_BGR2RGB), np.uint8)


def _agree(files: list[bytes], decoders: dict[str, Callable[[bytes], RGB]]) -> None:
    for number, data in enumerate(files):
        ours = decoders["tallymill"](data).astype(np.int16)
        for name, decoder in decoders.items():
            theirs = decoder(data)
            if theirs.shape != ours.shape or np.abs(ours - theirs).mean() > AGREEMENT:
                raise TallymillError(f"photograph {number}: {name} and tallymill decode it to different pixels")


def _rate(decoder: Callable[[bytes], RGB], files: list[bytes]) -> float:
    start = time.perf_counter()
    for data in files:
        decoder(data)
    return len(files) / (time.perf_counter() - start)
