"""The graphs of a model that has one for each size of image: which of them takes an image, and its session."""

from __future__ import annotations

from collections.abc import Sequence

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.buckets import Buckets, Size, name
from tallymill.engine.sessions.base import Session
from tallymill.errors import ModelError, OpenError

_LARGE = 512 * 512  # pixels


def images_a_call(pixels: int, device: str) -> int:
    """How many images of so many pixels one call takes: on the CPU large ones go alone, for each takes up to 3 GB while
    it is run, and together they are no faster.
    """
    return 1 if pixels > _LARGE and device == "cpu" else 4


def part_of(stem: str, size: Size) -> str:
    """The name of the part that takes images of a bucket: ``image-800x1333``."""
    return f"{stem}-{name(size)}"


class Graphs:
    """The parts ``STEM-HxW`` of a bundle, one a bucket, or its one part ``STEM`` that takes images of any size.

    ``buckets`` is None where there is the one. A part is opened when the first image comes that needs it, for each may
    hold all weights.
    """

    def __init__(
        self, bundle: Bundle, stem: str, sizes: Sequence[Size], *, threads: int = 1, any_size: bool = False
    ) -> None:
        """``sizes``: ``numbers.buckets`` of the bundle; with ``any_size``, none are the one part that takes all.

        Raises ``ModelError`` when they are no sizes.
        """
        try:
            self.buckets = None if any_size and not sizes else Buckets(sizes)
        except ValueError as exc:
            raise bundle.error(f"numbers.buckets: {exc}") from None
        self._bundle, self._stem, self._threads = bundle, stem, threads
        self._sessions: dict[str, Session] = {}

    def frame(self, height: int, width: int) -> Size:
        """What a graph takes an image of this size in: the smallest bucket that holds it, or the image as it is.

        Raises ``ModelError`` when it is larger than each bucket.
        """
        return (height, width) if self.buckets is None else self.buckets.of(height, width)

    @property
    def batch(self) -> int:
        """See ``images_a_call``; of images of any size, as of large ones."""
        pixels = _LARGE + 1 if self.buckets is None else self.buckets.sizes[-1][0] * self.buckets.sizes[-1][1]
        return images_a_call(pixels, self._bundle.device)

    @property
    def first(self) -> Session:
        """The graph of the smallest bucket, or the one that there is. Raises ``ModelError`` when it cannot be opened:
        nothing has been asked of the model then.
        """
        return self._session(self._part((0, 0) if self.buckets is None else self.buckets.sizes[0]))

    def open_others(self) -> None:
        """Open each part once that is not open yet, and let it go again. Raises ``ModelError`` when one cannot be."""
        for part in [] if self.buckets is None else map(self._part, self.buckets.sizes):
            if part not in self._sessions:
                self._bundle.session(part, threads=self._threads)

    def of(self, frame: Size) -> Session:
        """The graph that takes a frame. Raises ``OpenError`` when the bundle has none, or it cannot be opened: an image
        needs it that has done nothing wrong, and so will the next.
        """
        try:
            return self._session(self._part(frame))
        except ModelError as exc:
            raise OpenError(exc.message, hint=exc.hint) from exc

    def _part(self, frame: Size) -> str:
        return self._stem if self.buckets is None else part_of(self._stem, frame)

    def _session(self, part: str) -> Session:
        if part not in self._sessions:
            self._sessions[part] = self._bundle.session(part, threads=self._threads)
        return self._sessions[part]
