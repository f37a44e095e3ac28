"""Bootstrap over images: how often each resample takes each, and the sums of what images add."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def resampled_sums(sums: Floats, resamples: int) -> Floats:
    """What I images add to M sums, float64 [I, M] -> the sums of every resample of the images, [B, M]."""
    # einsum by itself calls no BLAS: its sums are the same with any number of threads.
    found: Floats = np.einsum("bi,im->bm", weights_of(len(sums), resamples), sums)
    return found


# All images, and those of each set of modes: as many numbers of images at most as are kept, for the next set of
# predictions to use again.
@lru_cache(maxsize=9)
def weights_of(images: int, resamples: int) -> Floats:
    """How often each resample takes each image, float64 [B, I]: resample b draws by ``default_rng([0, b])``."""
    drawn = (np.random.default_rng([0, b]).integers(0, images, images) for b in range(resamples))
    found = np.zeros((resamples, images))
    for row, places in zip(found, drawn, strict=True):
        row += np.bincount(places, minlength=images)
    found.setflags(write=False)
    return found
