"""Tables in a narrow terminal: no number is cut, whatever the width."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from tallymill.engine.report.tables import Table
from tallymill.runners import console
from tallymill.runners.fitting import blocks

NUMBERS = ["model", "mode", *(f"{letter}-{kind}" for letter in "AEIC" for kind in ("MAE", "NAE")), "Score", "Group-Acc"]


def table(rows: int, name: str = "some/model-{}") -> Table:
    values = [f"{10 * place + 0.123:.3f} [1.001, {place}9.002]" for place in range(len(NUMBERS) - 2)]
    return Table("T", NUMBERS, [[name.format(k), "independent", *values] for k in range(rows)], text=2, note="A note.")


@pytest.fixture
def shown(monkeypatch):
    def show(given: Table, width: int, **options: bool) -> str:
        file = io.StringIO()
        monkeypatch.setattr(console, "out", Console(file=file, width=width, highlight=False, emoji=False))
        console.show_table(given, **options)
        return file.getvalue()

    return show


@pytest.mark.parametrize("width", [60, 80, 100, 160, 240, 400])
@pytest.mark.parametrize("rows", [1, 3, 7])
def test_every_number_is_there_in_whole(shown, width, rows):
    given = table(rows)
    text = shown(given, width)
    assert "…" not in text
    assert max(map(len, text.splitlines())) <= width
    wanted = [number for row in given.rows for cell in row[2:] for number in re.findall(r"[\d.]+", cell)]
    assert sorted(n for n in re.findall(r"[\d]+[.]\d+", text)) == sorted(wanted)
    assert text.count("A note.") == 1


def test_columns_become_rows_where_the_table_is_too_wide():
    (whole,) = blocks(table(2), 400)
    assert whole.columns == NUMBERS
    (below,) = blocks(table(2), 240)
    assert (below.columns, below.rows[0][2]) == (NUMBERS, "0.123\n[1.001, 09.002]")
    first, second = blocks(table(5), 80)
    assert first.columns[:3] == ["", "some/model-0, independent", "some/model-1, independent"]
    assert len(first.columns) + len(second.columns) == 5 + 2
    assert [row[0] for row in first.rows] == NUMBERS[2:]


def test_long_names_leave_room_for_numbers(shown):
    text = shown(Table("T", ["model", "Score"], [["x" * 300, "50.47 [21.88, 100.00]"]]), 80)
    assert text.count("x") == 300
    assert "50.47 [21.88, 100.00]" in text


def test_a_comparison_of_long_names_keeps_its_rows(shown):
    names = [f"/a/long/path/of/a/RUN/{letter * 20}" for letter in "ab"]
    rows = [[metric, "50.47", "40.21", "+10.26 [-19.92, +17.00]", "8; 6"] for metric in ("Score", "Phys-Gnd")]
    (block,) = blocks(Table("T", ["metric", *names, "difference", "groups"], rows), 80)
    assert block.columns[0] == "metric"
    assert "…" not in shown(Table("T", ["metric", *names, "difference", "groups"], rows), 80)


def test_a_table_without_rows(shown):
    assert "model" in shown(Table("T", ["model", "Score"], []), 80)
