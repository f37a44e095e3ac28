import builtins
import math

import numba
import numpy as np
import pytest

from tallymill.engine.numbench.user_score import FailedItemError, UserScore
from tallymill.errors import MissingExtraError, UsageError
from tallymill.runners.rescore import load_function

SOFT = np.array([1.0, 2.5, 0.0, 4.0])
HARD = np.array([1.0, 2.0, 0.0, 3.0])
REQUESTED = np.array([1, 2, 5, 4], np.uint16)
OFFSETS = np.array([0, 2, 2, 3, 4], np.int64)
ALL = np.array([True, False, True, True])


def close(soft, hard, requested):
    return np.mean(np.abs(soft - requested) <= 0.2 * requested) + 0.001 * hard[0]


@numba.njit
def halved(x):
    return x / 2


def of_helpers(soft, hard, requested):
    total = 0.0
    for k in range(len(soft)):
        total += halved(abs(soft[k] - hard[k]))
    return total / requested.sum()


@pytest.mark.parametrize(
    "function", [close, of_helpers, lambda s, _h, _r: len(s), lambda s, _h, _r: s[0] > 1, numba.njit(close)]
)
def test_a_score_is_what_python_gives(function):
    score = UserScore(function)
    result = score(SOFT, HARD, REQUESTED, OFFSETS, ALL)
    assert result.dtype == np.float64
    assert math.isnan(result[1])
    for i in np.flatnonzero(ALL):
        own = slice(OFFSETS[i], OFFSETS[i + 1])
        assert result[i] == getattr(function, "py_func", function)(SOFT[own], HARD[own], REQUESTED[own].astype(float))


def test_no_image_and_no_score():
    none = np.zeros(0)
    assert len(UserScore(close)(none, none, none, np.zeros(1, np.int64), np.zeros(0, np.bool_))) == 0
    result = UserScore(lambda s, _h, _r: np.nan if s[0] == 0 else s[0])(SOFT, HARD, REQUESTED, OFFSETS, ALL)
    assert np.array_equal(result, [1.0, np.nan, np.nan, 4.0], equal_nan=True)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("1.0 / (soft[0] - soft[0])", "raised ZeroDivisionError: division by zero"),
        ("soft[5]", "raised IndexError: index is out of bounds"),
        ("np.inf if requested[0] == 5 else 0.0", "gave inf"),
    ],
)
def test_an_item_that_fails_is_told(line, reason, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"import math\nimport numpy as np\ndef f(soft, hard, requested):\n    return {line}\n")
    score = UserScore(load_function(f"{file}:f"))
    with pytest.raises(FailedItemError) as caught:
        score(SOFT, HARD, REQUESTED, OFFSETS, np.array([False, False, True, True]))
    assert (caught.value.place, caught.value.reason) == (2, reason)
    error = score.failure("cat 7", caught.value)
    assert error.message == f"{file}, line 3: for item 'cat 7': f {reason}"
    assert "float('nan')" in error.hint


@pytest.mark.parametrize(
    ("body", "line", "reason"),
    [
        ("x = 1.0\n    return undefined(soft)", 3, "name 'undefined' is not defined"),
        ("x = 1.0\n    return 'a' + x", 5, "No implementation of function Function(<built-in function add>)"),
        ("return 0.0 + soft.middle()", 4, "Unknown attribute 'middle' of type readonly array(float64, 1d, C)"),
        ("soft[0] = 1.0\n    return soft[0]", 4, "setitem(readonly array(float64, 1d, C)"),
        ("x = 1.0\n\n    return helper(soft)", 6, "Untyped global name 'helper'"),
        ("import math\n    return math.pi", 3, "IMPORT_NAME"),
        ("return 1.0, 2.0", 3, "f gives UniTuple(float64 x 2); a score must be a number"),
        ("if soft[0] > 1:\n        return 1.0", 3, "f gives OptionalType(float64); a score must be a number"),
        ("yield 1.0", 3, "f gives float64 generator("),
    ],
)
def test_what_does_not_compile_is_told_with_its_line(body, line, reason, tmp_path):
    file = tmp_path / "mine.py"
    file.write_text(f"def helper(x):\n    return x[0]\ndef f(soft, hard, requested):\n    {body}\n")
    with pytest.raises(UsageError) as caught:
        UserScore(load_function(f"{file}:f"))
    assert f"{file}, line {line}: " in caught.value.message
    assert reason in caught.value.message
    assert len(caught.value.message) < 500
    assert "\n" not in caught.value.message
    assert "\x1b" not in caught.value.message
    assert caught.value.hint


@pytest.mark.parametrize("function", [lambda: 1.0, lambda _s, _h: 1.0, lambda _s, _h, _r, _x: 1.0])
def test_another_number_of_arguments(function):
    with pytest.raises(UsageError, match="must take three arrays") as caught:
        UserScore(function)
    assert "(soft, hard, requested): soft counts, hard counts, counts requested" in caught.value.hint


def test_what_is_no_function():
    with pytest.raises(UsageError, match="is not a Python function"):
        UserScore(math.sqrt)


def test_without_numba(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "numba":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match="'numba' is not installed") as caught:
        UserScore(close)
    assert "tallymill[numba]" in caught.value.hint


def test_the_record_changes_with_the_file(tmp_path):
    file = tmp_path / "mine.py"
    digests = set()
    for value in (1.0, 2.0, 1.0):
        file.write_text(f"def f(soft, hard, requested):\n    return {value}\n")
        record = UserScore(load_function(f"{file}:f")).record()
        assert (record["name"], record["file"]) == ("f", str(file))
        digests.add(record["sha256"])
    assert len(digests) == 2
    namespace = {}
    exec("def g(soft, hard, requested):\n    return soft[0]\n", namespace)
    assert UserScore(namespace["g"]).record()["name"] == "g"
