"""Numbers with their nouns, and lists that end."""

from __future__ import annotations

from collections.abc import Sequence


def counted(number: int, one: str, several: str | None = None) -> str:
    """``1 image``, ``2 images``, ``1,000 boxes``."""
    return f"{number:,} {one if number == 1 else several or one + 's'}"


def listed(names: Sequence[str], most: int, total: int | None = None) -> str:
    """``a, b, c and 1,000 more``: the first ``most`` of ``names``, of which there are ``total`` if not all are here."""
    shown = names[:most]
    more = (len(names) if total is None else total) - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")
