"""What all figures share: colours, sizes, names that are cut, and a matplotlib without its global state."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from unicodedata import east_asian_width

from tallymill.errors import MissingExtraError

# Okabe and Ito's colours, told apart with any colour vision; those that stand out on white and on black alike first.
# Their yellow and black do not, and make room for a grey and a brown.
SERIES = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#8A8A8A", "#A5673F")
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.2, 1.2, 1.2)))
# In SVG these become the page's own colours (see svg.py), so nothing else may be drawn in them.
INK, GRID = "#1b1c1d", "#d3d4d5"
# Points (1/72 inch). A figure is as wide as a phone, or BROAD: as the page on a desk. With svg.LARGEST its letters are
# 9 to 13 pixels high on either, beside one another alike.
WIDTH, BROAD, LETTERS, ROW = 360.0, 788.0, 10.0, 14.0
# Counts from here on lie in a range of factors.STRESS_RANGES.
STRESS_FROM = 50.5
STYLE: Any = {
    "font.family": ["DejaVu Sans"],
    "font.size": LETTERS,
    "text.parse_math": False,  # a system may be called "$x$"
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "axes.titlesize": LETTERS,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "xtick.color": INK,
    "ytick.color": INK,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "lines.linewidth": 1.5,
    "lines.solid_capstyle": "butt",
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "legend.handlelength": 2.2,
    "legend.columnspacing": 1.4,
    "legend.handletextpad": 0.5,
    "figure.constrained_layout.use": True,
    "figure.constrained_layout.wspace": 0.04,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "svg.fonttype": "none",
    "svg.hashsalt": "tallymill",
    "savefig.facecolor": "white",
}
FORMS = (".png", ".svg", ".pdf")
P = ParamSpec("P")
R = TypeVar("R")


@contextmanager
def drawing() -> Iterator[Any]:
    """Matplotlib with the style of these figures; a glyph that its own font lacks is no fault (browsers have it)."""
    try:
        import matplotlib
    except ModuleNotFoundError as exc:
        if exc.name != "matplotlib":
            raise
        raise MissingExtraError.of("matplotlib", "report") from None
    with matplotlib.rc_context(), warnings.catch_warnings():
        matplotlib.rcdefaults()  # not what a user's matplotlibrc says
        matplotlib.rcParams.update(STYLE)
        warnings.filterwarnings("ignore", "Glyph .* missing from")
        yield matplotlib


def drawn(make: Callable[P, R]) -> Callable[P, R]:
    """Let a function that makes a figure run with that style."""

    @wraps(make)
    def styled(*args: P.args, **kwargs: P.kwargs) -> R:
        with drawing():
            return make(*args, **kwargs)

    return styled


def panels(
    heights: Sequence[float], columns: int = 1, *, extra: float = 0.0, broad: bool = False, **options: Any
) -> tuple[Any, Any]:
    """A figure of ``WIDTH`` or ``BROAD`` with rows of panels, ``heights`` in points; -> (figure, axes [rows, columns]).

    ``extra`` is the height of what stands above and below: legend, titles, labels.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=((BROAD if broad else WIDTH) / 72, (sum(heights) + extra) / 72))
    FigureCanvasAgg(figure)
    ratios = {"height_ratios": list(heights)}
    return figure, figure.subplots(len(heights), columns, squeeze=False, gridspec_kw=ratios, **options)


@dataclass(frozen=True, slots=True)
class Look:
    """How one series is drawn: no two of up to 96 are alike, nor alike in grey until the thirteenth."""

    name: str
    color: str
    marker: str
    dash: Any


