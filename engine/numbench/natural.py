"""Reading "3 ginger kittens and 2 grey kittens" as what was asked for; what is not plain is an error."""

from __future__ import annotations

import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from tallymill.engine.numbench.vocabulary.categories import load_vocabulary
from tallymill.errors import ManifestError

if TYPE_CHECKING:
    import inflect

GREATEST = 100


def _words(text: str) -> dict[str, int]:
    """Each word with its place."""
    return {word: place for place, word in enumerate(text.split())}


_UNITS = _words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen "
    "seventeen eighteen nineteen"
)
_TENS = {
    word: 10 * place + 20 for word, place in _words("twenty thirty forty fifty sixty seventy eighty ninety").items()
}
_LARGE = frozenset({"hundred", "hundreds", "thousand", "thousands", "million", "millions", "billion", "billions"})
_NUMBER_WORDS = frozenset({*_UNITS, *_TENS, *_LARGE, "dozen", "dozens", "pair", "pairs"})

_PICTURE = "photo|photograph|image|picture|drawing|painting|illustration|sketch|render|rendering"
_VERB = "generate|draw|show|create|make|paint|render|depict|produce|sketch|imagine"
_LEAD = re.compile(
    rf"(?:please )?(?:(?:{_VERB})(?: me| us)?(?: |$))?"
    rf"(?:(?:an?|the|one) (?:{_PICTURE}) (?:of|showing|with|containing|depicting)(?: |$))?"
    r"(?:there (?:is|are) )?"
)
_LAYOUT = re.compile(r",? (?:arranged in a regular grid|placed naturally in a scene|scattered at random positions)$")
_MODIFIERS = "blurry|deformed|low quality|overlapping|merged|partial|cropped|artifacts"
_MODIFIER = re.compile(rf", ?(?:{_MODIFIERS})$")

_SEPARATOR = re.compile(r"\s*,\s*(?:and\s+)?|\s+and\s+|\s*&\s*")
_WORD = re.compile(r"[^\W_]+(?:(?:['.\-]|'-)[^\W_]+)*'?")

# "and" inside one name: between colours, and in a few dishes. A plus sign, which no word has, keeps it whole.
_COLOUR = "black|white|red|green|blue|yellow|brown|pink|purple|grey|gray|gold|silver|tan"
_INNER_AND = re.compile(
    rf"\b(?:(?:{_COLOUR}) and (?:{_COLOUR}) [a-z]"
    r"|hot and sour [a-z]|(?:mac|macaroni) and cheese|fish and chips|shrimp and grits)"
)

# A noun phrase that holds one of these says more than a category: where, doing what, or how many in another way.
_FOREIGN = _words(
    "a an the this that these those some any no not or nor but if than per each every all both either neither about "
    "around approximately roughly nearly almost at in on into onto under over above below beneath beside besides near "
    "behind between among against across along through from to by with without inside outside for as like next who "
    "which is are was were be being been has have having wearing holding sitting standing lying playing looking "
    "arranged placed scattered few several many much more most less lots couple handful plenty"
)
# "a group of cats" is not one thing called "group of cat".
_COLLECTIVES = _words(
    "army array assortment band batch bunch cluster collection colony crowd flock gang group heap herd host "
    "litter lot mass mix mixture multitude number pack pile quantity row school selection series set stack "
    "swarm team trio variety"
)
# What is called a pair although it is one thing.
_ONE_PAIR = _words(
    "binoculars clippers eyeglasses forceps glasses goggles headphones jeans leggings overalls pajamas "
    "pants pliers pyjamas scissors shears shorts spectacles sunglasses tights tongs trousers trunks tweezers"
)

