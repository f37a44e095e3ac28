"""Repeated item ids are found exactly, with a few bytes an item."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallymill.engine.items import DuplicateCheck
from tallymill.engine.manifests.hashing import UInt64s, hash64
from tallymill.errors import ManifestError


class Source:
    """Batches of ids that count how often they are read."""

    def __init__(self, ids: list[str], size: int = 3) -> None:
        self.ids, self.size, self.reads = ids, size, 0

    def __call__(self) -> Iterator[pa.RecordBatch]:
        self.reads += 1
        for start in range(0, len(self.ids), self.size):
            yield pa.RecordBatch.from_arrays([pa.array(self.ids[start : start + self.size], pa.string())], ["item_id"])


def check(source: Source, weak: bool = False) -> None:
    def lengths(ids: pa.Array) -> UInt64s:
        return np.array([len(text) for text in ids.to_pylist()], np.uint64)

    duplicates = DuplicateCheck(source, hasher=lengths) if weak else DuplicateCheck(source)
    for batch in source():
        duplicates.add(batch)
    duplicates.finish()


def test_unique_ids_are_read_once() -> None:
    source = Source([f"item-{i}" for i in range(10_000)], 999)
    check(source)
    assert source.reads == 1


def test_names_ids_and_rows() -> None:
    with pytest.raises(ManifestError) as caught:
        check(Source(["x", "b", "a", "b", "c", "a", "b"]))
    assert "2 item_ids stand more than once" in caught.value.message
    assert "'b': rows 2, 4, 7\n  'a': rows 3, 6" in caught.value.message
    assert caught.value.hint


def test_equal_hashes_of_different_ids_are_no_duplicates() -> None:
    source = Source(["a", "b", "cc", "dd", "eee"])
    check(source, weak=True)
    assert source.reads == 2
    with pytest.raises(ManifestError, match=r"'dd': rows 4, 6"):
        check(Source(["a", "b", "cc", "dd", "eee", "dd"]), weak=True)


def test_at_most_ten_are_shown_though_all_repeat() -> None:
    ids = [f"item-{i}" for i in range(6000)]
    with pytest.raises(ManifestError) as caught:
        check(Source(ids + ids, 500))
    assert "at least 4096" in caught.value.message
    assert caught.value.message.count("rows ") == 10
    with pytest.raises(ManifestError, match=r"rows 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, …"):
        check(Source(["same"] * 500))


def test_no_rows() -> None:
    check(Source([]))


def test_memory_an_item() -> None:
    n = 300_000
    ids = pa.array(np.arange(n)).cast(pa.string())
    duplicates = DuplicateCheck(lambda: iter(()))
    for start in range(0, n, 4096):
        duplicates.add(pa.RecordBatch.from_arrays([ids.slice(start, 4096)], ["item_id"]))
    assert 8 * n <= duplicates.nbytes <= 16 * n
    duplicates.finish()
    assert duplicates.nbytes <= 16 * n


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.text("ab é😀\0") | st.binary(min_size=250, max_size=300).map(lambda data: data.hex()), min_size=1))
def test_hash_does_not_depend_on_place(texts: list[str]) -> None:
    together = hash64(pa.array(texts, pa.string()))
    alone = [hash64(pa.array([text], pa.string()))[0] for text in texts]
    assert together.tolist() == alone
    shifted = pa.array(["padding", *texts], pa.string()).slice(1)
    assert hash64(shifted).tolist() == alone


def test_hash_spreads_similar_ids() -> None:
    names = [f"item-{i:08d}" for i in range(50_000)] + ["a" * i for i in range(600)] + ["\0" * i for i in range(1, 600)]
    hashes = hash64(pa.array(names))
    assert len(np.unique(hashes)) == len(names)
    # Each of the 64 bits is set in about half of the hashes: 8 standard deviations are allowed.
    set_bits = np.array([np.count_nonzero(hashes >> np.uint64(bit) & np.uint64(1)) for bit in range(64)])
    assert np.all(np.abs(set_bits - len(names) / 2) < 4 * np.sqrt(len(names)))
