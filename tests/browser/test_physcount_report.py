"""PhysCount's report in a real browser: figures, the published rows, filters, marks, themes, a phone, paper."""

from __future__ import annotations

import re

import pytest

from tallymill import physcount

DESK, PHONE = {"width": 1280, "height": 900}, {"width": 360, "height": 740}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return physcount.example(tmp_path_factory.mktemp("browser") / "set", scenes_wanted=6)


@pytest.fixture(scope="module")
def report(dataset, physcount_example, tmp_path_factory):
    """Two resolutions, joint, and strange responses of one model with a strange name."""
    root, make = tmp_path_factory.mktemp("physcount"), physcount_example.write_run
    exact = physcount_example.true_answers(dataset)
    strange = dict(exact)
    odd = [
        "<script>document.title = 'x'</script>",
        "word " * 20_000,
        "\u202eخمسة\x00",
        "<think>" + "n" * 900 + "</think>7",
    ]
    for question, text in zip(dataset.questions, odd, strict=False):
        strange[question.question_id] = text
    runs = [
        make(root / "low", dataset, physcount_example.true_answers(dataset, plus=1), model="m", long_edge=512),
        make(root / "high", dataset, exact, model="m", errors={dataset.questions[-1].question_id: "503: busy"}),
        make(root / "joint", dataset, physcount_example.true_answers(dataset, joint=True), model="m", mode="joint"),
        make(root / "odd", dataset, strange, model='<img src=x onerror="document.title=1">' + "y" * 90),
    ]
    path = root / "report.html"
    physcount.report(dataset.root, runs, path, resamples=50, groups=3)
    return path


@pytest.fixture(scope="module")
def many(dataset, physcount_example, tmp_path_factory):
    """Forty models, each asked jointly or not."""
    root = tmp_path_factory.mktemp("many")
    runs = []
    for k in range(40):
        answers = physcount_example.true_answers(dataset, plus=k % 4, joint=k % 2 == 1)
        mode = "joint" if k % 2 else "independent"
        runs.append(physcount_example.write_run(root / f"{k}", dataset, answers, model=f"model {k}", mode=mode))
    path = root / "report.html"
    physcount.report(dataset.root, runs, path, resamples=0)
    return path


def opened_wide(tab):
    tab.eval_on_selector_all("details", "all => all.forEach(part => { part.open = true; })")


def visible(tab, selector):
    return tab.eval_on_selector_all(selector, "all => all.filter(e => e.getClientRects().length).length")


