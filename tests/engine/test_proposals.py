import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallymill.engine.proposals import SCHEMA, SCHEMA_WITH_SUPPRESSED, Proposals


def proposals(with_kept):
    """Three items: two targets and three boxes; an error without a size; one target without boxes."""
    return Proposals(
        item_id=pa.array(["a", "b", "ç"]),
        image_hash=pa.array(["h0", "h1", None]),
        sizes=np.array([[20, 40], [0, 0], [7, 9]], np.int32),
        errors=[None, "image: cut short", None],
        saturated=np.array([True, False, False]),
        target_offsets=np.array([0, 2, 4, 5]),
        requested=np.array([3, 2, 100, 1, 7], np.uint16),
        covered=np.array([True, False, True, True, True]),
        offsets=np.array([0, 3, 3, 4]),
        target=np.array([0, 0, 1, 0], np.uint8),
        confidence=np.array([0.9, 0.1, 0.05, 0.7], np.float32),
        boxes=np.arange(16, dtype=np.float32).reshape(4, 4) / 3,
        kept=np.array([True, False, True, True]) if with_kept else None,
        dropped=2,
    )


def same(a, b):
    for field in dataclasses.fields(Proposals):
        if field.name == "dropped":  # counted in the metadata of a part file, not a row's business
            continue
        one, other = getattr(a, field.name), getattr(b, field.name)
        if isinstance(one, np.ndarray):
            assert one.dtype == other.dtype, field.name
            assert np.array_equal(one, other), field.name
        elif field.name in ("item_id", "image_hash"):
            assert one.to_pylist() == other.to_pylist()
        else:
            assert (None if one is None else list(one)) == (None if other is None else list(other)), field.name


@pytest.mark.parametrize("with_kept", [False, True])
def test_there_and_back(with_kept):
    found = proposals(with_kept)
    rows = found.to_arrow()
    rows.validate(full=True)
    assert rows.schema == (SCHEMA_WITH_SUPPRESSED if with_kept else SCHEMA)
    same(found, Proposals.from_arrow(rows))
    same(found, Proposals.from_arrow(pa.Table.from_batches([rows, rows]).slice(3)))


@pytest.mark.parametrize("with_kept", [False, True])
def test_there_and_back_through_parquet(with_kept, tmp_path):
    found = proposals(with_kept)
    pq.write_table(pa.Table.from_batches([found.to_arrow()]), tmp_path / "part.parquet")
    same(found, Proposals.from_arrow(pq.read_table(tmp_path / "part.parquet")))


def test_rows_say_what_the_fields_say():
    first, second, third = proposals(True).to_arrow().to_pylist()
    assert (first["width"], first["height"], first["status"], first["error"]) == (40, 20, "ok", None)
    assert first["kept"] == [True, False, True]
    assert [row["image_hash"] for row in (first, second, third)] == ["h0", "h1", None]
    assert first["box"][1] == [float(np.float32(v) / np.float32(3)) for v in (4, 5, 6, 7)]
    assert (second["width"], second["height"], second["status"]) == (None, None, "error")
    assert second["error"] == "image: cut short"
    assert (second["requested"], second["target"], second["box"]) == ([100, 1], [], [])
    assert (third["item_id"], third["requested"], third["covered"]) == ("ç", [7], [True])


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (1, 2), (1, 3), (2, 3), (1, 1)])
def test_a_slice_reads_back_as_its_rows(start, stop):
    rows = proposals(True).to_arrow().slice(start, stop - start)
    found = Proposals.from_arrow(rows)
    assert len(found) == stop - start
    assert found.offsets[0] == found.target_offsets[0] == 0
    assert found.to_arrow().to_pylist() == rows.to_pylist()


def test_nothing_at_all():
    for rows in (SCHEMA.empty_table(), proposals(False).to_arrow().slice(0, 0)):
        found = Proposals.from_arrow(rows)
        assert len(found) == 0
        assert found.boxes.shape == (0, 4)
        assert found.to_arrow().num_rows == 0


def test_survivors_are_what_nms_retained():
    found = proposals(True).survivors()
    assert found.kept is None
    assert found.image_hash.to_pylist() == ["h0", "h1", None]
    assert found.offsets.tolist() == [0, 2, 2, 3]
    assert found.target.tolist() == [0, 1, 0]
    assert found.confidence.tolist() == np.array([0.9, 0.05, 0.7], np.float32).tolist()
    assert found.boxes[:, 0].tolist() == np.array([0, 8 / 3, 4], np.float32).tolist()
    assert found.dropped == 2
    plain = proposals(False)
    assert plain.survivors() is plain
