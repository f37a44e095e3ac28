"""Texts of phrases as tokens and masks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tallymill.engine.detectors.phrases import Phrase, blocks, compose, groups, spans

CLOSING = (101, 102, 1012, 1029)
START, END, STOP = 101, 102, 1012


def phrase(*tokens):
    row = np.array(tokens, np.int64)
    embeds = np.repeat(row[:, None].astype(np.float32), 2, 1)
    return Phrase(row, embeds, np.flatnonzero(~np.isin(row, CLOSING)))


CAT, WET_DOG, ST_DOG = phrase(5, 6, STOP), phrase(5, 7, 8, STOP), phrase(9, STOP, 8, STOP)


def test_a_block_ends_with_what_closes_it():
    attention, positions = blocks(np.array([START, 5, 6, STOP, 7, STOP, END]), CLOSING)
    assert positions.tolist() == [0, 0, 1, 2, 0, 1, 0]
    assert attention.astype(int).tolist() == [
        [1, 0, 0, 0, 0, 0, 0],
        [0, 1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0, 0],
        [0, 1, 1, 1, 0, 0, 0],
        [0, 0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 1, 1, 0],
        [0, 0, 0, 0, 0, 0, 1],
    ]


@given(st.lists(st.lists(st.sampled_from([5, 6, 7, STOP, 1029]), max_size=5), min_size=1, max_size=4))
def test_a_phrase_reads_the_same_whatever_stands_beside_it(rows):
    phrases = [np.array([*row, STOP]) for row in rows]
    attention, positions = blocks(np.concatenate([[START], *phrases, [END]]), CLOSING)
    first = 1
    for row in phrases:
        own = slice(first, first + len(row))
        alone = blocks(row, CLOSING)
        np.testing.assert_array_equal(attention[own, own], alone[0])
        np.testing.assert_array_equal(positions[own], alone[1])
        assert attention[own].sum() == alone[0].sum()
        first += len(row)


def test_the_shorter_text_of_a_batch_is_padded_with_what_nothing_sees():
    start, end = phrase(START), phrase(END)
    batch = compose([[start, CAT, WET_DOG, end], [start, CAT, end]], CLOSING)
    alone = compose([[start, CAT, end]], CLOSING)
    assert {name: value.shape for name, value in batch.items()} == {
        "text": (2, 9, 2),
        "text_mask": (2, 9),
        "text_attention": (2, 9, 9),
        "text_positions": (2, 9),
    }
    assert batch["text_mask"].sum(1).tolist() == [9, 5]
    for name, value in alone.items():
        np.testing.assert_array_equal(batch[name][(1, *map(slice, value.shape[1:]))], value[0])
    np.testing.assert_array_equal(batch["text_attention"][1, 5:], np.eye(9, dtype=bool)[5:])
    assert not batch["text"][1, 5:].any()


def test_a_category_is_answered_by_its_own_words():
    # [CLS] 5 6 . 9 . 8 . 5 7 8 . [SEP]: the stops, of which one is inside a category, and the ends count for none
    assert [each.tolist() for each in spans([CAT, ST_DOG, WET_DOG], 1)] == [[1, 2], [4, 6], [8, 9, 10]]
    assert [each.tolist() for each in spans([CAT], 3)] == [[3, 4]]


def test_phrases_fill_one_text_after_the_other():
    assert [g.tolist() for g in groups([3, 4, 4, 3, 14, 1], 14)] == [[0, 1, 2, 3], [4], [5]]
    assert [g.tolist() for g in groups([14, 14], 14)] == [[0], [1]]
    assert [g.tolist() for g in groups([1], 14)] == [[0]]
