"""A figure as SVG that can stand inside a page: in its colours and letters, with ids that no other figure has."""

from __future__ import annotations

import hashlib
import io
import re
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

from tallymill.engine.report.canvas import GRID, INK, drawing

NAMESPACE, LINK = "{http://www.w3.org/2000/svg}", "{http://www.w3.org/1999/xlink}href"
# Matplotlib's own black, grid and white too, for figures that were not made with canvas.py.
PAGE_COLOURS = {
    **dict.fromkeys((INK, "#000000"), "var(--ink, currentColor)"),
    **dict.fromkeys((GRID, "#b0b0b0"), "var(--grid, #8885)"),
    "fill: #ffffff": "fill: none",
}
# A figure is shown at most so many times as large as it was drawn: letters of canvas.LETTERS are then 13 pixels high.
LARGEST = 1.3
_REFERENCE = re.compile(r"(url\(#|^#)([\w.-]+)")
_DECIMALS = re.compile(r"\d+\.\d+")
# Matplotlib before 3.11 writes "font: bold 9px 'DejaVu Sans'".
_FONT = re.compile(r"font: (?:(bold|\d+) )?([\d.]+px) [^;]*")
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True, slots=True)
class Plot:
    """A figure on the page as SVG: ``narrow`` for phones and for half a page, ``broad`` for a page's width.

    Without ``broad`` it stays half as wide as the page, wherever that has room.
    """

    narrow: str
    broad: str = ""


def svg_of(figure: Any, title: str, description: str) -> str:
    """The figure as an ``<svg>`` element, the same bytes for the same figure, title and description.

    Text stays text, in the page's font. Ink and grid take the page's ``--ink`` and ``--grid``, and the paper is
    transparent, so that one SVG serves light and dark pages. It fills the width that it gets, to some limit.
    """
    with drawing():
        stream = io.BytesIO()
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(stream, format="svg", facecolor="none", metadata=nothing)
    root = ElementTree.fromstring(stream.getvalue())
    text = "\0".join((title, description)).encode("utf-8", "replace")
    prefix = "f" + hashlib.sha256(text + stream.getvalue()).hexdigest()[:8]
    _plain(root)
    _rename(root, prefix)
    _frame(root, prefix, title, description)
    ElementTree.register_namespace("", NAMESPACE[1:-1])
    return ElementTree.tostring(root, "unicode")


def _plain(root: ElementTree.Element) -> None:
    """Take out what is for a file of its own, and give ink, grid and letters to the page."""
    for parent in reversed([*root.iter()]):
        for child in [*parent]:
            # A rule for "*" would reach every element of the page.
            if child.tag in (f"{NAMESPACE}metadata", f"{NAMESPACE}style"):
                parent.remove(child)
        style = parent.get("style", "")
        for ours, theirs in PAGE_COLOURS.items():
            style = style.replace(ours, theirs)
        style = _FONT.sub(_letters, style)
        style = re.sub(r"font-family:[^;]*;?\s*", "", style)
        if style:
            parent.set("style", style)
        for name in {"d", "x", "y", "transform"} & parent.attrib.keys():
            short = _DECIMALS.sub(lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), parent.attrib[name])
            parent.set(name, " ".join(short.split()))
        # What all marks of a line say, their group says once.
        styles = {child.get("style") for child in parent}
        if len(parent) > 1 and len(styles) == 1 and all(child.tag == f"{NAMESPACE}use" for child in parent):
            parent.set("style", styles.pop() or "")
            for child in parent:
                del child.attrib["style"]
        if parent.tag != f"{NAMESPACE}text":
            parent.text = None
        parent.tail = None


def _letters(font: re.Match[str]) -> str:
    return f"font-weight: {font[1] or 'normal'}; font-size: {font[2]}"


def _rename(root: ElementTree.Element, prefix: str) -> None:
    """Ids that are referred to become short ones with the prefix; the others go."""
    used: dict[str, str] = {}

    def renamed(found: re.Match[str]) -> str:
        return found[1] + used.setdefault(found[2], f"{prefix}-{len(used)}")

    for element in root.iter():
        for name, value in [*element.attrib.items()]:
            if name == LINK:
                del element.attrib[LINK]
            if name != "d":
                element.set("href" if name == LINK else name, _REFERENCE.sub(renamed, value))
    for element in root.iter():
        own = element.attrib.pop("id", "")
        if own in used:
            element.set("id", used[own])


def _frame(root: ElementTree.Element, prefix: str, title: str, description: str) -> None:
    width, height = (float(part) for part in root.attrib["viewBox"].split()[2:])
    box = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-labelledby": f"{prefix}-title {prefix}-desc"}
    root.attrib.clear()
    root.attrib.update(box)
    lines = "stroke-linejoin: round; stroke-linecap: butt"  # what the removed rule said
    root.set(
        "style",
        f"display: block; width: 100%; max-width: {width * LARGEST:.0f}px; height: auto; "
        f"aspect-ratio: {width:g} / {height:g}; font-family: system-ui, sans-serif; {lines}; "
        "fill: var(--ink, currentColor)",  # black, the default, is not written at each element
    )
    for place, (tag, text) in enumerate((("title", title), ("desc", description))):
        element = ElementTree.Element(f"{NAMESPACE}{tag}", id=f"{prefix}-{tag}")
        element.text = _NOT_XML.sub("�", text)
        root.insert(place, element)
