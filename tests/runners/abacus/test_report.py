from __future__ import annotations

import re
import shutil

import cv2
import numpy as np
import pytest
from PIL import Image

from tallymill import abacus
from tallymill.errors import RunError, UsageError
from tallymill.runners.abacus import report as module

EDITS = (
    ("add 2 cats", (0, 1), (0, 1, 2, 3)),
    ("remove 1 cat", (0, 1, 2), (0, 1)),
    ("add 1 cat", (0, 1), (1, 2)),
    ("add 9 cats", (), (0,)),
)


@pytest.fixture
def run(tmp_path, suite, edits_file):
    names = ["<b>A</b>", "B", "B", "B"]
    abacus.score(edits_file(tmp_path, *EDITS, editor=names), tmp_path / "RUN", suite=suite, workers=0, resamples=0)
    return tmp_path / "RUN"


def cards_of(html):
    return re.findall(r'<figure class="card".*?</figure>', html, re.DOTALL)


def test_every_edit_has_its_strip(run, tmp_path):
    out = tmp_path / "r.html"
    written = abacus.report(run, out, resamples=0)
    assert (written.edits, written.scored, written.shown, written.gone) == (4, 4, 4, 0)
    html = out.read_text()
    assert len(html.encode()) == written.bytes
    cards = cards_of(html)
    assert [re.search(r'data-failure="([^"]*)"', card)[1] for card in cards] == [
        "undershoot",
        "overwritten",
        "none",
        "none",
    ]
    for card in cards:
        assert re.findall(r'class="cap">(\w+)<', card) == ["source", "edited", "matched", "clean", "verdicts"]
        assert card.count("data:image/webp;base64,") == 5
    assert "2 of 2 delivered, 0 of 2 lost: 4 kept, 2 added" in html
    assert "<b>A</b>" not in html
    assert "&lt;b&gt;A&lt;/b&gt;" in html
    assert "boxes of s in the place of masks" in html


def test_the_same_run_gives_the_same_bytes(run, tmp_path):
    for name in ("one.html", "two.html"):
        abacus.report(run, tmp_path / name, resamples=0)
    assert (tmp_path / "one.html").read_bytes() == (tmp_path / "two.html").read_bytes()


def test_fewer_strips_are_spread_over_the_scores(run, tmp_path):
    assert abacus.report(run, tmp_path / "r.html", edits=2, resamples=0).shown == 2
    html = (tmp_path / "r.html").read_text()
    assert "2 of 4 scored edits, evenly spread" in html
    assert re.findall(r'data-failure="([^"]*)"', html) == ["undershoot", "none"]
    assert abacus.report(run, tmp_path / "r.html", edits=0, resamples=0).shown == 0


def test_images_that_are_gone_are_told(run, tmp_path):
    (tmp_path / "images/0-b.png").unlink()
    assert abacus.report(run, tmp_path / "r.html", resamples=0).gone == 1
    assert "The images cannot be shown: images/0-b.png: not found" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize("image", ["a", "b"])
@pytest.mark.parametrize("size", [(120, 90), (60, 45), (240, 180)])
def test_images_that_were_replaced_are_not_drawn_under_old_verdicts(run, tmp_path, image, size):
    Image.new("RGB", size, (9, 9, 9)).save(tmp_path / f"images/1-{image}.png")
    assert abacus.report(run, tmp_path / "r.html", resamples=0).gone == 1
    told = f"The images cannot be shown: images/1-{image}.png: the image is not the one that was scored"
    assert told in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(("size", "how"), [((60, 45), cv2.INTER_LINEAR), ((240, 180), cv2.INTER_AREA)])
def test_an_edited_image_of_another_size_is_shown_as_it_was_looked_at(
    tmp_path, suite, edits_file, monkeypatch, size, how
):
    manifest = edits_file(tmp_path, EDITS[0])
    picture = np.array(Image.open(tmp_path / "images/0-b.png").resize(size))
    Image.fromarray(picture).save(tmp_path / "images/0-b.png")
    abacus.score(manifest, tmp_path / "RUN", suite=suite, workers=0, resamples=0)
    shown = []
    monkeypatch.setattr(module, "thumbnail", lambda pixels, _side: (shown.append(pixels), [b""])[1])
    abacus.report(tmp_path / "RUN", tmp_path / "r.html", resamples=0)
    np.testing.assert_array_equal(shown[1], cv2.resize(picture, (120, 90), interpolation=how))


def test_a_run_in_which_nothing_was_scored(tmp_path, suite, edits_file):
    manifest = edits_file(tmp_path, EDITS[0])
    shutil.rmtree(tmp_path / "images")
    abacus.score(manifest, tmp_path / "RUN", suite=suite, workers=0)
    assert abacus.report(tmp_path / "RUN", tmp_path / "r.html").scored == 0
    html = (tmp_path / "r.html").read_text()
    assert "No edit was scored" in html
    assert "source: not found" in html


def test_what_is_no_run_and_what_makes_no_sense(run, tmp_path):
    with pytest.raises(RunError, match="is not a RUN"):
        abacus.report(tmp_path, tmp_path / "r.html")
    with pytest.raises(UsageError, match="edits = -1"):
        abacus.report(run, tmp_path / "r.html", edits=-1)
