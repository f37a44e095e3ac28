"""The report in a real browser: figures, filters, toggles, themes, a phone, paper."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tallymill.engine.report.figures import figures_of, reliability_of
from tallymill.engine.report.page import FIGURES, render

DESK, TABLET, PHONE = ({"width": width, "height": height} for width, height in ((1280, 900), (768, 1024), (360, 740)))


@pytest.fixture(scope="module")
def report(report_example, tmp_path_factory):
    """Every figure, and six images: the three groups, of one and two categories, in two systems and ranges."""
    analysis = report_example.make_analysis(agreement=report_example.make_agreement())
    calibration = report_example.make_calibration()
    figures = {**figures_of(analysis), "reliability": reliability_of(calibration)}
    card = report_example.make_card
    cards = [
        card(group, system=system, item_id=f"{system}-{group}", composition=composition, count_range=count_range)
        for system, composition, count_range in (("alpha", "single", "1-25"), ("beta", "double", "76-100"))
        for group in ("worst", "typical", "random")
    ]
    gallery = report_example.Gallery(tuple(cards), report_example.DETECTORS, 8, 8)
    path = tmp_path_factory.mktemp("browser") / "report.html"
    page = report_example.make_page(analysis=analysis, gallery=gallery, figures=figures, calibration=calibration)
    path.write_text(render(page), "utf-8")
    return path


def visible_cards(tab):
    return tab.eval_on_selector_all(".card", "all => all.filter(c => c.offsetParent).map(c => c.dataset.group)")


def test_figures_and_images_are_there_and_not_empty(opened, report):
    tab = opened(report, viewport=DESK).tab
    tab.wait_for_function("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    shown = "all => all.filter(e => e.getClientRects().length).map(e => e.getBoundingClientRect().toJSON())"
    sizes = tab.eval_on_selector_all("img, .plot svg", shown)
    assert len(sizes) == 6 + len(FIGURES)
    assert all(size["width"] > 100 and size["height"] > 50 for size in sizes)
    inside = """all => all.filter(figure => figure.getClientRects().length).map(figure => {
      const size = figure.getBoundingClientRect();
      const texts = [...figure.querySelectorAll("text")].map(text => text.getBoundingClientRect());
      const cut = texts.filter(text => text.left < size.left - 2 || text.right > size.right + 2);
      return [figure.querySelectorAll("path").length, texts.length, cut.length];
    })"""
    for paths, texts, cut in tab.eval_on_selector_all(".plot svg", inside):
        assert paths > 3
        assert texts > 3
        assert cut == 0


LETTERS = """all => all.filter(figure => figure.getClientRects().length).flatMap(figure => {
  const scale = figure.getBoundingClientRect().width / figure.viewBox.baseVal.width;
  return [...figure.querySelectorAll("text")].map(text => scale * parseFloat(getComputedStyle(text).fontSize));
})"""


@pytest.mark.parametrize(("viewport", "least", "most"), [(DESK, 12.5, 13), (TABLET, 9.2, 10), (PHONE, 9.2, 9.5)])
def test_letters_of_all_figures_are_legible_and_alike(opened, report, viewport, least, most):
    sizes = opened(report, viewport=viewport).tab.eval_on_selector_all(".plot svg", LETTERS)
    assert least <= min(sizes) <= max(sizes) <= most + 1e-6


def test_figures_and_their_words_fill_a_desk_s_page(opened, report):
    tab = opened(report, viewport=DESK).tab
    sides = """all => all.map(plot => [...plot.querySelectorAll("figcaption, svg")]
      .filter(e => e.getClientRects().length).map(e => e.getBoundingClientRect()).map(box => [box.left, box.right]))"""
    left, right = 128, 128 + 1024
    for ends in tab.eval_on_selector_all(".plot:not(.half), .plots", sides):
        assert min(start for start, _ in ends) == left
        assert max(end for _, end in ends) > right - 60
    for (words_from, _), (from_left, to_right) in tab.eval_on_selector_all("section > .plot.half", sides):
        assert from_left == left
        assert to_right < words_from < right - 400


def test_the_gallery_is_filtered(opened, report):
    tab = opened(report, viewport=DESK).tab
    assert len(visible_cards(tab)) == 6
    tab.select_option("select[name=group]", "worst")
    assert visible_cards(tab) == ["worst", "worst"]
    assert tab.inner_text("output") == "2 of 6 images"
    tab.select_option("select[name=system]", label="beta")
    assert visible_cards(tab) == ["worst"]
    assert tab.inner_text(".card:not([hidden]) .id") == "beta-worst"
    tab.select_option("select[name=range]", "1-25")
    assert visible_cards(tab) == []
    assert "no image is like this" in tab.inner_text("output")
    for name in ("group", "system", "range"):
        tab.select_option(f"select[name={name}]", "")
    tab.select_option("select[name=composition]", label="double")
    assert len(visible_cards(tab)) == 3


def test_a_detector_s_boxes_are_hidden_and_shown(opened, report):
    tab = opened(report, viewport=DESK).tab
    drawn = "all => all.filter(layer => layer.getClientRects().length).length"
    assert tab.eval_on_selector_all(".card [data-layer='0']", drawn) == 12
    tab.uncheck("input[data-detector='0']")
    assert tab.eval_on_selector_all(".card [data-layer='0']", drawn) == 0
    assert tab.eval_on_selector_all(".card [data-layer='1']", drawn) == 12
    tab.check("input[data-detector='0']")
    assert tab.eval_on_selector_all(".card [data-layer='0']", drawn) == 12


def test_an_image_is_enlarged_by_keyboard_and_put_away_again(opened, report):
    tab = opened(report, viewport=DESK).tab
    tab.select_option("select[name=system]", label="alpha")
    tab.focus(".card button.frame")
    before = tab.eval_on_selector(".card img", "image => image.getBoundingClientRect().width")
    tab.keyboard.press("Enter")
    assert tab.is_visible("dialog img")
    assert tab.eval_on_selector("dialog img", "image => image.getBoundingClientRect().width") > 1.5 * before
    assert tab.inner_text("dialog .id") == "alpha-worst"
    boxes = tab.eval_on_selector("dialog .boxes", "svg => svg.getBoundingClientRect().toJSON()")
    image = tab.eval_on_selector("dialog img", "image => image.getBoundingClientRect().toJSON()")
    assert all(abs(boxes[side] - image[side]) < 1 for side in ("x", "y", "width", "height"))
    tab.keyboard.press("ArrowRight")
    assert tab.inner_text("dialog .id") == "alpha-typical"
    tab.keyboard.press("ArrowLeft")
    tab.keyboard.press("ArrowLeft")
    assert tab.inner_text("dialog .id") == "alpha-random"
    tab.keyboard.press("Escape")
    assert not tab.is_visible("dialog")
    assert tab.evaluate("document.activeElement.className") == "frame"


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


CONTRASTS = """() => [...document.querySelectorAll("body *")].filter(e => e.offsetParent &&
  !e.closest("svg, .sr, .skip") && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).map(e => {
  let behind = e;
  const clear = p => getComputedStyle(p).backgroundColor.startsWith("rgba");
  while (behind.parentElement && clear(behind)) behind = behind.parentElement;
  return [getComputedStyle(e).color, getComputedStyle(behind).backgroundColor, e.textContent.slice(0, 40)];
})"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(opened, report, scheme):
    tab = opened(report, viewport=DESK, color_scheme=scheme).tab
    found = tab.evaluate(CONTRASTS)
    assert len(found) > 200
    for ink, paper, words in found:
        low, high = sorted((luminance(ink), luminance(paper)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, paper, words)


def test_light_and_dark_follow_the_system_until_the_reader_chooses(opened, report):
    paper = "getComputedStyle(document.body).backgroundColor"
    light, dark = (opened(report, color_scheme=scheme).tab for scheme in ("light", "dark"))
    assert luminance(light.evaluate(paper)) > 0.9
    assert luminance(dark.evaluate(paper)) < 0.05
    assert light.inner_text(".theme") == "Dark"
    light.click(".theme")
    assert light.evaluate(paper) == dark.evaluate(paper)
    assert light.inner_text(".theme") == "Light"
    light.emulate_media(color_scheme="dark")
    assert luminance(light.evaluate(paper)) < 0.05
    dark.click(".theme")
    assert luminance(dark.evaluate(paper)) > 0.9


def test_a_phone_scrolls_down_only(opened, report):
    tab = opened(report, viewport=PHONE).tab
    tab.eval_on_selector_all("details", "all => all.forEach(part => { part.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    size = "all => Math.min(...all.map(e => parseFloat(getComputedStyle(e).fontSize)))"
    assert tab.eval_on_selector_all("td, th, p, li", size) >= 11


def test_what_scrolls_sideways_is_reached_by_keyboard_and_nothing_else(opened, report):
    reached = "all => all.map(box => [box.scrollWidth > box.clientWidth + 1, box.tabIndex === 0, box.ariaLabel])"
    for viewport in (DESK, PHONE):
        tab = opened(report, viewport=viewport).tab
        tab.eval_on_selector_all("details", "all => all.forEach(part => { part.open = true; })")
        tab.wait_for_timeout(100)
        boxes = tab.eval_on_selector_all(".wide", reached)
        assert all(scrolls == keyed == (label is not None) for scrolls, keyed, label in boxes)
        if viewport == DESK:
            assert not any(scrolls for scrolls, _, _ in boxes)
    assert any(scrolls and "single detectors" in label for scrolls, _, label in boxes)


def test_strange_names_neither_run_nor_widen_a_phone_s_page(opened, report_example, tmp_path):
    names = (
        "<img src=x onerror=alert(1)>",
        "<script>document.title = 'x'</script>",
        "W" * 10_000,
        "\u202eright to left\u202c حصان",
        "🐎🏽‍♀️ 'quoted' \"twice\"",
    )
    analysis = report_example.make_analysis(systems=names, notes=list(names))
    rows = ("curve", "levels", "contrasts", "families", "signed_errors", "uncovered", "failures")
    odd = {"composition", "level", "reference", "category", "reason", "first_item"}
    renamed = {
        table: [replace(row, **dict.fromkeys(odd & {*row.__slots__}, row.system)) for row in getattr(analysis, table)]
        for table in rows
    }
    analysis = replace(analysis, **renamed)
    cards = [
        report_example.make_card(
            system=name, item_id=name, prompt=name, composition=name, factors=(name,),
            asked=(report_example.Asked(name, 3, 1.5, 2.0), report_example.Asked("dog", 2, 0.5, 1.0)),
        )
        for name in names
    ]  # fmt: skip
    cards[0] = report_example.make_card(thumbnail=None, reason=names[2], item_id=names[2])
    gallery = report_example.Gallery(tuple(cards), report_example.DETECTORS, 8, 8)
    page = report_example.make_page(
        analysis=analysis, gallery=gallery, figures=figures_of(analysis), title=names[1] + names[2]
    )
    (tmp_path / "r.html").write_text(render(page), "utf-8")
    tab = opened(tmp_path / "r.html", viewport=PHONE).tab
    tab.eval_on_selector_all("details", "all => all.forEach(part => { part.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    assert tab.evaluate("[...document.images].every(image => image.src.startsWith('data:'))")
    assert tab.title().startswith(names[1])
    assert tab.eval_on_selector_all("script", "all => all.length") == 1
    tab.click(".frame")
    assert tab.is_visible("dialog img")
    assert tab.evaluate("document.documentElement.scrollWidth") == 360


def test_paper_has_everything_open_and_no_controls(opened, report):
    tab = opened(report, viewport=DESK, color_scheme="dark").tab
    tab.evaluate("dispatchEvent(new Event('beforeprint'))")
    tab.emulate_media(media="print")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert not any(tab.is_visible(selector) for selector in (".controls", "nav.contents", ".theme"))
    assert tab.is_visible(".legend")
    hidden = "all => all.filter(table => !table.getClientRects().length).length"
    assert tab.eval_on_selector_all("main table", hidden) == 0
    tab.evaluate("dispatchEvent(new Event('afterprint'))")
    assert tab.eval_on_selector_all("details:not([open])", "all => all.length") > 0
    pdf = tab.pdf(format="A4")
    assert pdf.startswith(b"%PDF")
    assert len(pdf) > 20_000


def test_a_page_without_images_has_no_fault(opened, report_example, tmp_path):
    gallery = report_example.Gallery((), report_example.DETECTORS)
    (tmp_path / "r.html").write_text(render(report_example.make_page(gallery=gallery)), "utf-8")
    tab = opened(tmp_path / "r.html", viewport=DESK).tab
    assert "No images were asked for." in tab.inner_text("#gallery")
    tab.click(".theme")
    assert tab.inner_text(".theme") == "Light"


def test_without_scripts_everything_can_be_read(opened, report):
    tab = opened(report, viewport=DESK, java_script_enabled=False).tab
    assert tab.is_visible(".card")
    assert not tab.is_visible(".controls")
    assert tab.is_visible(".legend")