def looks(names: Sequence[str]) -> dict[str, Look]:
    """A look for each name, by its place; names that are cut stay different from one another."""
    cut = shortened(names, 26)
    return {
        name: Look(cut[i], SERIES[i % len(SERIES)], MARKERS[i % len(MARKERS)], DASHES[i // len(SERIES) % len(DASHES)])
        for i, name in enumerate(dict.fromkeys(names))
    }


def shortened(names: Sequence[str], length: int) -> list[str]:
    """Each different name once, on one line, without control characters, cut in its middle and numbered where alike."""
    result: list[str] = []
    for name in dict.fromkeys(names):
        text = (
            " ".join(re.sub(r"[^\S ]|[\x00-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", " ", name).split()) or "(no name)"
        )
        if len(text) > length:
            text = f"{text[: length * 2 // 3]}…{text[-(length // 3 - 1) :]}"
        number = 2
        once = text
        while text in result:
            text, number = f"{once} ({number})", number + 1
        result.append(text)
    return result


def legend(figure: Any, entries: Sequence[tuple[str, Any]]) -> None:
    """A legend above all panels, row by row in as many columns as fit. Entries are (text, artist)."""
    columns = _legend_columns([text for text, _ in entries], 72 * figure.get_figwidth())
    entries = [entry for column in range(columns) for entry in entries[column::columns]]  # matplotlib fills columns
    box = figure.legend(
        [artist for _, artist in entries], ["x"] * len(entries), loc="outside upper left", ncols=columns
    )
    # Set afterwards: matplotlib leaves out what begins with an underscore.
    for place, (text, _) in zip(box.get_texts(), entries, strict=True):
        place.set_text(text)


def legend_height(texts: Sequence[str], *, broad: bool = False) -> float:
    """The points that :func:`legend` needs."""
    return 15.0 * -(-len(texts) // _legend_columns(texts, BROAD if broad else WIDTH)) + 10


def _legend_columns(texts: Sequence[str], width: float) -> int:
    """As many as fit, by the longest text of each."""

    def room(columns: int) -> float:
        return sum(40 + max(map(_length, texts[column::columns])) for column in range(columns))

    return max((columns for columns in range(2, len(texts) + 1) if room(columns) <= width), default=1)


def _length(text: str) -> float:
    """About the points that a text takes, in whatever font the page has."""
    return sum(
        10.4 if letter in "MW@%" or east_asian_width(letter) in "WF" else 6.2 + letter.isupper() for letter in text
    )


def key(**look: Any) -> Any:
    """A legend's artist: a line, a marker or both."""
    from matplotlib.lines import Line2D

    return Line2D([], [], **look)


def hide_after(axes: Any, number: int, label: str = "") -> None:
    """Of axes [rows, columns] only the first ``number`` are used; the last of each column has ticks and label of x."""
    columns = axes.shape[1]
    for place, ax in enumerate(axes.flat):
        if place >= number:
            ax.set_visible(False)
        elif place + columns >= number:
            ax.tick_params(labelbottom=True)
            ax.set_xlabel(label)


def ends_inside(ax: Any) -> None:
    """The first and last label of the x-axis stay within its length, so that panels abreast do not run together."""
    labels = ax.get_xticklabels()
    labels[0].set_horizontalalignment("left")
    labels[-1].set_horizontalalignment("right")


def shade_stress(ax: Any, last: float, *, below: bool = False) -> None:
    """Mark counts above 50, where scores are a stress test and not a validated measure."""
    if last > STRESS_FROM:
        ax.axvspan(STRESS_FROM, ax.get_xlim()[1], color=GRID, alpha=0.35, linewidth=0, zorder=0)
        middle, above = (STRESS_FROM + ax.get_xlim()[1]) / 2, ax.get_xaxis_transform()
        height, side = (0.03, "bottom") if below else (0.97, "top")
        ax.text(middle, height, "stress test", ha="center", va=side, transform=above)


def save_figure(figure: Any, path: Path, form: str | None = None) -> None:
    """Write a figure to ``path`` (.png at 200 dots an inch, .svg, .pdf); the same figure gives the same bytes."""
    kind = form or path.suffix.removeprefix(".")
    dates = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with drawing():
        figure.savefig(path, format=kind, dpi=200, metadata=dates.get(kind))
