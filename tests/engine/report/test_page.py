"""The page as text: its structure, what it never does, and strange input. tests/browser opens it."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import re
from html.parser import HTMLParser

import pytest

from tallymill.engine.estimates import Estimate
from tallymill.engine.numbench.analysis import results as r
from tallymill.engine.report import serialize, shell, tables
from tallymill.engine.report.gallery import Asked, Gallery, box_paths, outline
from tallymill.engine.report.page import CONTENTS, headline, render

VOID = {"meta", "img", "br", "hr", "input", "link", "wbr"}
HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "'; DROP TABLE scores; --",
    "</style></script></svg><b>",
    "{{ 7 * 7 }}{% raw %}",
    "حصان ‮txet thgir‬ 🐎🏽‍♀️",
    "\0\x1b[31mred\x7f",
    "x" * 10_000,
)


class Reader(HTMLParser):
    """Notes elements and their attributes, and fails where an end tag closes another element."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag

    def handle_data(self, data):
        if not self.open or self.open[-1] not in ("script", "style"):
            self.words.append(data)

    def all(self, tag):
        return [attributes for name, attributes in self.elements if name == tag]


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


@pytest.fixture(scope="module")
def html(page_of):
    return render(page_of())


def test_every_element_is_closed_and_ids_are_unique(html):
    ids = [attributes["id"] for _, attributes in read(html).elements if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_contents_lead_to_what_is_there(html):
    page = read(html)
    ids = {attributes.get("id") for _, attributes in page.elements}
    links = [a["href"] for a in page.all("a")]
    assert {f"#{anchor}" for anchor, _ in CONTENTS} <= set(links)
    assert all(link[1:] in ids for link in links)
    labels = [a["aria-labelledby"] for _, a in page.elements if "aria-labelledby" in a]
    assert set(labels) <= ids


def test_nothing_is_fetched(html):
    page = read(html)
    for tag, attributes in page.elements:
        assert tag not in ("link", "iframe", "object", "embed", "base", "form")
        for name in ("src", "href", "srcset", "poster", "xlink:href"):
            assert (attributes.get(name) or "#").startswith(("#", "data:image/webp;base64,")), (tag, attributes)
    assert not re.search(r"@import|url\((?!#)", html)
    outside = set(re.findall(r"https?://[^\s\"'<)]+", html))
    assert outside <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_only_our_script_may_run(html):
    policy = next(a["content"] for a in read(html).all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL).group(1)
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == (f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; img-src data:")
    assert len(read(html).all("script")) == 1
    assert not any(name.startswith("on") for _, attributes in read(html).elements for name in attributes)


def test_the_same_page_has_the_same_bytes(page_of, html):
    assert render(page_of()) == html


def test_tables_have_captions_and_every_image_an_alternative(html):
    page = read(html)
    assert len(page.all("table")) == len(page.all("caption"))
    assert page.all("img")
    assert all(image["alt"] for image in page.all("img"))
    assert all("scope" in head for head in page.all("th"))


def test_ranges_above_fifty_are_marked_wherever_they_are_shown(html):
    shown = re.findall(r"(?:51–75|76–100).", "".join(read(html).words))
    assert len(shown) > 40
    assert {word[-1] for word in shown} == {"‡"}


def test_headline_has_a_block_a_composition_and_a_column_a_range(analysis_of):
    blocks = headline(analysis_of())
    assert [block.title for block in blocks] == ["All compositions", "One category", "Two categories"]
    names = [("all", False), ("1-25", False), ("26-50", False), ("51-75", True), ("76-100", True)]
    assert all(block.ranges == names for block in blocks)
    assert [row.system for row in blocks[0].rows] == ["alpha", "beta"]
    assert all(cell is not None for block in blocks for row in block.rows for cell in row.cells)


def test_one_composition_has_one_block(analysis_of):
    whole = analysis_of()
    cells = [cell for cell in whole.cells if cell.composition in ("all", "single")]
    blocks = headline(analysis_of(cells=cells))
    assert [block.title for block in blocks] == ["One category"]


def test_ranges_and_rows_without_images_are_left_out_and_told(analysis_of, page_of):
    none = Estimate(None, null_resamples=2000)

    def emptied(cell):
        if cell.count_range != "76-100":
            return cell
        return r.Cell(cell.system, cell.composition, "76-100", True, 0, 0, 0, 0, 0, none, none, none, {"owl-vit": none})

    whole = analysis_of()
    contrasts = [*whole.contrasts, r.Contrast("beta", "layout", "spiral", "free", 0, none, none)]
    losses = [r.Loss(row.system, row.composition, none, none) for row in whole.losses]
    analysis = analysis_of(cells=[emptied(cell) for cell in whole.cells], contrasts=contrasts, losses=losses)
    blocks = headline(analysis)
    assert all([name for name, _ in block.ranges] == ["all", "1-25", "26-50", "51-75"] for block in blocks)
    assert not any(block.has_loss for block in blocks)
    words = words_of(render(page_of(analysis=analysis)))
    assert "There are no images of 76–100‡" in words
    assert "Without a core that has both sides, and left out: 1." in words
    assert "loss: the share" not in words


def test_a_cell_without_images_is_a_dash(analysis_of, page_of):
    cells = [cell for cell in analysis_of().cells if (cell.system, cell.count_range) != ("beta", "76-100")]
    analysis = analysis_of(cells=cells)
    assert headline(analysis)[0].rows[1].cells[-1] is None
    render(page_of(analysis=analysis))


def test_an_analysis_of_nothing_makes_a_page(analysis_of, page_of):
    names = [f for f in r.Analysis.__dataclass_fields__ if f not in ("settings", "runs", "notes")]
    page = read(render(page_of(analysis=analysis_of(**{name: [] for name in names}), gallery=Gallery(), figures={})))
    assert "No image has a score, so there is no curve." in " ".join(page.words)


def test_values_that_do_not_exist_are_dashes(analysis_of, page_of):
    none, some = Estimate(None, null_resamples=2000), Estimate(0.5, 0.4, 0.6, 7)
    cells = [r.Cell("alpha", "all", "all", False, 9, 0, 9, 0, 0, none, some, none, {})]
    html = render(page_of(analysis=analysis_of(overall=cells, cells=[])))
    assert "7 of 2,000 null" in html
    assert "2,000 of 2,000 null" not in html
    assert "None" not in " ".join(read(html).words)
    assert "nan" not in " ".join(read(html).words)


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_texts_are_shown_and_never_run(text, page_of, card_of, analysis_of):
    analysis = analysis_of(systems=(text,), notes=[text])
    analysis = analysis_of(
        systems=(text,), notes=[text],
        failures=[r.Failure(text, text, 3, text)] * 12, uncovered=[r.Uncovered(text, text, 1)],
        collision=[r.CollisionFit(text, text, "fitted", 1.0, 0.1, 0.1, 1, 1)],
    )  # fmt: skip
    changes = {"system": text, "item_id": text, "prompt": text, "composition": text, "factors": (text,)}
    shown = card_of(asked=(Asked(text, 3, 1.0, 1.0), Asked(None, 2, None, None)), **changes)
    gone = card_of("random", thumbnail=None, reason=text, **changes)
    html = render(page_of(title=text, analysis=analysis, gallery=Gallery((shown, gone), ("owl-vit", "grounding-dino"))))
    page = read(html)
    plain = read(render(page_of(analysis=analysis_of(systems=("alpha",)))))
    assert {tag for tag, _ in page.elements} <= {tag for tag, _ in plain.elements} | {"div", "p"}
    assert len(page.all("script")) == 1
    assert not any(name.startswith("on") for _, attributes in page.elements for name in attributes)
    assert max(len(word) for words in page.words for word in words.split()) < 1200
    assert "\0" not in html


def words_of(html: str) -> str:
    return " ".join("".join(read(html).words).split())


def test_without_calibration_and_annotations_the_page_says_how_to_get_them(html):
    assert "tallymill calibrate CALIBRATION-RUN --truth FILE --out FOLDER" in words_of(html)
    assert "--annotations FILE" in words_of(html)


def test_a_calibration_is_shown(page_of, report_example):
    words = words_of(render(page_of(calibration=report_example.make_calibration())))
    assert "measured on 20 images with 90 known objects; 1 of the images failed" in words
    assert "owl-vit0.931.4" in words
    assert "needs a lower floor" in words
    assert "A note." in words


def test_agreement_is_shown_and_what_is_missing_has_its_reason(analysis_of, page_of, report_example):
    html = render(page_of(analysis=analysis_of(agreement=report_example.make_agreement())))
    words = words_of(html)
    assert "3 people counted each category of each image" in words
    assert "no kappa: chance agreement is 1 (alpha, 76–100‡)." in words
    assert "no correlation: fewer than three images (alpha, 76–100‡)." in words
    assert 'title="chance agreement is 1"' in html


def test_long_tables_say_what_they_leave_out(analysis_of, page_of):
    points = analysis_of().curve * 10
    html = render(page_of(analysis=analysis_of(curve=points)))
    assert f"{len(points) - 500:,} more rows" in html


def test_every_table_that_is_cut_says_so(analysis_of, page_of, report_example, monkeypatch):
    """With a limit below what there is, each table of the page with rows of the analysis tells what it lacks."""
    monkeypatch.setattr(shell, "MOST_ROWS", 11)
    found = analysis_of(tuple("abcdef"), agreement=report_example.make_agreement())
    failures = [r.Failure("a", f"reason {k}", 1, "item") for k in range(13)]
    uncovered = [r.Uncovered("a", f"gryphon {k}", 1) for k in range(12)]
    rows = [found.agreement.rows[0]] * 14
    agreement = dataclasses.replace(found.agreement, rows=rows)
    html = render(
        page_of(analysis=dataclasses.replace(found, failures=failures, uncovered=uncovered, agreement=agreement))
    )
    cut = re.findall(
        r'<caption><span>([^<]*)</span>(?:(?!<caption>).)*?class="muted cut">([\d,]+) more rows?:', html, re.S
    )
    more = {name: int(number.replace(",", "")) for name, number in cut}
    assert len(more) == 15
    assert (more["Further reasons"], more["Categories without a detector"]) == (2, 1)
    assert more["Agreement by count range"] == 3
    assert more["Sensitivity of cw-NPS"] == len(found.sensitivity) - 11


def test_the_loss_is_marked_as_a_stress_test(page_of):
    assert re.search(r'<th scope="col" class="n">loss<span class="stress"', render(page_of()))


def test_one_system_has_no_mean_of_all_systems(analysis_of, page_of):
    for systems, shown in ((("alpha",), False), (("alpha", "beta"), True)):
        analysis = analysis_of(systems)
        assert ("mean of all systems" in render(page_of(analysis=analysis))) == shown
        assert ("all" in {row[0] for row in tables.sensitivity_table(analysis).rows}) == shown
        assert "sensitivity" in serialize.csv_tables(analysis)
        assert "\nall,count_range" in serialize.csv_tables(analysis)["sensitivity"]


def test_the_only_system_may_be_called_all(analysis_of):
    analysis = analysis_of(("all",))
    assert [row.factor for row in tables.shown_sensitivity(analysis)] == ["count_range", "layout"]


def test_values_that_do_not_exist_are_dashes_and_nothing_else(analysis_of, page_of):
    none = Estimate(None, None, None, 2000)
    found = analysis_of()
    html = render(page_of(analysis=dataclasses.replace(found, losses=[r.Loss("alpha", "all", none, none)])))
    assert "2,000 of 2,000 null" not in html
    assert "null" not in tables.estimate(none)


def test_an_image_that_is_gone_has_a_card_that_says_so(page_of, card_of):
    card = card_of(thumbnail=None, reason="a.jpg: not found")
    html = render(page_of(gallery=Gallery((card,), ("owl-vit", "grounding-dino"), 8, 8)))
    assert "The image cannot be shown: a.jpg: not found" in html
    assert "<img" not in html


def test_a_gallery_that_was_cut_says_so(page_of, card_of):
    gallery = Gallery((card_of(),), ("owl-vit", "grounding-dino"), wanted=8, shown=2, left_out=("omega",))
    words = " ".join(" ".join(read(render(page_of(gallery=gallery))).words).split())
    assert "8 of each were wanted; fewer keep this page" in words
    assert "Without images here: omega" in words


def test_boxes_are_cut_at_the_border_and_scaled(card_of):
    card = card_of()
    assert outline(card.layers[0].boxes[2:], (200, 100), 5.0) == "M750 25H1000V250H750z"
    assert outline(card.layers[0].boxes[:0], (200, 100), 5.0) == ""
    assert outline(card.layers[0].boxes + 500, (200, 100), 5.0) == ""
    paths = box_paths(card, ("owl-vit", "grounding-dino"))
    assert [(place, target) for place, target, _ in paths] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [path.count("M") for _, _, path in paths] == [2, 1, 2, 1]
