from __future__ import annotations

import pytest

from tallymill.engine.abacus.instructions import Instruction, parse_instruction
from tallymill.errors import ManifestError


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("add 3 boats", Instruction("add", "boat", 3)),
        ("Add three boats.", Instruction("add", "boat", 3)),
        ("remove 5 bottles", Instruction("remove", "bottle", 5)),
        ("delete a stop sign", Instruction("remove", "stop sign", 1)),
        ("change 4 cars to trucks", Instruction("change", "car", 4, "truck")),
        ("change 1 car to a truck", Instruction("change", "car", 1, "truck")),
        ("replace 2 dogs with 2 cats", Instruction("change", "dog", 2, "cat")),
        ("turn 2 buses into sheep", Instruction("change", "bus", 2, "sheep")),
        ("  please   add 8 persons ", Instruction("add", "person", 8)),
        ("add 2 wine glasses", Instruction("add", "wine glass", 2)),
        ("add 0 boats", Instruction("add", "boat", 0)),
        ("remove no wine glasses", Instruction("remove", "wine glass", 0)),
        ("change 2 dining tables to potted plants", Instruction("change", "dining table", 2, "potted plant")),
    ],
)
def test_instructions_are_read(text, wanted):
    assert parse_instruction(text) == wanted


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("paint 3 boats", "not an instruction to add, remove or change"),
        ("", "not an instruction"),
        ("add 3 boats and 2 cars", "an edit is of one category"),
        ("change 3 boats", "a change names what to change to"),
        ("add 3 boats to cars", "what does it add"),
        ("change 3 boats to boats", "it changes 'boat' to itself"),
        ("add boats", "^instruction 'add boats': 'boats' does not begin with a count"),
        ("add 101 boats", "^instruction 'add 101 boats': '101 boats' asks for more than 100"),
        ("change 2 boats to 2 cars and 3 trucks", "an edit is of one category"),
    ],
)
def test_what_is_not_plain_is_quoted(text, said):
    with pytest.raises(ManifestError, match=said) as caught:
        parse_instruction(text)
    assert "add 3 boats" in (caught.value.hint or "")
