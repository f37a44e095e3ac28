"""Secrets, found in a text in whichever form a server gives them back, and taken out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from html.entities import html5
from typing import Any

# A shorter key ("EMPTY", "none", "1") keeps nothing secret, and taking it out would spoil texts.
_SHORTEST = 8
_INSTEAD = "[secret]"
_NAMED: dict[str, list[str]] = {}
for _name, _character in html5.items():
    if _name.endswith(";"):
        _NAMED.setdefault(_character, []).append(_name.removesuffix(";"))
_AND, _HASH, _END = r"(?:&|\\{1,4}u0026|%(?:25)*26)", r"(?:#|%(?:25)*23)", r"(?:;|%(?:25)*3[Bb])"


class Hiding:
    """Takes some secrets out of texts: as they are, percent-encoded, and as JSON or HTML may write them."""

    def __init__(self, secrets: Iterable[str]) -> None:
        kept = sorted({secret for secret in secrets if len(secret) >= _SHORTEST}, key=len, reverse=True)
        patterns = ["".join(map(_any_form, secret)) for secret in kept]
        self._pattern = re.compile("|".join(patterns)) if patterns else None

    def text(self, text: str) -> str:
        """A text without them."""
        return text if self._pattern is None else self._pattern.sub(_INSTEAD, text)

    def body(self, body: bytes) -> bytes:
        """Bytes of a text without them; all other bytes as they are."""
        return self.text(body.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")

    def value(self, value: Any) -> Any:
        """A value of JSON without them, however deep they stand."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, list):
            return [self.value(one) for one in value]
        if isinstance(value, dict):
            return {self.text(name): self.value(one) for name, one in value.items()}
        return value


def _any_form(character: str) -> str:
    r"""A pattern for one character: itself, ``\/``, ``\u002f``, ``%2F``, ``&#47;``, and these encoded once more."""
    plain = re.escape(character)
    units = character.encode("utf-16-be", "surrogatepass")
    escaped = "".join(rf"\\{{1,4}}u{units[k]:02x}{units[k + 1]:02x}" for k in range(0, len(units), 2))
    percent = "".join(f"%(?:25)*{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
    forms = [plain if character.isalnum() else rf"\\{{0,4}}{plain}", f"(?i:{escaped})", f"(?i:{percent})"]
    forms.append(_html(character))
    if character == " ":
        forms.append(r"\+")
    return f"(?:{'|'.join(forms)})"


def _html(character: str) -> str:
    """A pattern for a character as HTML may write it, by name or number, where its signs may be escaped in turn."""
    code = ord(character)
    names = [*map(re.escape, _NAMED.get(character, ())), f"{_HASH}0*{code}", f"(?i:{_HASH}x0*{code:x})"]
    return f"{_AND}(?:amp{_END})*(?:{'|'.join(names)}){_END}"
