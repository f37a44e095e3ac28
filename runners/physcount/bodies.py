"""The body of a server's reply: what is in it, and what of it may be shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

MOST_TEXT = 500
# Of so many bytes the beginning is shown; then the last character may be cut, which decoders say in these words.
_MOST_READ, _CUT = 16 << 10, ("unexpected end of data", "truncated data")
# No reply of use is so deep, and everything that walks through a value later does so by recursion.
_MOST_NESTED = 64
_CHARSET = re.compile(r"""charset=["']?([\w.:-]+)""", re.IGNORECASE)
# Nothing that a terminal obeys is shown, and nothing that stands between the characters of a secret.
_CONTROLS = dict.fromkeys(code for code in (*range(0x20), *range(0x7F, 0xA0)) if not chr(code).isspace())


class Body:
    """The bytes of a reply. ``hide`` takes secrets out of what is shown, before that is cut."""

    def __init__(self, headers: Mapping[str, str], data: bytes, hide: Callable[[str], str]) -> None:
        self._headers, self.data, self._hide = headers, data, hide

    def value(self) -> Any:
        """What it is as JSON; a ``ValueError`` where it is none, or nested so deeply that it can be no answer."""
        try:
            value = json.loads(self.data)
        except RecursionError:
            value, deep = None, True
        else:
            deep = _is_deep(value)
        if deep:
            raise ValueError(f"nested more than {_MOST_NESTED} deep")
        return value

    def told(self) -> str:
        """What a server says of an error, in whichever of the usual places."""
        try:
            found = self.value()
        except ValueError:
            return self.text()
        for name in ("error", "message", "detail"):
            if isinstance(found, dict) and found.get(name):
                found = found[name]
        return self.short(found if isinstance(found, str) else json.dumps(found))

    def text(self) -> str:
        """The beginning of it as text."""
        return self.short(_decoded(self._headers, self.data[:_MOST_READ]))

    def short(self, text: str) -> str:
        """The beginning of a text, on one line."""
        shown = " ".join(self._hide(text.translate(_CONTROLS)).split())
        shown = shown.encode("utf-8", "replace").decode("utf-8")  # halves of characters are none
        return shown if len(shown) <= MOST_TEXT else shown[: MOST_TEXT - 1] + "…"


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(_MOST_NESTED):
        level = [
            inner
            for one in level
            if isinstance(one, dict | list)
            for inner in (one.values() if isinstance(one, dict) else one)
        ]
        if not level:
            return False
    return True


def _decoded(headers: Mapping[str, str], data: bytes) -> str:
    """By its mark or its zeros, as JSON is; else UTF-8, or what the header says."""
    encoding = json.detect_encoding(data)
    named = _CHARSET.search(headers.get("Content-Type", ""))
    for name in (encoding, named[1] if named else encoding):
        try:
            return data.decode(name)
        except UnicodeDecodeError as exc:
            if exc.reason in _CUT:
                return data[: exc.start].decode(name)
        except (LookupError, ValueError):
            continue
    return data.decode(encoding, "replace")
