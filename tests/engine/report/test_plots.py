from __future__ import annotations

import dataclasses
import re
from xml.etree import ElementTree

import pytest

from tallymill.engine.estimates import Estimate
from tallymill.engine.numbench.analysis.results import (
    ALL,
    Analysis,
    Cell,
    Contrast,
    CurvePoint,
    Families,
    Sensitivity,
    SystemRow,
    VisiblePoint,
)
from tallymill.engine.numbench.collision.fit import fit_layouts
from tallymill.engine.numbench.factors import COMPOSITIONS, COUNT_RANGES, LAYOUTS, STRESS_RANGES
from tallymill.engine.report import canvas, forest, plots
from tallymill.engine.report.collision import collision_figure
from tallymill.engine.report.figures import figures_of
from tallymill.engine.report.svg import _FONT, _letters, svg_of

SVG = "{http://www.w3.org/2000/svg}"
FIGURES = (
    plots.curve_figure,
    forest.layout_figure,
    forest.appearance_figure,
    forest.sensitivity_figure,
    forest.detector_figure,
    plots.families_figure,
    collision_figure,
)
EMPTY = Analysis({}, [], [], *([] for _ in range(17)))


def some(value):
    return Estimate(value, value - 0.05, value + 0.05)


def analysis(systems, counts=(1, 20, 60)):
    """An analysis with a row of each kind for each system."""
    visible = [VisiblePoint(s, layout, n, 5, n * 0.8, n * 0.7) for s in systems for layout in LAYOUTS for n in counts]
    return dataclasses.replace(
        EMPTY,
        systems=[SystemRow(s, "RUN", 9, 9, 0, 0, 9, 9, 1, 1, 0, 0, 0) for s in systems],
        overall=[
            Cell(
                s,
                ALL,
                ALL,
                False,
                9,
                9,
                0,
                0,
                9,
                some(0.4),
                some(0.5),
                some(0.1),
                {"a": some(0.3), "b": Estimate(None)},
            )
            for s in systems
        ],
        contrasts=[
            Contrast(s, factor, level, reference, 9, some(0.1), some(0.1))
            for s in systems
            for factor, reference, levels in (
                ("layout", "free", ("grid", "guided")),
                ("appearance", "clean", ("mixed",)),
            )
            for level in levels
        ],
        sensitivity=[
            Sensitivity(s, factor, some(0.5), some(0.2), 9, 0, 0)
            for s in (*systems, ALL)
            for factor in ("count_range", "appearance: quality")
        ],
        families=[
            Families(s, composition, name, name in STRESS_RANGES, 10, 5, 3, 2, some(0.5), some(0.3), some(0.2))
            for s in systems
            for composition in COMPOSITIONS
            for name in COUNT_RANGES
        ],
        curve=[
            CurvePoint(s, c, n, n > 50, 5, some(0.4), some(0.5)) for s in systems for c in COMPOSITIONS for n in counts
        ],
        visible=visible,
        collision=fit_layouts(visible),
    )