# Plural and singular where inflect has another opinion or none.
# fmt: off
_IRREGULAR = {
    "axes": "axe", "borzois": "borzoi", "bowties": "bowtie", "brioches": "brioche", "cacti": "cactus",
    "ceviches": "ceviche", "chateaux": "chateau", "cliches": "cliche", "cuties": "cutie", "dice": "die",
    "fungi": "fungus", "gateaux": "gateau", "grandchildren": "grandchild", "hippies": "hippie",
    "hippopotami": "hippopotamus", "hoodies": "hoodie", "kelpies": "kelpie", "knives": "knife",
    "moustaches": "moustache", "mustaches": "mustache", "octopi": "octopus", "patisseries": "patisserie",
    "people": "person", "persons": "person", "rotisseries": "rotisserie", "selfies": "selfie", "skis": "ski",
    "smoothies": "smoothie", "stepchildren": "stepchild", "talkies": "talkie", "toughies": "toughie",
}
# fmt: on
_UNCHANGED = _words("bison broccoli panini shrimp squid sushi swine")
# Singular although it looks like a plural.
_SINGULAR_S = _words(
    "atlas bias bus canvas christmas cosmos foie gas lens mars mantis molasses pancreas patas pyrenees sayornis "
    "skis stairs tennis thermos triceratops biceps triceps forceps chips grits fries bars"
)

_HINT = 'write a count and a plural for each thing, such as "3 ginger kittens and 2 grey kittens"'


def parse_prompt(text: str) -> list[tuple[str, int]]:
    """Read a prompt as (category, count) pairs in its order.

    Categories are lower case and singular with their qualifiers; counts lie in 1..100, given in digits, in words, by
    "a", "an", "a pair of", "a dozen". Phrases that ask for a picture and the layouts and modifiers of generated
    prompts are dropped. A category that stands twice is returned twice. Anything else in the text, or a plural that
    is none, is a ``ManifestError`` that quotes the prompt.
    """
    try:
        return list(_parse(text))
    except _UnreadableError as error:
        quoted = text if len(text) <= 200 else text[:199] + "…"
        raise ManifestError(f"prompt {quoted!r}: {error}", hint=_HINT) from None


class _UnreadableError(Exception):
    """Why a prompt cannot be read; the caller quotes it."""


@lru_cache(maxsize=4096)
def _parse(text: str) -> tuple[tuple[str, int], ...]:
    plain = " ".join(text.replace("’", "'").lower().split()).rstrip(".!").rstrip()
    if not plain:
        raise _UnreadableError("it is empty")
    if re.search(r"\bhundred and\b", plain):
        raise _UnreadableError(f"a number beyond {GREATEST}")
    wanted = _INNER_AND.sub(lambda m: m.group().replace(" and ", " +and "), _strip_tail(_strip_lead(plain)))
    return tuple(_target(part) for part in _SEPARATOR.split(wanted))


def _strip_lead(text: str) -> str:
    lead = _LEAD.match(text)
    return text[lead.end() :] if lead else text


def _strip_tail(text: str) -> str:
    while shorter := _MODIFIER.search(text):
        text = text[: shorter.start()]
    return _LAYOUT.sub("", text)


def _target(part: str) -> tuple[str, int]:
    words = part.split()
    if words[:1] == ["exactly"]:
        words = words[1:]
    if not words:
        raise _UnreadableError("a target is missing")
    count, rest = _count(words)
    part = part.replace("+and", "and")
    if known := _category(rest, count):
        _check_count(count, part)
        return known, count
    noun, count = _unpair(rest, count)
    if not noun:
        raise _UnreadableError(f"{part!r} names nothing to count")
    _check_noun(noun, part)
    _check_count(count, part)
    name = " ".join(noun).replace("+and", "and")
    if count == 1:
        if _is_plural(noun):
            raise _UnreadableError(f"{name!r} looks like a plural, but the count is 1")
        return name, 1
    one = singular(name)
    if one is None:
        raise _UnreadableError(f"{name!r} is not a plural that is known")
    return one, count


def _check_count(count: int, part: str) -> None:
    if count < 1:
        raise _UnreadableError(f"{part!r} asks for none")
    if count > GREATEST:
        raise _UnreadableError(f"{part!r} asks for more than {GREATEST}")


def _category(words: list[str], count: int) -> str | None:
    """The category of the vocabulary that these words are, in the number that goes with the count; None for others."""
    name = " ".join(words).replace("+and", "and")
    vocabulary = load_vocabulary()
    if count == 1:
        return name if name in vocabulary else None
    return vocabulary.singular(name)


def _count(words: list[str]) -> tuple[int, list[str]]:
    """The number that a target begins with, and the words after it."""
    count, rest = _number(words)
    if rest[:1] in (["dozen"], ["dozens"]) and rest[0] == "dozen":
        return 12 * count, rest[2:] if rest[1:2] == ["of"] else rest[1:]
    return count, rest


