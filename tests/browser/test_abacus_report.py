"""The report of edits in a real browser: order, filters, verdicts, an enlarged strip, a phone."""

from __future__ import annotations

import pytest

from tallymill import abacus

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def report(tmp_path_factory, abacus_models):
    del abacus_models
    root = tmp_path_factory.mktemp("abacus")
    made = abacus.example(root / "DATA", laps=1)
    abacus.score(made.manifest, root / "RUN", panoptic=made.panoptic, resamples=50)
    abacus.report(root / "RUN", root / "report.html", resamples=50)
    return root / "report.html"


def scores(tab):
    shown = tab.locator(".card:not([hidden])")
    return [float(card.get_attribute("data-score")) for card in shown.all()]


def test_edits_are_sorted_and_chosen(report, opened):
    tab = opened(report, viewport=DESK).tab
    assert scores(tab) == sorted(scores(tab))
    assert len(scores(tab)) == 12
    tab.select_option("select[name=sort]", "score down")
    assert scores(tab) == sorted(scores(tab), reverse=True)
    tab.select_option("select[name=failure]", "elsewhere")
    assert tab.locator(".gallery output").inner_text() == "2 of 12 edits"
    assert scores(tab) == sorted(scores(tab), reverse=True)
    tab.select_option("select[name=operation]", "change")
    assert tab.locator(".gallery output").inner_text() == "1 of 12 edits"
    tab.select_option("select[name=failure]", "")
    tab.select_option("select[name=operation]", "")
    tab.select_option("select[name=sort]", "")
    assert scores(tab) == sorted(scores(tab))


def test_verdicts_can_be_hidden_and_strips_enlarged(report, opened):
    tab = opened(report, viewport=DESK).tab
    added = tab.locator('.card [data-layer="added"]')
    assert added.first.is_visible()
    tab.uncheck('input[data-detector="added"]')
    assert not any(layer.is_visible() for layer in added.all())
    tab.locator("button.frame").first.click()
    assert tab.locator("dialog .panel").count() == 5
    first = tab.locator("dialog .id").inner_text()
    tab.locator("dialog .next").click()
    assert tab.locator("dialog .id").inner_text() != first
    tab.locator("dialog .close").click()
    assert not tab.locator("dialog").is_visible()


def test_a_phone_does_not_scroll_sideways(report, opened):
    tab = opened(report, viewport=PHONE).tab
    assert tab.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
