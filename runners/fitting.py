"""Tables that are as wide as a terminal at most, and in which no number is ever cut.

A table that is too wide gets its intervals below their values, then narrower words, and at last its columns as rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len

from tallymill.engine.report.tables import Table

# What a column takes beside its text, and a table beside its columns (``rich.box.SIMPLE_HEAD``).
_COLUMN, _TABLE = 3, 1
# Words are broken at this width, those above numbers at the next, rather than the table turned; names wrap at the last.
_LONGEST_WORD, _HEADING, _NAME = 24, 10, 12


@dataclass(frozen=True, slots=True)
class Block:
    """A table, or a part of one: the first ``text`` columns hold words, the others numbers of which none is cut."""

    columns: list[str]
    rows: list[list[str]]
    widths: list[int]
    text: int


def blocks(table: Table, width: int, *, stacked: bool = False) -> list[Block]:
    """The table in ``width`` characters. ``stacked``: the interval of a value stands below it in any case."""
    forms = [True] if stacked else [False, True]
    for below in forms:
        rows = [_cells(row, table.text, below=below) for row in table.rows]
        widths = _widths(table.columns, rows, table.text, width)
        if widths is not None:
            return [Block(table.columns, rows, widths, table.text)]
    return min((_turned(table, width, below=below) for below in forms), key=len)


def _cells(row: Sequence[str], text: int, *, below: bool) -> list[str]:
    """A row; with ``below`` what follows a number in brackets stands in a line of its own."""
    numbers = row[text:]
    return [*row[:text], *(cell.replace(" [", "\n[").replace(" (", "\n(") if below else cell for cell in numbers)]


def _widths(columns: Sequence[str], rows: Sequence[Sequence[str]], text: int, width: int) -> list[int] | None:
    """How wide each column is; None where even the least is too wide."""
    cells = [[row[place] for row in rows] for place in range(len(columns))]
    most = [max(map(_length, [name, *own])) for name, own in zip(columns, cells, strict=True)]
    least = (
        [
            min(most[place], max(_NAME, *map(_word, [name, *own])))
            if place < text
            else max(min(_word(name), _HEADING), *map(_length, own))
            for place, (name, own) in enumerate(zip(columns, cells, strict=True))
        ]
        if rows
        else most
    )
    left = width - _TABLE - sum(least) - _COLUMN * len(columns)
    if left < 0:
        return None
    for place, (now, wanted) in enumerate(zip(least, most, strict=True)):
        more = min(left, wanted - now)
        least[place], left = now + more, left - more
    return least


def _turned(table: Table, width: int, *, below: bool) -> list[Block]:
    """The columns of numbers as rows, and the rows as columns: as many in a block as fit, one at least."""
    names = table.columns[table.text :]
    first = max(map(_length, names), default=0)
    found: list[Block] = []
    left = 0
    for row in table.rows:
        head, own = ", ".join(row[: table.text]), _cells(row, table.text, below=below)[table.text :]
        wide = max(min(_length(head), _NAME), _word(head), *map(_length, own))
        if not found or wide + _COLUMN > left:
            found.append(Block([""], [[name] for name in names], [first], 1))
            left = width - _TABLE - first - _COLUMN
        left -= wide + _COLUMN
        found[-1].columns.append(head)
        found[-1].widths.append(wide)
        for cells, cell in zip(found[-1].rows, own, strict=True):
            cells.append(cell)
    return found


def _length(text: str) -> int:
    """The width of the longest line."""
    return max(map(cell_len, text.split("\n")))


def _word(text: str) -> int:
    """The width of the longest word, or that at which it is broken."""
    return min(_LONGEST_WORD, max(map(cell_len, text.split()), default=0))