def texts(svg):
    return [element.text or "" for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("make", FIGURES)
def test_every_figure_is_drawn_and_the_same_each_time(make):
    found = analysis(["one", "two", "three"])
    svg = svg_of(make(found), "title", "what it shows")
    assert svg == svg_of(make(found), "title", "what it shows")
    assert len(list(ElementTree.fromstring(svg).iter(f"{SVG}path"))) > 5
    assert not re.search(r"#1b1c1d|#d3d4d5|<style|metadata|xlink|DOCTYPE|https?://(?!www.w3.org/2000/svg)", svg)
    assert "var(--ink, currentColor)" in svg
    assert "var(--grid, #8885)" in svg


@pytest.mark.parametrize("make", FIGURES)
def test_nothing_to_draw_gives_no_figure(make):
    assert make(EMPTY) is None


@pytest.mark.parametrize("make", FIGURES)
def test_any_names_can_be_drawn(make):
    names = [
        "_hidden",
        "$x_1$",
        "<script>alert(1)</script>",
        "猫 🐈",
        "a\nb\0c",
        "",
        "L" * 10_000,
        "L" * 10_001,
        "id='f' url(#p)",
    ]
    svg = svg_of(make(analysis(names)), names[2], "\ud800\0 & <b>")
    ElementTree.fromstring(svg)
    assert "<script" not in svg
    if make is not collision_figure and make not in (forest.detector_figure, plots.families_figure):
        assert {"_hidden", "$x_1$", "<script>alert(1)</script>", "猫 🐈", "a b c", "(no name)"} <= {*texts(svg)}
    if make is not forest.sensitivity_figure:
        assert sum(text.startswith("LLLL") for text in texts(svg)) == 2


def test_one_system_shows_both_scores_and_many_one_each():
    assert {"cw-NPS", "b-NPS"} <= {*texts(svg_of(plots.curve_figure(analysis(["one"])), "", ""))}
    assert {"one", "two"} <= {*texts(svg_of(plots.curve_figure(analysis(["one", "two"])), "", ""))}


@pytest.mark.parametrize(("last", "panels"), [(50, 0), (51, 2)])
def test_counts_above_50_are_marked(last, panels):
    svg = svg_of(plots.curve_figure(analysis(["one"], (1, last))), "", "")
    assert texts(svg).count("stress test") == panels


def test_ranges_above_50_are_marked_in_the_families():
    shown = texts(svg_of(plots.families_figure(analysis(["one"])), "", ""))
    assert [text for text in shown if "–" in text] == ["1–25", "26–50", "51–75 ‡", "76–100 ‡"]


def test_the_collision_figure_tells_the_capacities_of_one_system():
    found = analysis(["one"])
    capacity = found.collision[0].capacity
    shown = texts(svg_of(collision_figure(found), "", ""))
    assert f"free, A = {capacity:,.4g}" in shown
    infinite = [dataclasses.replace(fit, verdict="infinite", capacity=None) for fit in found.collision]
    assert "free, A infinite" in texts(svg_of(collision_figure(dataclasses.replace(found, collision=infinite)), "", ""))


def test_the_reach_of_lambda_is_shown_where_free_form_has_a_capacity():
    found = analysis(["one"])
    assert "λ between 0 and 1" in texts(svg_of(collision_figure(found), "", ""))
    guided = dataclasses.replace(found, collision=[fit for fit in found.collision if fit.layout != "free"])
    assert "λ between 0 and 1" not in texts(svg_of(collision_figure(guided), "", ""))


def test_letters_are_the_page_s_however_matplotlib_writes_them():
    said = _FONT.sub(_letters, "font: bold 9.5px 'DejaVu Sans', sans-serif; text-anchor: end")
    assert said == "font-weight: bold; font-size: 9.5px; text-anchor: end"
    assert _FONT.sub(_letters, "font: 9px 'DejaVu Sans'") == "font-weight: normal; font-size: 9px"
    assert "DejaVu" not in svg_of(plots.curve_figure(analysis(["one"])), "", "")


def test_one_count_alone_shows_its_interval():
    from matplotlib.collections import LineCollection

    figure = plots.curve_figure(analysis(["one", "two"], [5]))
    lines = [found for ax in figure.axes for found in ax.collections if isinstance(found, LineCollection)]
    ends = [[round(y, 3) for _, y in segment] for line in lines for segment in line.get_segments()]
    assert ends == [[0.35, 0.45]] * 4  # two systems, two compositions


def test_systems_of_different_compositions_have_a_curve_each():
    found = analysis(["one", "two"])
    apart = [row for row in found.curve if (row.system == "one") == (row.composition == "single")]
    figure = plots.curve_figure(dataclasses.replace(found, curve=apart))
    svg_of(figure, "", "")  # warns where panels have no room
    assert [len(ax.lines) for ax in figure.axes] == [1, 1]


def test_of_many_systems_figures_show_the_first():
    names = [f"system {i}" for i in range(14)]
    shown = figures_of(analysis(names))
    assert {*shown} == {"curve", "layout", "appearance", "sensitivity", "detectors", "families", "collision"}
    for name, plot in shown.items():
        for svg in filter(None, (plot.narrow, plot.broad)):
            found = {text for text in texts(svg) if text.startswith("system")}
            assert found == {*names[:12]}, name


def test_several_panels_are_drawn_for_the_page_s_width_too():
    one, two = figures_of(analysis(["one"])), figures_of(analysis(["one", "two"]))
    assert {name for name, plot in one.items() if plot.broad} == {"curve", "families"}
    assert {name for name, plot in two.items() if plot.broad} == {"curve", "families", "collision"}
    sides = [ElementTree.fromstring(svg).get("viewBox").split() for svg in (two["curve"].narrow, two["curve"].broad)]
    assert [float(width) for _, _, width, _ in sides] == [canvas.WIDTH, canvas.BROAD]
    assert float(sides[0][3]) > 1.5 * float(sides[1][3])


def test_shares_have_intervals_from_either_end_of_their_bar():
    from matplotlib.collections import LineCollection

    figure = plots.families_figure(analysis(["one"]))
    lines = [found for found in figure.axes[0].collections if isinstance(found, LineCollection)]
    ends = {tuple(round(float(x), 3) for x, _ in segment) for line in lines for segment in line.get_segments()}
    assert ends == {(0.45, 0.55), (0.75, 0.85)}  # no error: 0.5; binding: 0.2 from the right


@pytest.mark.parametrize(("images", "hollow"), [(9, 0), (7, 1)])
def test_the_ensemble_is_shown_over_a_detector_s_images_where_these_are_fewer(images, hollow):
    found = analysis(["one"])
    cell = dataclasses.replace(found.overall[0], single_scored={"a": images}, ensemble_same={"a": some(0.45)})
    figure = forest.detector_figure(dataclasses.replace(found, overall=[cell]))
    marks = [line for line in figure.axes[0].lines if line.get_fillstyle() == "none"]
    assert [line.get_xdata() for line in marks] == [[0.45]] * hollow


def test_a_legend_is_read_row_by_row():
    names = [f"{letter} {'long' * 5}" for letter in "abc"]
    with canvas.drawing():
        figure, _ = canvas.panels([90.0])
        canvas.legend(figure, [(name, canvas.key(color="red")) for name in names])
        figure.draw_without_rendering()
    (first, second, third) = sorted(figure.legends[0].get_texts(), key=lambda text: text.get_text())
    across, down = zip(*(text.get_window_extent().min for text in (first, second, third)), strict=True)
    assert down[0] == down[1] > down[2]
    assert across[0] == across[2] < across[1]


def test_values_that_do_not_exist_are_left_out():
    found = analysis(["one", "two"])
    none = Estimate(None)
    gone = dataclasses.replace(
        found,
        curve=[dataclasses.replace(point, cw_nps=none) for point in found.curve],
        contrasts=[dataclasses.replace(row, cw_nps=none) for row in found.contrasts],
        sensitivity=[dataclasses.replace(row, relative=none) for row in found.sensitivity],
        families=[dataclasses.replace(row, scored=0) for row in found.families],
        overall=[dataclasses.replace(cell, cw_nps=none) for cell in found.overall],
    )
    assert [make(gone) for make in FIGURES[:-1]] == [None] * 6
    half = dataclasses.replace(found, curve=[dataclasses.replace(found.curve[0], cw_nps=none), *found.curve[1:]])
    assert plots.curve_figure(half) is not None


def test_many_counts_of_many_systems_stay_a_light_page():
    nine = analysis([f"system {i}" for i in range(9)], range(1, 101))
    assert len(svg_of(collision_figure(nine), "", "")) < 300_000
    assert len(svg_of(plots.curve_figure(nine), "", "")) < 200_000


def test_ids_differ_between_figures_and_each_reference_has_its_id():
    found = analysis(["one", "two"])
    all_ids = []
    for make in FIGURES:
        svg = svg_of(make(found), make.__name__, "")
        ids = re.findall(r' id="([^"]+)"', svg)
        assert {*re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', svg)} <= {(i, "") for i in ids} | {("", i) for i in ids}
        all_ids += ids
    assert len(all_ids) == len({*all_ids})


def test_title_and_description_are_read_aloud():
    root = ElementTree.fromstring(svg_of(plots.curve_figure(analysis(["one"])), "A & B", "<what> it shows"))
    title, description = root[0], root[1]
    assert (root.get("role"), title.text, description.text) == ("img", "A & B", "<what> it shows")
    assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"


def test_global_state_of_matplotlib_stays_as_it_was(monkeypatch):
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "font.size", 33.0)
    before = dict(matplotlib.rcParams)
    svg = svg_of(plots.curve_figure(analysis(["one"])), "", "")
    assert dict(matplotlib.rcParams) == before
    assert "font-size: 33" not in svg


@pytest.mark.parametrize("form", ["png", "svg", "pdf"])
def test_files_are_the_same_bytes_each_time(tmp_path, form):
    for name in ("a", "b"):
        canvas.save_figure(forest.layout_figure(analysis(["one"])), tmp_path / f"{name}.{form}")
    assert (tmp_path / f"a.{form}").read_bytes() == (tmp_path / f"b.{form}").read_bytes()


def test_no_two_of_many_systems_look_alike():
    names = [f"system {i}" for i in range(24)]
    found = canvas.looks(names)
    assert len({(look.color, look.marker, str(look.dash)) for look in found.values()}) == 24
    assert canvas.looks(names) == found


@pytest.mark.parametrize("names", [["multiple"], ["single", "multiple"], ["a zoo", "double", "multiple", "$x$"]])
def test_compositions_that_numbench_does_not_know_have_panels(names):
    found = analysis(["one", "two"])
    some_rows = {
        name: [dataclasses.replace(row, composition=c) for c in names for row in rows if row.composition == "single"]
        for name, rows in (("curve", found.curve), ("families", found.families))
    }
    figures = [make(dataclasses.replace(found, **some_rows)) for make in (plots.curve_figure, plots.families_figure)]
    titles = [[ax.get_title(loc="left") for ax in figure.axes if ax.get_visible()] for figure in figures]
    assert sorted(titles[1]) == sorted(names)
    assert sorted(title.removesuffix(" category") for title in titles[0]) == sorted(names)
    assert all(ax.lines for ax in figures[0].axes)
    assert all(ax.patches for ax in figures[1].axes if ax.get_visible())
