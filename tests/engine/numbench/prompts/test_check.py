"""Every condition fails where it is broken, and says where."""

import json

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tallymill.engine.numbench.prompts.build import SCHEMA, vocabulary_sha256
from tallymill.engine.numbench.prompts.check import check
from tallymill.engine.numbench.prompts.core_conditions import independent
from tallymill.engine.numbench.prompts.subset import choose_subset
from tallymill.errors import ManifestError


@pytest.fixture(scope="module")
def subset(prompts, words):
    return choose_subset(prompts, words[0])


def changed(table, rows):
    """The table with other values: ``rows`` is row -> {column: value}."""
    columns = {}
    for name in table.column_names:
        values = {row: values[name] for row, values in rows.items() if name in values}
        column = table[name]
        if values:
            fresh = pa.array(list(values.values()), column.type)
            whole = column.combine_chunks()
            order = np.arange(len(table))
            order[list(values)] = len(table) + np.arange(len(values))
            column = pa.concat_arrays([whole, fresh]).take(pa.array(order))
        columns[name] = column
    return pa.table(columns)


def failing(table, words, **options):
    """Condition -> its failures, of those that fail."""
    result = check(table, *words, **options)
    found = {line.name: line for line in result.conditions if line.passed is False}
    assert result.passed == (not found)
    return found


def first_of(found, name):
    return found[name].failures[0]


def test_what_is_right_passes(prompts, subset, words):
    assert failing(subset, words) == {}
    backwards = pa.array(np.arange(640_000)[::-1])  # the order of rows is free
    assert failing(prompts.take(backwards), words) == {}


# What is changed in row 5 (s-00001, free, modified) or 7 (s-00001, guided, modified); the condition that says so.
ROWS = [
    ({"prompt_id": "s-00000-free-clean"}, "prompt_id unique", "core_id 's-00001'"),
    ({"prompt_id": "s-00001-free"}, "prompt_id = core_id-layout-appearance", "core_id 's-00001', 'single'"),
    ({"prompt_id": None}, "none empty", "core_id 's-00001'"),
    ({"core_id": None}, "none empty", "core_id None"),
    ({"text": ""}, "none empty", "text ''"),
    ({"text": "generate 3 cats"}, "say the targets, layout and modifiers", "text 'generate 3 cats', not 'generate"),
    ({"composition": "triple"}, "composition is a level of it", "composition 'triple'"),
    ({"layout": None}, "layout is a level of it", "layout None"),
    ({"appearance": "Clean"}, "appearance is a level of it", "appearance 'Clean'"),
    ({"count_range": "1-10"}, "count_range is a level of it", "count_range '1-10'"),
    ({"count_range": "1-25"}, "count_range is that of the larger count", "1-25 for 43 thing"),
    ({"targets": []}, "can be read", "no targets"),
    ({"targets": None}, "can be read", "no targets"),
    ({"targets": [{"category": "thing 0001", "count": None}]}, "can be read", "a count is missing"),
    ({"targets": [{"category": None, "count": 3}]}, "can be read", "a category is missing"),
    ({"targets": [None]}, "can be read", ""),
    ({"targets": [{"category": "cat", "count": 3}] * 2}, "one in single, two in double", "3 cat and 3 cat"),
    ({"targets": [{"category": "cat", "count": 3}] * 2}, "two categories are distinct", "3 cat and 3 cat"),
    ({"targets": [{"category": "Thing 0001", "count": 3}]}, "categories of the vocabulary", "3 Thing 0001"),
    ({"targets": [{"category": "thing 0001", "count": 101}]}, "counts within limits", "101 thing 0001"),
    ({"targets": [{"category": "thing 0001", "count": 0}]}, "counts within limits", "0 thing 0001"),
    ({"targets": [{"category": "thing 0001", "count": 3}]}, "the same targets in all prompts", "thing 0001"),
    ({"modifiers": ["blurry", "nice"]}, "known, each once, in the order of Table 3", "'nice'"),
    ({"modifiers": ["blurry", "blurry"]}, "known, each once, in the order of Table 3", "'blurry', 'blurry'"),
    ({"modifiers": ["cropped", "blurry"]}, "known, each once, in the order of Table 3", "'cropped', 'blurry'"),
    ({"modifiers": ["blurry", None]}, "known, each once, in the order of Table 3", "None"),
    ({"modifiers": ["blurry"]}, "two or three if modified, none if clean", "['blurry']"),
    ({"modifiers": None}, "two or three if modified, none if clean", "None"),
    ({"modifiers": ["blurry", "deformed", "artifacts"]}, "the same modifiers in both layouts", "artifacts"),
    ({"modifier_group": "both"}, "modifier_group is what they are", "'both' for modifiers"),
    ({"modifier_group": None}, "modifier_group is what they are", "None for modifiers"),
]


@pytest.mark.parametrize(("values", "condition", "value"), ROWS, ids=[f"{c}: {v}" for v, c, _ in ROWS])
def test_one_row_that_is_wrong(prompts, words, values, condition, value):
    found = failing(changed(prompts.slice(0, 4000), {7: values}), words)
    failure = first_of(found, condition)
    assert failure.row == 8
    assert found[condition].failing == 1
    assert value in failure.value