def test_figures_and_images_are_there_and_strange_texts_are_inert(opened, report):
    tab = opened(report, viewport=DESK).tab
    tab.wait_for_function("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert visible(tab, ".card img") == tab.locator(".card").count() > 3
    sizes = tab.eval_on_selector_all(".plot svg", "all => all.map(e => e.getBoundingClientRect().toJSON())")
    drawn = [size for size in sizes if size["width"]]
    assert len(drawn) == 3
    assert all(size["width"] > 300 and size["height"] > 100 for size in drawn)
    assert "PhysCount report" in tab.title()
    opened_wide(tab)
    assert tab.locator("img[src=x]").count() == 0
    assert "<script>document.title = 'x'</script>" in tab.inner_text("body")
    assert "خمسة␀" in tab.inner_text("body")


def test_published_rows_are_hidden_and_shown(opened, report):
    tab = opened(report, viewport=DESK).tab
    assert visible(tab, ".board tr.published") == 0  # another set than the paper's
    tab.check(".choice input")
    assert visible(tab, ".board tr.published") == 40
    assert "Gemini 3.7 Flash†" in tab.inner_text(".board table")
    tab.uncheck(".choice input")
    assert visible(tab, ".board tr.published") == 0
    assert visible(tab, ".board tbody tr") == 4


def test_published_rows_are_shown_without_scripts_too(opened, report):
    tab = opened(report, viewport=DESK, java_script_enabled=False).tab
    tab.check(".choice input")
    assert tab.locator(".board tr.published").first.is_visible()
    assert tab.locator(".legend").first.is_visible()


def test_groups_are_chosen_by_kind_failed_family_and_mode(opened, report):
    tab = opened(report, viewport=DESK).tab
    everything = visible(tab, ".card")
    tab.select_option("select[name=kind]", "worst")
    assert visible(tab, ".card") == visible(tab, ".card[data-kind=worst]") == 3
    tab.select_option("select[name=kind]", "")
    tab.select_option("select[name=mode]", "through_glass")
    glass = visible(tab, ".card")
    assert 0 < glass < everything
    assert tab.locator(".card:not([hidden]):not([data-mode~=through_glass])").count() == 0
    assert tab.inner_text("output") == f"{glass} of {everything} groups"
    tab.select_option("select[name=failed]", "correspondence")
    assert tab.locator(".card:not([hidden]):not([data-failed~=correspondence])").count() == 0


def test_marks_of_a_mode_are_hidden_and_keep_their_size_when_enlarged(opened, report):
    tab = opened(report, viewport=DESK).tab
    before = visible(tab, ".card .mark.reflection")
    assert before > 0
    tab.uncheck("input[data-detector=reflection]")
    assert visible(tab, ".card .mark.reflection") == 0
    assert visible(tab, ".card .mark.direct") > 0
    tab.check("input[data-detector=reflection]")
    assert visible(tab, ".card .mark.reflection") == before
    tab.click(".card button.frame")
    assert tab.is_visible("dialog img")
    places = """() => [".card", "dialog .card"].map(of => {
      const frame = document.querySelector(of + " .fit").getBoundingClientRect();
      const mark = document.querySelector(of + " .mark").getBoundingClientRect();
      const middle = [mark.x + mark.width / 2, mark.y + mark.height / 2];
      return [(middle[0] - frame.x) / frame.width, (middle[1] - frame.y) / frame.height, mark.width];
    })"""
    (x, y, small), (across, down, large) = tab.evaluate(places)
    assert abs(x - across) < 0.01
    assert abs(y - down) < 0.01
    assert small < large < 40
    tab.keyboard.press("ArrowRight")
    tab.keyboard.press("Escape")
    assert not tab.is_visible("dialog")


CONTRASTS = """() => [...document.querySelectorAll("body *")].filter(e => e.offsetParent &&
  !e.closest("svg, .sr, .skip") && [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())).map(e => {
  let behind = e;
  const clear = p => getComputedStyle(p).backgroundColor.startsWith("rgba");
  while (behind.parentElement && clear(behind)) behind = behind.parentElement;
  return [getComputedStyle(e).color, getComputedStyle(behind).backgroundColor, e.textContent.slice(0, 40)];
})"""


def luminance(colour: str) -> float:
    """Relative luminance of WCAG 2."""
    parts = [int(part) / 255 for part in re.findall(r"\d+", colour)[:3]]
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(opened, report, scheme):
    tab = opened(report, viewport=DESK, color_scheme=scheme).tab
    opened_wide(tab)
    tab.check(".choice input")
    found = tab.evaluate(CONTRASTS)
    assert len(found) > 300
    for ink, paper, words in found:
        low, high = sorted((luminance(ink), luminance(paper)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, (ink, paper, words)


@pytest.mark.parametrize("viewport", [DESK, PHONE])
def test_every_answer_of_a_card_can_be_reached_and_no_word_is_broken(opened, report, viewport):
    tab = opened(report, viewport=viewport).tab
    assert tab.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    wider = "all => all.filter(e => e.scrollWidth > e.clientWidth + 1).length"
    assert tab.eval_on_selector_all(".card", wider) == 0
    scrolling = tab.eval_on_selector_all(
        ".card .wide", "all => all.map(e => [e.scrollWidth > e.clientWidth + 1, getComputedStyle(e).overflowX])"
    )
    assert {overflow for _, overflow in scrolling} == {"auto"}
    if viewport is PHONE:
        assert any(scrolls for scrolls, _ in scrolling)
    words = """all => all.flatMap(e => [...e.textContent.matchAll(/[a-z]+/gi)].map(found => {
      const walker = document.createTreeWalker(e, NodeFilter.SHOW_TEXT), range = document.createRange();
      const text = walker.nextNode();
      range.setStart(text, found.index);
      range.setEnd(text, found.index + found[0].length);
      return range.getClientRects().length;
    }))"""
    assert set(tab.eval_on_selector_all(".asked tbody th > bdi", words)) == {1}


@pytest.mark.parametrize("which", ["report", "many"])
def test_a_phone_scrolls_down_only(opened, which, request):
    tab = opened(request.getfixturevalue(which), viewport=PHONE).tab
    opened_wide(tab)
    tab.check(".choice input")
    assert tab.evaluate("document.documentElement.scrollWidth") == 360
    size = "all => Math.min(...all.map(e => parseFloat(getComputedStyle(e).fontSize)))"
    assert tab.eval_on_selector_all("td, th, p, li", size) >= 11


def test_paper_has_no_controls_and_nothing_is_cut(opened, report):
    tab = opened(report, viewport={"width": 700, "height": 900}).tab
    tab.emulate_media(media="print")
    assert not tab.is_visible(".controls")
    assert not tab.is_visible(".choice")
    assert tab.is_visible(".legend")
    assert tab.pdf().startswith(b"%PDF")