def _number(words: list[str]) -> tuple[int, list[str]]:
    first, rest = words[0], words[1:]
    if first.isdecimal() and not first.startswith("0"):
        return int(first[:10]), rest
    if first == "0":
        return 0, rest
    if words[:3] == ["half", "a", "dozen"] or words[:2] == ["half", "dozen"]:
        return 6, words[words.index("dozen") + 1 :]
    if words[:2] in (["a", "hundred"], ["one", "hundred"]):
        return 100, words[2:]
    if first in ("hundred", "dozen"):
        return (100, rest) if first == "hundred" else (1, words)
    if first in ("a", "an"):
        return 1, rest
    if first in _UNITS:
        return _UNITS[first], rest
    tens, _, unit = first.partition("-")
    if tens in _TENS:
        if not unit and rest and 0 < _UNITS.get(rest[0], 0) < 10:
            unit, rest = rest[0], rest[1:]
        if not unit or 0 < _UNITS.get(unit, 0) < 10:
            return _TENS[tens] + (_UNITS[unit] if unit else 0), rest
    raise _UnreadableError(f"{' '.join(words)!r} does not begin with a count")


def _unpair(words: list[str], count: int) -> tuple[list[str], int]:
    """Resolve "pair(s) of": two things each, or one of those that are called a pair."""
    if words[:2] not in (["pair", "of"], ["pairs", "of"]):
        return words, count
    noun = words[2:]
    if noun and noun[-1] in _ONE_PAIR:
        return noun, count
    return noun, 2 * count


def _check_noun(words: list[str], part: str) -> None:
    for word, after in zip(words, [*words[1:], ""], strict=True):
        if word == "+and" or (word in _UNITS and after in ("toed", "legged", "wheeled", "headed")):
            continue
        if not _WORD.fullmatch(word) or word.isdecimal():
            raise _UnreadableError(f"{part!r}: {word!r} is not part of a name")
        if word in _FOREIGN or word in _NUMBER_WORDS or word.partition("-")[0] in _TENS:
            raise _UnreadableError(f"{part!r}: cannot tell what {word!r} means here")
    collective = words[words.index("of") - 1] if "of" in words[1:] else ""
    if collective in _COLLECTIVES or (singular(collective) in _COLLECTIVES if collective else False):
        raise _UnreadableError(f"{part!r} does not say how many there are")
    if words[0] == "of" or words[-1] == "of":
        raise _UnreadableError(f"{part!r}: cannot tell what 'of' means here")


@cache
def _engine() -> inflect.engine:
    import inflect  # its import alone takes longer than reading thousands of prompts

    return inflect.engine()


@lru_cache(maxsize=65_536)
def singular(name: str) -> str | None:
    """The singular of a plural name, its head noun being the last word before "of"; None when it is not a plural.

    What the vocabulary knows is taken from there: its plurals have been looked at one by one.
    """
    if known := load_vocabulary().singular(name):
        return known
    if name in ("fish and chips", "shrimp and grits"):
        return name
    head, of, rest = name.partition(" of ")
    words = head.split(" ")
    word = _singular_word(words[-1])
    return None if word is None else " ".join([*words[:-1], word]) + of + rest


def _singular_word(word: str) -> str | None:
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if word in _UNCHANGED or (word in _ONE_PAIR and word != "glasses"):
        return word
    before, hyphen, last = word.rpartition("-")
    if hyphen and last:
        one = _singular_word(last)
        return None if one is None else before + hyphen + one
    found = _engine().singular_noun(word)
    return str(found) if found else None


def _is_plural(noun: list[str]) -> bool:
    """Whether a name is plainly a plural. Many singulars end in s too, so only what is sure counts."""
    word = noun[noun.index("of") - 1 if "of" in noun else -1]
    if word in _ONE_PAIR or word in _SINGULAR_S:
        return False
    if load_vocabulary().singular(" ".join(noun)):
        return True  # no singular: what is the same in both was known before
    if not word.endswith("s") or word.endswith(("ss", "us", "is", "os")):
        return False
    one = _singular_word(word)
    return one is not None and one != word
