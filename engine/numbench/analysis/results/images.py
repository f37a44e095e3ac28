"""Tables of what images there are, and of what became of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SystemRow:
    """One system: its RUN, and what it has images of.

    ``items`` = ``scored`` + ``error`` + ``uncovered``. ``samples_least`` and ``_most``: images a prompt.
    ``prompts_missing``: prompts that have no image of this system, of those that another system or the prompts file has
    (``items_without_prompt`` are images that name no prompt; they make a core of their own each).
    ``not_1024``: images that are not 1024 x 1024, unreadable ones left aside.
    """

    system: str
    run: str
    items: int
    scored: int
    error: int
    uncovered: int
    prompts: int
    cores: int
    samples_least: int
    samples_most: int
    prompts_missing: int
    items_without_prompt: int
    not_1024: int


@dataclass(frozen=True, slots=True)
class Saturation:
    """What one detector did on a system's images. ``saturated``: it returned as many boxes as it can."""

    system: str
    detector: str
    items: int
    failed: int
    saturated: int
    proposals: int


@dataclass(frozen=True, slots=True)
class Coverage:
    """Scored images by D of equations 5 and 8: the number of detectors that cover the category, of an image the least.

    Where D differs between images, so does what their counts are means of.
    """

    system: str
    composition: str
    detectors: int
    scored: int


@dataclass(frozen=True, slots=True)
class Uncovered:
    """A category that no detector of the ensemble knows, with the number of a system's images that asked for it."""

    system: str
    category: str
    items: int


@dataclass(frozen=True, slots=True)
class Failure:
    """Why images have no score: an error text, how many of a system's images it struck, and the least of their ids."""

    system: str
    reason: str
    items: int
    first_item: str
