"""Numbers with their nouns."""

from __future__ import annotations


def counted(number: int, one: str, several: str | None = None) -> str:
    """``1 image``, ``2 images``, ``1,000 boxes``."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"
