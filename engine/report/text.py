"""How values and strange texts are shown: scores to three decimals, long texts cut, the invisible made visible."""

from __future__ import annotations

import math

NOTHING = "–"
# Control characters would vanish or be refused by a browser; their pictures stand 0x2400 higher.
_CONTROLS = {code: 0x2400 + code for code in range(32)} | {127: 0x2421} | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)


def shown(text: object, longest: int = 200) -> str:
    """Any text on one line: controls as pictures, and the middle left out where it is longer than ``longest``."""
    whole = " ".join(str(text).split())
    if len(whole) > longest:
        head, tail = longest * 2 // 3, longest // 4
        whole = f"{whole[:head]} … {whole[-tail:]} ({len(whole):,} characters)"
    return whole.translate(_CONTROLS)


def score(value: float | None) -> str:
    """A score or share as papers write it: .553, 1.000; a dash where there is none."""
    if value is None or math.isnan(value):
        return NOTHING
    return signless(f"{value:.3f}")


def difference(value: float | None) -> str:
    """The same with its sign, for contrasts."""
    if value is None or math.isnan(value):
        return NOTHING
    text = f"{value:+.3f}"
    return ".000" if text in ("+0.000", "-0.000") else text[0].replace("-", "−") + signless(text[1:])


def signless(text: str) -> str:
    """Without the zero before the point, and with a true minus sign."""
    minus, digits = ("−", text[1:]) if text.startswith("-") else ("", text)
    return minus + (digits[1:] if digits.startswith("0.") else digits)


def amount(value: float | None, decimals: int = 1) -> str:
    """A number of objects: 17.4; a dash where there is none."""
    if value is None or math.isnan(value):
        return NOTHING
    return f"{value:,.{decimals}f}".replace("-", "−")


def signed(value: float | None, decimals: int = 1) -> str:
    """The same with its sign."""
    return (
        amount(value, decimals) if value is None or math.isnan(value) else f"{value:+,.{decimals}f}".replace("-", "−")
    )


def share(value: float | None) -> str:
    """A share in per cent, as :func:`percent` writes it; a dash where there is none."""
    return NOTHING if value is None or math.isnan(value) else percent(value, 1)


def percent(part: float, whole: float) -> str:
    """A share in per cent, with one decimal where it is small."""
    if not whole:
        return NOTHING
    share = 100 * part / whole
    return f"{share:.1f} %" if 0 < share < 10 else f"{share:.0f} %"