@pytest.fixture(scope="module")
def spoilt(prompts, words):
    """The full set with one fault of each kind that shows only in the whole, in cores of their own."""
    # Cores of count 9 in a grid, of which two become scenes.
    counts = np.array([t[0]["count"] for t in prompts["targets"].slice(0, 320_000).to_pylist()])
    grid = np.flatnonzero((counts == 9) & (prompts["layout"].slice(0, 320_000).to_numpy() == "grid"))
    rows = {int(row): {"layout": "scene"} for row in grid[-4:]}
    # Two cores that ask for what another one does.
    single, double = 1, 80_001
    rows |= {4 * single + k: {"targets": prompts["targets"][0].as_py()} for k in range(4)}
    rows |= {4 * double + k: {"targets": prompts["targets"][4 * 80_000].as_py()[::-1]} for k in range(4)}
    # A core of two terms that gets three.
    row = next(row for row in range(401, 4000, 4) if len(prompts["modifiers"][row].as_py()) == 2)
    terms = {"modifiers": ["blurry", "deformed", "artifacts"], "modifier_group": "quality"}
    rows |= {row: terms, row + 2: terms}
    # A guided prompt that is missing, and one in another layout than its sister.
    table = changed(prompts, rows | {402: {"layout": "grid" if prompts["layout"][402].as_py() != "grid" else "scene"}})
    return failing(pa.concat_tables([table.slice(0, 10), table.slice(11)]), words)


def test_the_levels_of_table_2(subset, words):
    result = check(subset, *words, subset=False)
    levels = {line.dimension: line for line in result.conditions if line.name == "levels"}
    assert {name: line.found for name, line in levels.items()} == {
        "Composition": "2",
        "Count": "100",
        "Category": "1,600",
        "Spatial layout": "4",
        "Appearance": "2",
    }
    assert list(levels) == [line.dimension for line in levels.values() if line.passed]
    some = check(subset.slice(0, 1), *words, subset=False)
    assert [line.found for line in some.conditions if line.name == "levels"] == ["1"] * 5


def test_a_file_of_another_vocabulary(subset, words):
    for sha256, passed, found in (
        ("f" * 64, None, "another one (ffffffffffff)"),
        (vocabulary_sha256(*words), True, "the same"),
        (3, None, "another one (3)"),
    ):
        result = check(subset, *words, facts={"vocabulary_sha256": sha256})
        line = next(line for line in result.conditions if "vocabulary it was made" in line.name)
        assert (line.passed, line.found, result.passed) == (passed, found, True)


def test_a_prompt_that_is_missing(spoilt):
    assert spoilt["prompts"].found == "639,999"
    line = spoilt["free and one guided layout, each clean and modified"]
    assert (line.failing, first_of(spoilt, line.name).value) == (1, "core_id 's-00002'")
    assert spoilt["clean prompts"].found == "319,999"


def test_a_guided_prompt_in_another_layout_than_its_sister(spoilt):
    line = spoilt["one guided layout"]
    assert line.failing == 1
    assert first_of(spoilt, line.name).prompt_id.startswith("s-00100-")


def test_a_count_and_a_category_too_often(prompts, spoilt):
    more, less = (prompts["targets"][row].as_py()[0] for row in (0, 4))
    assert {failure.value for failure in spoilt["each in single"].failures} == {
        f"{more['count']}: 801 times",
        f"{less['count']}: 799 times",
    } or {failure.value for failure in spoilt["each in single"].failures} == {
        f"'{more['category']}': 51 times",
        f"'{less['category']}': 49 times",
    }


def test_targets_that_stand_twice(spoilt):
    assert first_of(spoilt, "single: no (category, count) twice").prompt_id == "s-00001-free-clean"
    assert first_of(spoilt, "double: no set of targets twice").prompt_id == "d-00001-free-clean"


def test_layouts_that_are_uneven(spoilt):
    failures = {failure.value.rpartition(":")[0] for failure in spoilt["each, for each count in single"].failures}
    assert "count 9, grid" in failures
    assert "count 9, scene" in failures
    assert "each in single cores" in spoilt
    assert "guided prompts (grid, scene, random)" in spoilt
    assert "each in double cores" not in spoilt


def test_terms_that_are_uneven(spoilt):
    assert spoilt["single cores with two / three terms"].found == "39,999 / 40,001"
    assert "double cores with two / three terms" not in spoilt
    assert spoilt["cores with each term"].failing >= 3
    assert all("cores" in failure.value for failure in spoilt["cores with each term"].failures)


def test_counts_that_depend_on_one_another():
    counts = np.arange(1, 101).repeat(2).reshape(100, 2)
    line = independent(counts)
    assert (line.found, line.passed) == ("r = 1.0000", False)
    assert independent(np.full((100, 2), 3)).found == "cannot be told"
    assert independent(np.zeros((0, 2), np.int64)).passed is False
    square = np.stack(np.meshgrid(np.arange(1, 101), np.arange(1, 101)), axis=2).reshape(-1, 2)
    assert independent(square).passed is True


