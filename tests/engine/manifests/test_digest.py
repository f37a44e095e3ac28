"""The digest of a manifest does not see files, batches or encodings; it sees every value."""

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallymill.engine.items import Digest, read_items

KIND = pa.list_(pa.struct([("category", pa.string()), ("count", pa.int64())]))


def digest(batches: Any) -> str:
    whole = Digest()
    for batch in batches:
        whole.update(batch)
    return whole.hexdigest()


def test_file_forms_agree(tmp_path: Path) -> None:
    n = 5000
    counts = [i % 100 + 1 for i in range(n)]
    targets = [[{"category": "cat", "count": c}] for c in counts]
    table = pa.table(
        {
            "image": [f"{i}.png" for i in range(n)],
            "layout": pa.array(["grid", None] * (n // 2)),
            "targets": pa.array(targets, KIND),
            "item_id": [f"id-{i}" for i in range(n)],
        }
    )
    pq.write_table(table, tmp_path / "m.parquet", row_group_size=777)
    parts = tmp_path / "parts"
    parts.mkdir()
    pq.write_table(table.slice(0, 1234), parts / "0.parquet")
    pq.write_table(table.slice(1234), parts / "1.parquet")
    (tmp_path / "m.jsonl").write_text("".join(json.dumps(row) + "\n" for row in table.to_pylist()))
    lines = [f"id-{i},cat={c},{i}.png,{'' if i % 2 else 'grid'}\n" for i, c in enumerate(counts)]
    (tmp_path / "m.csv").write_text("item_id,targets,image,layout\n" + "".join(lines))
    forms: list[Any] = [tmp_path / "m.parquet", parts, tmp_path / "m.jsonl", tmp_path / "m.csv", table]
    assert len({digest(read_items(form)) for form in forms}) == 1


TEXT = st.text("ab é😀", max_size=4)
VALUES = {
    "s": (pa.string(), TEXT),
    "b": (pa.binary(), st.binary(max_size=4)),
    "i": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "f": (pa.float32(), st.floats(width=32, allow_nan=False)),
    "t": (pa.bool_(), st.booleans()),
    "l": (pa.list_(pa.string()), st.lists(st.none() | TEXT, max_size=3)),
    "d": (
        KIND,
        st.lists(st.fixed_dictionaries({"category": TEXT, "count": st.integers(0, 9)}), max_size=2),
    ),
}


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.fixed_dictionaries({name: st.none() | values for name, (_, values) in VALUES.items()}), max_size=12),
    st.lists(st.integers(0, 12), max_size=3),
    st.data(),
)
def test_batching_leaves_no_trace_and_a_changed_value_does(
    rows: list[dict[str, Any]], cuts: list[int], data: st.DataObject
) -> None:
    schema = pa.schema([(name, kind) for name, (kind, _) in VALUES.items()])
    whole = pa.RecordBatch.from_pylist(rows, schema)
    bounds = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    pieces = [whole.slice(a, b - a) for a, b in pairwise(bounds)]
    expected = digest([whole])
    assert digest(pieces) == expected
    large = whole.cast(schema.set(0, pa.field("s", pa.large_string())))
    assert digest([large]) == expected
    if rows:
        row = data.draw(st.integers(0, len(rows) - 1))
        name = data.draw(st.sampled_from(sorted(VALUES)))
        changed = [dict(entry) for entry in rows]
        changed[row][name] = data.draw(st.none() | VALUES[name][1])
        same = pa.RecordBatch.from_pylist(changed, schema).equals(whole)
        # -0.0 equals 0.0, but their bytes differ.
        signs = [np.signbit(entry["f"]) for entry in (rows[row], changed[row]) if entry["f"] is not None]
        assert (digest([pa.RecordBatch.from_pylist(changed, schema)]) == expected) == (same and len(set(signs)) < 2)


def test_garbage_under_nulls_and_order_of_columns_leave_no_trace() -> None:
    clean = pa.array([1, None, 3])
    dirty = pa.Array.from_buffers(pa.int64(), 3, [clean.buffers()[0], pa.py_buffer(np.array([1, 77, 3]))])
    text = pa.array(["a", "b", "c"])
    first = pa.RecordBatch.from_arrays([clean, text], ["x", "y"])
    second = pa.RecordBatch.from_arrays([text.dictionary_encode(), dirty], ["y", "x"])
    assert digest([first]) == digest([second])


def test_values_do_not_run_into_one_another() -> None:
    def of(values: list[str | None]) -> str:
        return digest([pa.RecordBatch.from_arrays([pa.array(values, pa.string())], ["x"])])

    assert len({of(["ab", "c"]), of(["a", "bc"]), of(["abc", ""]), of(["abc", None]), of(["abc"])}) == 5
