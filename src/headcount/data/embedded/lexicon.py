"""The words of the embedded languages: a small English, and Tavi, a verb-final, agglutinating language with gender agreement."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Gender = Literal["sun", "moon", "stone"]


@dataclass(frozen=True, slots=True)
class Noun:
    """A noun: English forms, Tavi stem and gender, and whether it acts by itself."""

    singular: str
    plural: str
    stem: str
    gender: Gender
    animate: bool = True


@dataclass(frozen=True, slots=True)
class Verb:
    """A verb: English third person and plain form, Tavi stem."""

    third: str
    plain: str
    stem: str
    transitive: bool


@dataclass(frozen=True, slots=True)
class Modifier:
    """An adjective or adverb, its Tavi stem, and its opposite."""

    word: str
    stem: str
    opposite: str


@dataclass(frozen=True, slots=True)
class Place:
    """A preposition of place and the Tavi case suffix that stands for it."""

    word: str
    suffix: str


def _parse_nouns(rows: str, *, animate: bool) -> tuple[Noun, ...]:
    cells = (row.split() for row in rows.strip().splitlines())
    return tuple(Noun(singular, plural, stem, gender, animate) for singular, plural, stem, gender in cells)  # type: ignore[arg-type]


PEOPLE = _parse_nouns(
    """
    dog dogs tark sun
    cat cats mirel moon
    bird birds pelun sun
    horse horses gordan stone
    child children livet moon
    farmer farmers brosk stone
    king kings havor sun
    queen queens selim moon
    doctor doctors kondur stone
    singer singers falim moon
    soldier soldiers drumek stone
    teacher teachers ospel sun
    sailor sailors vintur moon
    baker bakers pondel stone
    fox foxes rasken sun
    wolf wolves ulgor moon
    """,
    animate=True,
)
THINGS = _parse_nouns(
    """
    box boxes kaspel stone
    tree trees velum moon
    house houses dorgan stone
    river rivers silen moon
    garden gardens flomir sun
    table tables tombek stone
    boat boats naviel moon
    stone stones grunok stone
    lamp lamps luxam sun
    bridge bridges pontek stone
    field fields agrol sun
    road roads semil moon
    """,
    animate=False,
)
NOUNS = PEOPLE + THINGS


def _parse_verbs(rows: str, *, transitive: bool) -> tuple[Verb, ...]:
    cells = (row.split() for row in rows.strip().splitlines())
    return tuple(Verb(third, base, stem, transitive) for third, base, stem in cells)


TRANSITIVE = _parse_verbs(
    """
    sees see vidol
    likes like plesk
    chases chase hontar
    helps help auxen
    finds find trovel
    follows follow sekun
    hears hear audel
    carries carry portum
    watches watch gardil
    calls call vokam
    paints paint pinkor
    visits visit merem
    """,
    transitive=True,
)
INTRANSITIVE = _parse_verbs(
    """
    sleeps sleep dormel
    sings sing kantor
    runs run kurem
    waits wait atenol
    smiles smile ridek
    works work laborim
    falls fall kadun
    dances dance baltor
    """,
    transitive=False,
)
VERBS = TRANSITIVE + INTRANSITIVE


def _parse_opposites(rows: str) -> tuple[Modifier, ...]:
    modifiers = []
    for row in rows.strip().splitlines():
        word, stem, opposite_word, opposite_stem = row.split()
        modifiers += [Modifier(word, stem, opposite_word), Modifier(opposite_word, opposite_stem, word)]
    return tuple(modifiers)


ADJECTIVES = _parse_opposites(
    """
    big magul small minik
    old senel young junim
    happy feluk sad tristel
    red rubem blue bluel
    fast velok slow lentum
    strong fortik weak debol
    clean puril dirty sordek
    """
)
ADVERBS = _parse_opposites(
    """
    quickly rapim slowly tardim
    loudly krisem quietly silem
    often multem rarely pokem
    gladly gaudem sadly lugem
    """
)
PLACES = (Place("in", "sa"), Place("near", "ti"), Place("behind", "ro"), Place("under", "pe"), Place("on", "la"), Place("beside", "zu"))

GENDER_SUFFIX: dict[Gender, str] = {"sun": "a", "moon": "e", "stone": "o"}
PLURAL_SUFFIX = "mi"
OBJECT_SUFFIX = "nu"
NEGATION_SUFFIX = "bek"
SUBJECT_PARTICIPLE = "va"
OBJECT_PARTICIPLE = "ghi"
SUFFIXES = (
    *GENDER_SUFFIX.values(),
    PLURAL_SUFFIX,
    OBJECT_SUFFIX,
    NEGATION_SUFFIX,
    SUBJECT_PARTICIPLE,
    OBJECT_PARTICIPLE,
    *(preposition.suffix for preposition in PLACES),
)
DEFINITE_STEM, INDEFINITE_STEM = "yet", "wun"


def opposite(modifier: Modifier) -> Modifier:
    """Returns the modifier that contradicts another."""
    return next(candidate for candidate in ADJECTIVES + ADVERBS if candidate.word == modifier.opposite)
