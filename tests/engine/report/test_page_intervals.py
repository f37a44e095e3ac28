"""What the page says about intervals, and where there are none."""

from __future__ import annotations

import dataclasses
import re

import pytest

from tallymill.engine.estimates import Estimate
from tallymill.engine.report import page
from tallymill.engine.report.page import render


def plain(html):
    """The words, with a space after each cell of a table."""
    html = re.sub(r"</t[dh]>", " ", html)
    return " ".join(re.sub(r"<(script|style)>.*?</\1>|<[^>]+>", "", html, flags=re.S).split())


@pytest.fixture(scope="module")
def words(page_of):
    return plain(render(page_of()))


def test_systems_are_told_apart_by_intervals_without_0(words, page_of, analysis_of):
    assert "beta − alpha all all +.050 +.030 to +.070 −.050 −.070 to −.030 50, 48, 48" in words
    assert "An interval that holds 0 does not tell the two systems apart;" in words
    assert "between systems that do not differ, about one interval in twenty leaves 0 out by chance." in words
    assert "Differences between systems" not in plain(render(page_of(analysis=analysis_of(("alpha",), differences=[]))))


def test_shares_have_their_intervals(words):
    assert "17 % 15 %–19 %" in words  # no error: 8 of 48
    assert "83 % 81 %–85 %" in words  # under: 40 of 48
    assert "−3.5 −3.5 to −3.5" in words


def test_the_ensemble_over_a_detector_s_images_is_told_where_these_are_fewer(words, page_of, analysis_of):
    assert "over the very images of that detector" in words
    assert ".300 .280–.320ensemble .410 .390–.430" in words
    found = analysis_of()
    cells = {
        name: [dataclasses.replace(cell, single_scored=dict.fromkeys(cell.single_cw, cell.scored)) for cell in rows]
        for name, rows in (("overall", found.overall), ("cells", found.cells))
    }
    again = plain(render(page_of(analysis=dataclasses.replace(found, **cells))))
    assert "over the very images of that detector" not in again
    assert ".300 .280–.320 .300" in again


def test_points_of_too_few_cores_have_no_interval(words, page_of, analysis_of):
    assert "in a band of its 95 % interval" in words
    found = analysis_of()
    curve = [dataclasses.replace(p, cw_nps=Estimate(0.5), b_nps=Estimate(0.5)) for p in found.curve]
    assert "too few for an interval" in plain(render(page_of(analysis=dataclasses.replace(found, curve=curve))))
    many = analysis_of(tuple(f"system {k}" for k in range(14)))
    assert "bands of intervals would hide one another" in plain(render(page_of(analysis=many)))


@pytest.mark.parametrize(("number", "said"), [(12, False), (13, True)])
def test_figures_of_many_systems_say_which_they_show(page_of, analysis_of, number, said):
    many = analysis_of(tuple(f"system {k}" for k in range(number)))
    html = render(page_of(analysis=many))
    assert (f"Drawn are the first 12 of {number} systems" in plain(html)) == said
    assert html.count('<span class="unit">cw-NPS') == 12


def test_limits_of_systems_are_those_of_what_they_limit(page_of, analysis_of, monkeypatch):
    """What the head shows is one limit, how many are compared each with each another."""
    three = page_of(analysis=analysis_of(("a", "b", "c")))
    sentences = "The tables below have all 3 systems.", "of so many systems each is compared with the first."

    def said(of):
        return [sentence in plain(render(of)) for sentence in sentences]

    assert said(three) == [False, False]
    monkeypatch.setattr(page, "MOST_SYSTEMS", 2)
    assert said(three) == [True, False]
    assert render(three).count('<span class="unit">cw-NPS') == 2
    monkeypatch.setattr(page, "MOST_COMPARED", 2)
    assert said(three) == [True, True]
