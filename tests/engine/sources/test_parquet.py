"""Images in the rows of Parquet files."""

import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tallymill.errors import ImageError


def write_parquet(path, values, column="image", kind=None, **other):
    table = pa.table({"id": pa.array(range(len(values))), column: pa.array(values, kind), **other})
    pq.write_table(table, path, row_group_size=4)


@pytest.mark.parametrize(
    "kind",
    [pa.binary(), pa.large_binary(), pa.struct([("bytes", pa.binary()), ("path", pa.string())])],
    ids=["binary", "large_binary", "struct"],
)
def test_rows_of_every_row_group(reader, tmp_path, kind):
    raw = [bytes([n]) * 50 for n in range(10)]
    values = [{"bytes": data, "path": "x"} for data in raw] if pa.types.is_struct(kind) else raw
    write_parquet(tmp_path / "p.parquet", values, kind=kind)
    for row in (0, 3, 4, 9, 2):
        assert reader.read(f"p.parquet#row={row}") == raw[row]


def test_rows_in_order_read_each_row_group_once(reader, tmp_path, monkeypatch):
    write_parquet(tmp_path / "p.parquet", [bytes([n]) for n in range(10)])
    groups = []
    real = pq.ParquetFile.read_row_group
    monkeypatch.setattr(pq.ParquetFile, "read_row_group", lambda *a, **k: groups.append(a[1]) or real(*a, **k))
    assert reader.read_many([f"p.parquet#row={n}" for n in range(10)]) == [bytes([n]) for n in range(10)]
    assert groups == [0, 1, 2]


@pytest.mark.parametrize("kind", [pa.null(), pa.binary()], ids=["null", "binary"])
def test_the_only_column_of_images_whatever_its_name_and_paths_beside_the_file(reader, tmp_path, kind):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "x.jpg").write_bytes(b"here")
    struct = pa.struct([("bytes", kind), ("path", pa.string())])
    write_parquet(tmp_path / "sub" / "p.parquet", [{"bytes": None, "path": "x.jpg"}], column="picture", kind=struct)
    assert reader.read("sub/p.parquet#row=0") == b"here"


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("row=3", "not found: the file has 3 rows"),
        ("row=-1", "#row=N"),
        ("row=1.5", "#row=N"),
        ("row=", "#row=N"),
        ("row=２", "#row=N"),
        ("x.png", "#row=N"),
        ("row=1", "empty in this row"),
    ],
)
def test_rows_that_are_not_there(reader, tmp_path, key, reason):
    write_parquet(tmp_path / "p.parquet", [b"a", None, b"c"])
    with pytest.raises(ImageError) as caught:
        reader.read(f"p.parquet#{key}")
    assert reason in str(caught.value)


def test_whatever_is_wrong_with_a_parquet_file_the_only_error_is_an_image_error(reader, tmp_path):
    write_parquet(tmp_path / "p.parquet", [bytes([n]) * 50 for n in range(10)])
    whole, errors = (tmp_path / "p.parquet").read_bytes(), 0
    for seed in range(300):
        random_ = random.Random(seed)
        data = bytearray(whole)
        for _ in range(3):
            data[random_.randrange(len(data))] ^= random_.randrange(1, 256)
        (tmp_path / f"{seed}.parquet").write_bytes(data)
        found = reader.read_many([f"{seed}.parquet#row={row}" for row in (0, 5, 9)])
        errors += sum(isinstance(value, ImageError) for value in found)
    assert errors > 300


class Table:
    """What pyarrow makes of a damaged file: an error, or fewer rows than declared."""

    def __init__(self, outcome):
        self.outcome = outcome

    def column(self, _name):
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (IndexError("index out of bounds"), "damaged or of an unsupported kind (index out of bounds)"),
        (pa.chunked_array([[b"a", b"b"]]), "damaged (row group 1 has 2 rows, not 4)"),
        (pa.chunked_array([[b"a"] * 5]), "damaged (row group 1 has 5 rows, not 4)"),
    ],
)
def test_a_row_group_that_is_not_as_declared_is_read_once(reader, tmp_path, monkeypatch, outcome, reason):
    write_parquet(tmp_path / "p.parquet", [bytes([n]) for n in range(10)])
    groups, real = [], pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_group",
        lambda *a, **k: groups.append(a[1]) or (Table(outcome) if a[1] == 1 else real(*a, **k)),
    )
    found = reader.read_many([f"p.parquet#row={n}" for n in range(10)])
    assert [reason in str(value) for value in found[4:8]] == [True] * 4
    assert found[:4] + found[8:] == [bytes([n]) for n in (0, 1, 2, 3, 8, 9)]
    assert groups == [0, 1, 2]


def test_two_columns_of_bytes_and_none_named_image(reader, tmp_path):
    write_parquet(tmp_path / "p.parquet", [b"a"], column="one", two=pa.array([b"b"]))
    with pytest.raises(ImageError, match=r"no column 'image'.*id, one, two"):
        reader.read("p.parquet#row=0")
