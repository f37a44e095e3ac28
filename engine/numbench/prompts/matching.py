"""One-to-one assignment of rows to places, each place with room for several rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

NOBODY = -1


def assign(choices: Sequence[Sequence[int]], room: Sequence[int]) -> list[int]:
    """A place for each row, so that as many rows as possible have one: ``NOBODY`` for a row that gets none.

    ``choices[i]`` lists the places that row i may take, the preferred ones first; ``room[p]`` is how many rows place p
    holds. Augmenting paths, breadth first; rows keep their order, so that the same input gives the same answer.
    """
    place = [NOBODY] * len(choices)
    held: list[list[int]] = [[] for _ in room]
    for row in range(len(choices)):
        _augment(row, choices, room, place, held)
    return place


def _augment(
    row: int, choices: Sequence[Sequence[int]], room: Sequence[int], place: list[int], held: list[list[int]]
) -> None:
    """Find ``row`` a place, moving others along a shortest path to one with room; without such a path do nothing."""
    came: dict[int, int] = {}  # place -> the row that would move there
    waiting = deque([row])
    while waiting:
        mover = waiting.popleft()
        for at in choices[mover]:
            if at in came:
                continue
            came[at] = mover
            if len(held[at]) < room[at]:
                _move_along(at, came, place, held)
                return
            waiting.extend(held[at])


def _move_along(at: int, came: dict[int, int], place: list[int], held: list[list[int]]) -> None:
    while at != NOBODY:
        mover = came[at]
        left = place[mover]
        if left != NOBODY:
            held[left].remove(mover)
        held[at].append(mover)
        place[mover], at = at, left
