"""Secrets, found in a text in whichever form a server gives them back, and taken out."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

# A shorter key ("EMPTY", "none", "1") keeps nothing secret, and taking it out would spoil texts.
_SHORTEST = 8
_INSTEAD = "[secret]"


class Hiding:
    """Takes some secrets out of texts: as they are, percent-encoded, and as JSON may write them."""

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
    r"""A pattern for one character: itself, ``\/``, ``\u002f``, ``%2F``, and these encoded once more."""
    plain = re.escape(character)
    units = character.encode("utf-16-be", "surrogatepass")
    escaped = "".join(rf"\\{{1,4}}u{units[k]:02x}{units[k + 1]:02x}" for k in range(0, len(units), 2))
    percent = "".join(f"%(?:25)*{byte:02x}" for byte in character.encode("utf-8", "surrogatepass"))
    forms = [plain if character.isalnum() else rf"\\{{0,4}}{plain}", f"(?i:{escaped})", f"(?i:{percent})"]
    if character == " ":
        forms.append(r"\+")
    return f"(?:{'|'.join(forms)})"
