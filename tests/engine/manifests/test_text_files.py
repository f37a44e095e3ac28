"""JSONL and CSV manifests: odd but right files are read, faulty lines are named."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tallymill.engine.items import ManifestOptions, read_items
from tallymill.errors import ManifestError

CAT = ManifestOptions(prompt="1 cat")


def rows(manifest: Path, options: ManifestOptions = CAT) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pa.Table.from_batches(read_items(manifest, options)).to_pylist()
    return found


def column(manifest: Path, name: str) -> list[Any]:
    return [row[name] for row in rows(manifest)]


def fault(manifest: Path) -> str:
    with pytest.raises(ManifestError) as caught:
        list(read_items(manifest, CAT))
    return caught.value.message


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def test_csv_byte_order_mark_before_a_quoted_header(tmp_path: Path) -> None:
    path = write(tmp_path / "m.csv", b'\xef\xbb\xbf"item_id","image"\r\n"i1","a.jpg"\r\n')
    assert column(path, "item_id") == ["i1"]


def test_csv_empty_third_field_keeps_the_row(tmp_path: Path) -> None:
    [row] = rows(write(tmp_path / "m.csv", "image,sample,note\na.jpg,3,\n"))
    assert (row["image"], row["sample"], row["note"]) == ("a.jpg", 3, None)


def test_csv_labels_are_strings(tmp_path: Path) -> None:
    path = write(tmp_path / "m.csv", "image,label\na,NA\nb,None\nc,null\nd,007\ne,1e5\nf,nan\n")
    assert column(path, "label") == ["NA", "None", "null", "007", "1e5", "nan"]


def test_csv_quoted_line_ends_and_line_numbers(tmp_path: Path) -> None:
    path = write(tmp_path / "m.csv", 'image,note\na,"one\ntwo\n"\n\nb,"say ""hi"", ok"\nc\nd,1,2\n')
    message = fault(path)
    assert "m.csv, line 7: 1 fields under 2 headers" in message
    assert "m.csv, line 8: 3 fields under 2 headers" in message
    path.write_text(path.read_text().rsplit("c\n", 1)[0])
    assert column(path, "note") == ["one\ntwo\n", 'say "hi", ok']


def test_csv_last_line_without_newline_and_other_separators(tmp_path: Path) -> None:
    path = write(tmp_path / "m.csv", "image,note\na,x\u2028y\u0085z\nb,w")
    assert column(path, "note") == ["x\u2028y\u0085z", "w"]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "empty"),
        ("image,image\na,b\n", "'image' stands more than once"),
        ("image,\na,b\n", "has no name"),
        ('image,note\na,"x\nb,y\n', "line 2: not CSV"),
        ('image,note\na,"x"y\n', "line 2: not CSV"),
        (b"image,note\na,ok\nb,\xff\n", "line 3, column note: not UTF-8"),
        ("image,sample\na,1.5\n", "line 2, column sample: not a whole number: '1.5'"),
        ("image;targets\na;cat=1\n", "no column image; the columns are image;targets"),
    ],
)
def test_csv_faults(tmp_path: Path, content: str | bytes, words: str) -> None:
    assert words in fault(write(tmp_path / "m.csv", content))


def test_jsonl_single_line_without_newline(tmp_path: Path) -> None:
    assert column(write(tmp_path / "m.jsonl", '{"image": "a"}'), "image") == ["a"]


def test_jsonl_blank_lines_bom_carriage_returns_and_separators(tmp_path: Path) -> None:
    content = '\ufeff{"image": "a", "note": "x\u2028y\u0085z"}\r\n\n  \n{"image": "b", "note": "\\u2028"}\n'
    assert column(write(tmp_path / "m.ndjson", content), "note") == ["x\u2028y\u0085z", "\u2028"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"image": "b", }', "line 3: not JSON at column 1"),  # 16, or from Python 3.13 on that of the comma
        (b'{"image": "b"} {"image": "c"}', "line 3: not JSON at column 16"),
        (b'["b"]', "line 3: not an object"),
        (b"null", "line 3: not an object"),
        (b'{"image": "b", "image": "c"}', "line 3: key 'image' stands more than once"),
        (b'{"image": "b", "seed": NaN}', "line 3: NaN is not JSON"),
        (b'{"image": "\xff"}', "line 3, column 12: not UTF-8"),
        (b'{"image": "\\ud800"}', "line 3: half of a surrogate pair"),
        (b"[" * 100_000, "line 3: not JSON"),
        (b'{"image": "b", "seed": ' + b"1" * 5000 + b"}", "line 3: "),
    ],
)
def test_jsonl_faults(tmp_path: Path, line: bytes, words: str) -> None:
    message = fault(write(tmp_path / "m.jsonl", b'{"image": "a", "seed": 1}\n\n' + line + b'\n{"image": "z"}\n'))
    assert "1 fault" in message
    assert words in message


def test_jsonl_types_of_factors(tmp_path: Path) -> None:
    lines = [
        '{"image": "a", "i": 9007199254740993, "f": 1, "b": true, "s": "x", "m": 1, "o": {"é": [1]}, "n": null}',
        '{"image": "b", "i": null, "f": 0.5, "m": "1", "o": "y"}',
    ]
    path = write(tmp_path / "m.jsonl", "\n".join(lines))
    batch = next(read_items(path, CAT))
    kinds = {name: str(batch.schema.field(name).type) for name in "ifbsmon"}
    assert kinds == dict(
        zip("ifbsmon", ["int64", "double", "bool", "string", "string", "string", "string"], strict=True)
    )
    first, second = batch.to_pylist()
    assert [first[name] for name in "ifbsmon"] == [9007199254740993, 1.0, True, "x", "1", '{"é": [1]}', None]
    assert [second[name] for name in "ifbsmon"] == [None, 0.5, None, None, "1", "y", None]


def test_jsonl_rows_that_do_not_fit_the_first_ones(tmp_path: Path) -> None:
    head = '{"image": "a", "seed": 1, "flag": false}\n' * 4096
    path = write(tmp_path / "m.jsonl", head + '{"image": "b", "seed": 1.5}\n{"image": "c", "late": 1}\n')
    message = fault(path)
    assert "m.jsonl, line 4097, column seed: 1.5 is not a whole number" in message
    assert "m.jsonl, line 4098: late is not among the columns" in message


def test_jsonl_without_one_good_row(tmp_path: Path) -> None:
    assert "line 1: not JSON at column 2" in fault(write(tmp_path / "m.jsonl", "{image: 1}"))
    assert "m.jsonl: has no items" in fault(write(tmp_path / "m.jsonl", "\n"))
