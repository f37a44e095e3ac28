"""Lines and tables as a terminal shows them."""

import io

import pytest
from rich.console import Console

from tallymill.runners import console


@pytest.fixture
def shown(monkeypatch):
    """What is printed to a terminal of 30 columns."""
    file = io.StringIO()
    monkeypatch.setattr(console, "out", Console(file=file, width=30, highlight=False, emoji=False))
    return lambda: file.getvalue()


def test_a_line_with_a_long_path_stays_one_line(shown):
    path = "/models/" + "[red]long/" * 20
    console.tell(path)
    console.tell_notes([path, "second"])
    assert shown().splitlines() == [path, f"note: {path}", "note: second"]


def test_words_of_a_table_are_folded_and_not_cut(shown):
    table = console.columns(["[b]name"], ["cw-NPS"])
    table.add_row("x" * 60, "0.5")
    console.out.print(table)
    assert shown().count("x") == 60
    assert "[b]name" in shown()
    assert "…" not in shown()
