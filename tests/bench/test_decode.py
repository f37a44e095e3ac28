import json

import numpy as np
import pytest

from tallymill.bench import decode as bench
from tallymill.errors import TallymillError, UsageError


def test_a_small_run_reports_every_decoder_and_prints_as_json():
    result = bench.run(images=3, repeats=2)
    assert set(result["images_per_s"]) == {"tallymill", "pillow", "opencv"}
    assert set(result["ratio"]) == {"pillow", "opencv"}
    assert all(value > 0 for value in [*result["images_per_s"].values(), *result["ratio"].values()])
    assert json.loads(json.dumps(result)) == result
    rows = bench.table(result).splitlines()
    assert [row.split()[0] for row in rows] == ["decoder", "tallymill", "pillow", "opencv"]


def test_the_photographs_differ_and_have_the_stated_size():
    files = bench.photographs(4)
    assert len(set(files)) == 4
    assert {bench.decode(data).shape for data in files} == {(1024, 1024, 3)}
    assert bench.photographs(4) == files


def test_it_refuses_to_time_decoders_that_disagree(monkeypatch):
    monkeypatch.setattr(bench, "decode", lambda _: np.zeros((1024, 1024, 3), np.uint8))
    monkeypatch.setattr(bench, "_rate", lambda *_: pytest.fail("timed a wrong decoder"))
    with pytest.raises(TallymillError, match="photograph 0: pillow"):
        bench.run(images=1, repeats=1)


def test_nothing_to_time():
    with pytest.raises(UsageError, match="images=0"):
        bench.run(images=0)
