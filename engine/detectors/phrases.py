"""Texts for detectors that read one phrase a category, ``[CLS] a cat . a dog . [SEP]``, as tokens and masks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tallymill.engine.sessions.base import Array


@dataclass(frozen=True, slots=True)
class Phrase:
    """An encoded phrase: ``tokens`` int64 [n] with the stop that ends it, and ``embeds`` float32 [n, D].

    ``named`` int64 [m] are the places of the tokens that stand for the category: all but those that close a phrase.
    """

    tokens: NDArray[np.int64]
    embeds: NDArray[np.float32]
    named: NDArray[np.int64]


def blocks(tokens: NDArray[np.int64], closing: Sequence[int]) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """Which tokens see one another, bool [n, n], and where each stands in its block, int64 [n].

    A token that closes ends a block, itself included: a ``.`` inside a category makes two blocks of it.
    """
    closes = np.isin(tokens, closing)
    block: NDArray[np.int64] = np.cumsum(closes) - closes
    first = np.searchsorted(block, block)  # blocks are numbered in order
    return block[:, None] == block[None, :], np.arange(len(tokens)) - first


def compose(texts: Sequence[Sequence[Phrase]], closing: Sequence[int]) -> dict[str, Array]:
    """The text inputs of a batch, each text from its phrases, shorter ones padded.

    ``text`` float32 [B, L, D], ``text_mask`` bool [B, L], ``text_attention`` bool [B, L, L], ``text_positions`` int64
    [B, L]. Padding sees itself alone, and nothing sees it.
    """
    tokens = [np.concatenate([phrase.tokens for phrase in text]) for text in texts]
    longest = max(map(len, tokens))
    text = np.zeros((len(texts), longest, texts[0][0].embeds.shape[1]), np.float32)
    mask = np.zeros((len(texts), longest), np.bool_)
    attention = np.repeat(np.eye(longest, dtype=np.bool_)[None], len(texts), axis=0)
    positions = np.zeros((len(texts), longest), np.int64)
    for row, phrases in enumerate(texts):
        n = len(tokens[row])
        text[row, :n] = np.concatenate([phrase.embeds for phrase in phrases])
        mask[row, :n] = True
        attention[row, :n, :n], positions[row, :n] = blocks(tokens[row], closing)
    return {"text": text, "text_mask": mask, "text_attention": attention, "text_positions": positions}


def groups(lengths: Sequence[int], room: int) -> list[NDArray[np.int64]]:
    """Phrases of these ``lengths``, in order, over as few texts as hold at most ``room`` tokens each, by place."""
    found: list[list[int]] = [[]]
    used = 0
    for place, length in enumerate(lengths):
        if found[-1] and used + length > room:
            found.append([])
            used = 0
        found[-1].append(place)
        used += length
    return [np.array(group, np.int64) for group in found]


def spans(phrases: Sequence[Phrase], first: int) -> list[NDArray[np.int64]]:
    """Of a text whose phrases begin at token ``first``, the places of each phrase's named tokens, int64 [m]."""
    starts = first + np.cumsum([0, *(len(phrase.tokens) for phrase in phrases)])
    return [start + phrase.named for start, phrase in zip(starts, phrases, strict=False)]
