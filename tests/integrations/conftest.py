"""What the task of lmms-eval is tested on: a drawn set, responses of every kind, and what tallymill finds in them."""

from __future__ import annotations

import pytest

from tallymill import physcount


@pytest.fixture(scope="session")
def dataset(tmp_path_factory):
    return physcount.example(tmp_path_factory.mktemp("lmms") / "set", scenes_wanted=4)


@pytest.fixture(scope="session")
def responses(dataset):
    """One of every kind: right, wrong, with thoughts, cut off in them, prose, nothing, a failed request."""
    forms = ["{}", " {}\n", "1{}", "<think>9?</think>{}", "<think>{}", "It is {}.", "", "[LMMS_EVAL_REQUEST_FAILED] {}"]
    chosen = [forms[0] if k % 3 else forms[k // 3 % len(forms)] for k in range(len(dataset.questions))]
    return {q.question_id: form.format(q.answer) for q, form in zip(dataset.questions, chosen, strict=True)}


@pytest.fixture(scope="session")
def score_by_name(dataset):
    """A function: what the command finds in predictions, by the names of the task's metrics."""

    def scored(predictions):
        [found] = physcount.score(dataset.root, predictions, resamples=0)
        values = {name: getattr(found.headline, name).value for name in ("score", "group_acc", "phys_gnd")}
        for row in found.families:
            values |= {f"{row.family}_{kind}": getattr(row, kind).value for kind in ("nae", "mae")}
        return values

    return scored


@pytest.fixture(scope="session")
def ours(responses, score_by_name, physcount_example, tmp_path_factory):
    """What the command finds in the responses."""
    return score_by_name(physcount_example.write_predictions(tmp_path_factory.mktemp("ours") / "p.jsonl", responses))
