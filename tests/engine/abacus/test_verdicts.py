from __future__ import annotations

import pytest

from tallymill.engine.abacus.data import Edit
from tallymill.engine.abacus.verdicts import outcome


def edit(operation, count, target=None):
    return Edit("e", "s.png", "t.png", operation, "cat", target, count)


def one(image, votes=None, partner=-1, category="cat", at=0):
    """An instance; its box is the ``at``-th of a row of boxes."""
    return {
        "image": image,
        "category": category,
        "box": [10 * at, 0, 10 * at + 8, 8],
        "partner": partner,
        "votes": votes,
    }


BOTH, ONE_OF_TWO = [True, True], [True, False]


def judged(edit, instances, answers=None):
    return outcome(edit, instances, answers or [None] * len(instances), 0.5)


def test_an_addition_delivers_what_is_new_and_loses_what_is_gone():
    instances = [
        one("source", partner=2),
        one("source"),
        one("edited", partner=0),
        one("edited", BOTH),
        one("edited", BOTH),
    ]
    found = judged(edit("add", 3), instances)
    assert found.verdicts == ("kept", "missing", "kept", "added", "added")
    assert (found.delivered, found.lost, found.originals) == (2, 1, 2)
    assert found.cf == 4 / 5
    assert found.oc == 0.5
    assert found.failures == ("undershoot", "overwritten")


def test_a_removal_delivers_what_is_gone_and_loses_by_what_is_painted():
    instances = [one("source", BOTH), one("source", BOTH), one("source", partner=3), one("edited", partner=2)]
    exact = judged(edit("remove", 2), instances)
    assert (exact.delivered, exact.lost, exact.originals) == (2, 0, 3)
    assert exact.failures == ()
    painted = judged(edit("remove", 1), [*instances, one("edited", BOTH)])
    assert (painted.delivered, painted.lost, painted.originals) == (2, 1, 3)
    assert painted.failures == ("overshoot", "elsewhere")


def test_a_change_counts_where_both_coincide():
    gone = [one("source", BOTH, at=at) for at in (0, 2)]
    came = [one("edited", BOTH, category="dog", at=at) for at in (0, 5)]
    found = judged(edit("change", 2, "dog"), [*gone, *came])
    assert found.verdicts == ("transformed", "removed", "transformed", "added")
    assert (found.delivered, found.lost, found.originals) == (1, 1, 2)
    assert found.failures == ("undershoot", "elsewhere")


def test_a_change_loses_originals_of_the_target_too():
    instances = [one("source", BOTH), one("edited", BOTH, category="dog"), one("source", category="dog", at=7)]
    found = judged(edit("change", 1, "dog"), instances)
    assert found.verdicts == ("transformed", "transformed", "missing")
    assert (found.delivered, found.lost, found.originals) == (1, 1, 2)
    assert found.failures == ("overwritten",)


def test_new_ones_of_what_was_to_be_changed_are_nobodys_business():
    found = judged(edit("change", 1, "dog"), [one("edited")])
    assert found.verdicts == ("unasked",)
    assert found.delivered == 0


@pytest.mark.parametrize(
    ("answer", "verdict", "delivered"), [(True, "added", 1), (False, "rejected", 0), (None, "ambiguous", 0)]
)
def test_a_question_decides_what_the_detectors_do_not(answer, verdict, delivered):
    found = judged(edit("add", 1), [one("edited", ONE_OF_TWO)], [answer])
    assert found.verdicts == (verdict,)
    assert found.delivered == delivered
    assert (found.candidates, found.asked, found.resolved) == (1, 1, int(answer is not None))


def test_an_answer_does_not_overrule_two_detectors():
    assert judged(edit("add", 1), [one("edited", BOTH)], [False]).verdicts == ("added",)


def test_nothing_at_all():
    found = judged(edit("add", 2), [])
    assert (found.delivered, found.lost, found.originals, found.cf, found.oc) == (0, 0, 0, 0.0, 1.0)
