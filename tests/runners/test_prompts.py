"""Prompt files: written, read again, checked, and what the command line says of them."""

from __future__ import annotations

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import tallymill
from tallymill import cli
from tallymill.errors import ManifestError, UsageError


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A file of all prompts and one of the subset."""
    folder = tmp_path_factory.mktemp("prompts")
    assert cli.run(["prompts", "build", "--out", str(folder / "all.parquet"), "--json"]) == 0
    whole, subset = str(folder / "all.parquet"), str(folder / "some.parquet")
    assert cli.run(["prompts", "subset", "--from", whole, "--out", subset]) == 0
    return folder


@pytest.fixture
def call(capsys):
    def run(*arguments):
        code = cli.run([str(argument) for argument in arguments])
        found = capsys.readouterr()
        return code, found.out, found.err

    return run


def test_the_full_set(files, call):
    code, out, _ = call("prompts", "check", files / "all.parquet")
    assert code == 0
    assert "640,000 prompts, checked as the full set of 640,000: every condition holds" in out
    assert "106,668 / 106,666 / 106,666" in out
    assert "FAIL" not in out
    code, out, _ = call("prompts", "check", files / "all.parquet", "--json")
    result = json.loads(out)
    assert result["passed"]
    assert result["facts"]["seed"] == 0
    assert result["facts"]["tallymill"] == tallymill.__version__
    assert [line["passed"] for line in result["conditions"]] == [True] * len(result["conditions"])


def test_the_subset(files, call):
    code, out, _ = call("prompts", "check", files / "some.parquet")
    assert code == 0
    assert "3,200 prompts, checked as the balanced subset of 3,200: every condition holds" in out
    assert "800 of 800 do" in out
    some, whole = pq.read_table(files / "some.parquet"), pq.read_table(files / "all.parquet")
    ids = some["prompt_id"].to_pylist()
    wanted = whole.filter(pa.compute.is_in(whole["prompt_id"], value_set=pa.array(ids)))
    assert some.equals(wanted)
    assert tallymill.subset_prompts(whole).equals(some)
    assert not tallymill.subset_prompts(whole, seed=1).equals(some)


def test_the_subset_is_not_the_full_set(files, call):
    code, out, _ = call("prompts", "check", files / "some.parquet", "--full")
    assert code == 1
    assert "required 640,000, found 3,200" in out


def test_jsonl_as_well(files, tmp_path, call):
    rows = pq.read_table(files / "some.parquet").to_pylist()
    (tmp_path / "some.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, _ = call("prompts", "check", tmp_path / "some.jsonl")
    assert (code, "every condition holds" in out) == (0, True)


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("no.parquet", None, "no such file"),
        ("empty.parquet", b"", "not a Parquet file"),
        ("noise.parquet", b"PAR1" + bytes(range(256)) * 9 + b"PAR1", "not a Parquet file"),
        ("a.txt", b"x", "none of .parquet"),
        ("empty.jsonl", b"", "has no items"),
        ("broken.jsonl", b'{"prompt_id": \n', "line 1"),
        ("other.jsonl", b'{"prompt_id": "a", "text": "3 cats"}\n', "no column core_id"),
        ("other.csv", b"prompt_id,text\na,3 cats\n", "no column core_id"),
    ],
)
def test_files_that_are_none(tmp_path, call, name, data, message):
    if data is not None:
        (tmp_path / name).write_bytes(data)
    code, out, err = call("prompts", "check", tmp_path / name)
    assert (code, out) == (1, "")
    assert message in err


def test_a_file_that_was_cut_or_changed(files, tmp_path, call):
    data = bytearray((files / "some.parquet").read_bytes())
    (tmp_path / "cut.parquet").write_bytes(data[: len(data) // 2])
    assert call("prompts", "check", tmp_path / "cut.parquet")[0] == 1
    for at in range(4, len(data), len(data) // 40):
        changed = data.copy()
        changed[at] ^= 0xFF
        (tmp_path / "changed.parquet").write_bytes(changed)
        code, out, err = call("prompts", "check", tmp_path / "changed.parquet")
        assert code in (0, 1)
        assert "Traceback" not in out + err


@pytest.mark.parametrize("out", ["prompts.csv", "prompts", "."])
def test_out_is_a_parquet_file(out):
    with pytest.raises(UsageError, match="written as Parquet"):
        tallymill.build_prompts(out)


def test_out_is_no_folder(tmp_path):
    (tmp_path / "x.parquet").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        tallymill.subset_prompts(out=tmp_path / "x.parquet")


def test_a_seed_that_is_none(call):
    code, _, err = call("prompts", "build", "--out", "x.parquet", "--seed", "-1")
    assert code == 2
    assert "whole number, 0 or more" in err


def test_a_subset_of_too_little(files, tmp_path):
    some = files / "some.parquet"
    with pytest.raises(ManifestError, match="cannot be chosen"):
        tallymill.subset_prompts(some, tmp_path / "x.parquet")
    assert not (tmp_path / "x.parquet").exists()
    with pytest.raises(ManifestError, match="has no prompts"):
        tallymill.subset_prompts(pq.read_table(some).slice(0, 0))