def test_a_subset_with_a_core_twice(prompts, subset, words):
    core = subset["core_id"][0].as_py()
    ids = set(subset["prompt_id"].to_pylist())
    rows = prompts.slice(4 * int(core[2:]), 4).filter(
        pa.array([row not in ids for row in prompts["prompt_id"].slice(4 * int(core[2:]), 4).to_pylist()])
    )
    found = failing(pa.concat_tables([subset.slice(0, 3199), rows.slice(0, 1)]), words)
    assert first_of(found, "none twice").value == f"core_id {core!r}"
    assert first_of(found, "each of the 64").value.endswith("times")
    assert found["each in single"].found == "1 to 2"


def test_how_far_the_counts_of_a_subset_go_is_told(subset, words):
    single = next(row for row in range(3200) if subset["targets"][row].as_py()[0]["count"] == 3)
    targets = [{"category": subset["targets"][single].as_py()[0]["category"], "count": 4}]
    result = check(changed(subset, {single: {"targets": targets}}), *words)
    line = next(line for line in result.conditions if line.name == "each in each single cell")
    assert line.passed is None
    assert line.found == "798 of 800 do"


CELLS = {
    "prompt_id": st.none() | st.text(),
    "core_id": st.none() | st.text(),
    "text": st.none() | st.text(),
    "composition": st.none() | st.text() | st.sampled_from(["single", "double"]),
    "layout": st.none() | st.text() | st.sampled_from(["free", "grid", "scene", "random"]),
    "appearance": st.none() | st.text() | st.sampled_from(["clean", "modified"]),
    "modifiers": st.none() | st.lists(st.sampled_from(["blurry", "cropped", "merged", "", None]), max_size=4),
    "modifier_group": st.none() | st.text() | st.sampled_from(["quality", "evidence", "mixed"]),
    "targets": st.none()
    | st.lists(
        st.none()
        | st.fixed_dictionaries(
            {
                "category": st.none() | st.text() | st.sampled_from(["thing 0001", "thing 0002"]),
                "count": st.none() | st.integers(0, 65_535),
            }
        ),
        max_size=4,
    ),
    "count_range": st.none() | st.text() | st.sampled_from(["1-25", "76-100"]),
}


@given(st.integers(0, 3199), st.sampled_from(sorted(CELLS)).flatmap(lambda c: st.tuples(st.just(c), CELLS[c])))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_change_of_one_cell_goes_unseen(subset, words, row, cell):
    column, value = cell
    before = subset[column][row].as_py()
    if value == before or (column == "modifiers" and not value and not before):
        return
    result = check(changed(subset, {row: {column: value}}), *words)
    assert not result.passed
    failures = [failure for line in result.conditions for failure in line.failures]
    assert any(failure.row == row + 1 for failure in failures)
    assert result.as_dict()["conditions"]


def test_every_cell_null(subset, words):
    nulls = pa.table({name: pa.nulls(3200) for name in SCHEMA.names})
    for table in (nulls, nulls.cast(SCHEMA), nulls.cast(SCHEMA).slice(0, 1)):
        for kind in (True, False):
            assert not check(table, *words, subset=kind).passed
    assert not check(subset.slice(0, 1), *words).passed


@pytest.mark.parametrize(
    ("column", "array", "message"),
    [
        ("core_id", pa.array([1]), "column core_id is of type int64, not string"),
        ("modifiers", pa.array([3.0]), "column modifiers is of type double"),
        ("modifiers", pa.array(["blurry"]), "'blurry' is not a list of terms"),
        ("modifiers", pa.array([[1]]), "column modifiers is of type"),
        ("targets", pa.array([["cat"]]), "is not a list of"),
        ("targets", pa.array([[{"category": "cat"}]]), "not category and count"),
        ("targets", pa.array([[{"category": 1, "count": 1}]]), "category is of type int64"),
        ("targets", pa.array([[{"category": "cat", "count": "x"}]]), "count is of type string"),
    ],
)
def test_columns_that_are_none(subset, words, column, array, message):
    table = subset.slice(0, 1)
    table = table.set_column(table.column_names.index(column), column, array)
    with pytest.raises(ManifestError, match=message) as caught:
        check(table, *words, file="x.parquet")
    assert caught.value.message.startswith("x.parquet: ")


def test_a_column_that_is_missing(subset, words):
    with pytest.raises(ManifestError, match="no column core_id, text; the columns are prompt_id") as caught:
        check(subset.drop_columns(["core_id", "text"]), *words)
    assert "a prompt file has prompt_id, core_id" in caught.value.hint
    with pytest.raises(ManifestError, match="the columns are none"):
        check(pa.table({}), *words)
    with pytest.raises(ManifestError, match="has no prompts"):
        check(subset.slice(0, 0), *words)


def test_text_stands_for_lists(subset, words):
    """What a file of text has in the columns of lists."""
    table = subset
    for column in ("modifiers", "targets"):
        texts = pa.array([json.dumps(value) for value in table[column].to_pylist()])
        table = table.set_column(table.column_names.index(column), column, texts)
    assert failing(table, words) == {}
