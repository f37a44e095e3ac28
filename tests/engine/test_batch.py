import numpy as np
import pyarrow as pa
import pytest

from tallymill.engine.batch import MAX_TARGETS, batch_of
from tallymill.engine.items import read_items


def rows(*targets):
    values = [
        {
            "item_id": f"i{k}",
            "image": f"{k}.jpg",
            "targets": None if t is None else [{"category": c, "count": n} for c, n in t],
        }
        for k, t in enumerate(targets)
    ]
    return next(read_items(pa.Table.from_pylist(values)))


def test_targets_are_flat_with_offsets():
    batch = batch_of(rows([("cat", 3), ("dog", 2)], [("dog", 7)]))
    targets = batch.targets
    assert targets.offsets.tolist() == [0, 2, 3]
    assert [targets.categories[code] for code in targets.codes] == ["cat", "dog", "dog"]
    assert targets.count.tolist() == [3, 2, 7]
    assert targets.item.tolist() == [0, 0, 1]
    assert targets.requested.dtype == np.uint16
    assert len(batch) == 2
    assert batch.ok.tolist() == [True, True]


def test_a_slice_of_a_batch_is_a_batch():
    every = rows([("cat", 3), ("dog", 2)], [("dog", 7)], [("cup", 1)])
    batch = batch_of(every.slice(1, 1))
    assert batch.targets.offsets.tolist() == [0, 1]
    assert [batch.targets.categories[code] for code in batch.targets.codes] == ["dog"]
    assert batch.targets.count.tolist() == [7]


@pytest.mark.parametrize("count", [0, 101, 70_000, -5, 2**40])
def test_a_count_outside_1_to_100_is_an_error_of_its_item_alone(count):
    batch = batch_of(rows([("cat", count)], [("cat", 100)], [("cat", 1)]))
    assert batch.errors == [f"targets: requested count {count} outside 1..100", None, None]
    assert batch.ok.tolist() == [False, True, True]
    assert batch.targets.requested[0] == min(max(count, 0), 65535)


def test_a_repeated_category_is_an_error_of_its_item_alone():
    batch = batch_of(rows([("cat", 1), ("Cat ", 2)], [("cat", 1), ("dog", 1)]))
    assert batch.errors == ["targets: category 'cat' is requested more than once", None]


def test_more_targets_than_a_byte_can_number():
    many = [(f"thing {k}", 1) for k in range(MAX_TARGETS + 1)]
    batch = batch_of(rows(many, many[:-1]))
    assert "256 categories" in batch.errors[0]
    assert batch.errors[1] is None


def test_an_empty_batch():
    batch = batch_of(rows([("cat", 3)]).slice(0, 0))
    assert len(batch) == 0
    assert batch.targets.offsets.tolist() == [0]
    assert batch.ok.shape == (0,)
