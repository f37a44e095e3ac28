"""What detectors that read text have in common: a tokenizer, and encoded categories that are kept."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.bundles import Bundle
from tallymill.engine.detectors.base import Detector
from tallymill.errors import MissingExtraError, ModelError

T = TypeVar("T")


class Tokenize(Protocol):
    """Text to the numbers of its tokens, without the tokens that models put around it."""

    def __call__(self, text: str) -> list[int]:
        """Tokens of one text."""
        ...


def load_tokenizer(file: Path) -> Tokenize:
    """The tokenizer of a bundle, a JSON file of the package ``tokenizers``. Raises ``ModelError`` when it is none."""
    with MissingExtraError.unless("tokenizers", extra="text"):
        from tokenizers import Tokenizer
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as exc:  # the package raises Exception itself
        raise ModelError(f"{file}: not a tokenizer: {exc}", hint="export the model anew (tallymill export)") from exc
    tokenizer.no_padding()
    tokenizer.no_truncation()

    def tokenize(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    return tokenize


def token_rows(
    tokenize: Tokenize, texts: Sequence[str], start: int, end: int, most: int, names: Sequence[str] | None = None
) -> list[list[int] | str]:
    """Tokens of each text between its start and its end, or why there are too many; ``names`` stand in the reason."""
    rows = [[start, *tokenize(text), end] for text in texts]
    return [
        row if len(row) <= most else f"the category {name!r} is {len(row)} tokens long; the model reads {most}"
        for name, row in zip(names or texts, rows, strict=True)
    ]


def padded(rows: Sequence[Sequence[int]], length: int, pad: int) -> dict[str, NDArray[np.int64]]:
    """Rows of tokens -> ``tokens`` and ``mask`` int64 [Q, length], as text encoders take them."""
    tokens = np.full((len(rows), length), pad, np.int64)
    mask = np.zeros_like(tokens)
    for place, row in enumerate(rows):
        tokens[place, : len(row)], mask[place, : len(row)] = row, 1
    return {"tokens": tokens, "mask": mask}


class Learned(Generic[T]):
    """Encoded categories: each is encoded once, and the last ones that were asked for have a place.

    ``encode`` takes categories that are new and gives for each its encoding, or a text that says why there is none.
    ``encoded`` counts the categories that the model has encoded so far.
    """

    def __init__(self, encode: Callable[[Sequence[str]], Sequence[T | str]]) -> None:
        self._encode = encode
        self._kept: dict[str, T | str] = {}
        self._places: list[T | str] = []
        self.encoded = 0

    def learn(self, categories: Sequence[str | None]) -> dict[int, str]:
        """Encode what is new; what is wrong with categories that cannot be encoded, by place."""
        new = list(dict.fromkeys(name for name in categories if name is not None and name not in self._kept))
        if new:
            found = self._encode(new)
            self._kept.update(zip(new, found, strict=True))
            self.encoded += sum(not isinstance(each, str) for each in found)
        self._places = ["no category" if name is None else self._kept[name] for name in categories]
        return {place: what for place, what in enumerate(self._places) if isinstance(what, str)}

    def __getitem__(self, place: int) -> T:
        """The encoding at a place of the categories that were last learned."""
        found = self._places[place]
        if isinstance(found, str):
            raise ModelError(found)
        return found


class ReadsText(Detector, Generic[T]):
    """A detector with a tokenizer and a part ``text`` that encodes categories: each once in the life of a process."""

    learned: Learned[T]

    def open_text(self, bundle: Bundle, threads: int) -> None:
        """Open the bundle's tokenizer and text encoder. Raises ``ModelError`` when it lacks one."""
        if bundle.tokenizer is None:
            raise bundle.error("has no tokenizer")
        self._text = bundle.session("text", threads=threads, batch=1)
        self._tokenize = load_tokenizer(bundle.tokenizer)
        self.learned = Learned(self._encode)

    @abstractmethod
    def _encode(self, categories: Sequence[str]) -> Sequence[T | str]:
        """See ``Learned``."""

    def learn(self, categories: Sequence[str | None]) -> Mapping[int, str]:
        """See ``Detector.learn``."""
        return self.learned.learn(categories)

    @property
    def encoded(self) -> int:
        """See ``Detector.encoded``."""
        return self.learned.encoded
