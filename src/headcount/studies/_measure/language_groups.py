"""Groups of languages: the contrast of a family with all other languages, and the rank correlation of losses with the size of the corpus."""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

from headcount.core.errors import DataError
from headcount.core.files import is_file
from headcount.core.stats.agreement import spearman
from headcount.core.stats.chance import FEWEST_RANKED, rank_correlation_interval
from headcount.core.stats.corrected_rows import add_q_values

COLUMNS = ("language", "family", "size")
FEWEST_LANGUAGES = FEWEST_RANKED
"""With fewer languages no rank correlation is tested."""


@dataclass(frozen=True, slots=True)
class LanguageGroup:
    """A language with its family and the size of its part of the pre-training corpus; empty and None where the file says nothing."""

    language: str
    family: str
    size: float | None


def read_language_groups(path: Path, languages: Sequence[str]) -> dict[str, LanguageGroup]:
    """Returns the groups of some languages from a csv file with the columns language, family and size.

    Raises:
        DataError: the file or a column is missing, a language has no row or two, or a size is no positive number.
    """
    if not is_file(path):
        raise DataError(f"{path} is no file; name a csv file with the columns {', '.join(COLUMNS)}")
    with path.open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        missing = [name for name in COLUMNS[:1] if name not in (reader.fieldnames or ())]
        if missing or not set(COLUMNS[1:]) & set(reader.fieldnames or ()):
            raise DataError(f"{path} must have the columns {', '.join(COLUMNS)}, family or size at least; it has {reader.fieldnames}")
        rows = list(reader)
    groups: dict[str, LanguageGroup] = {}
    for row in rows:
        name, size = row["language"].strip(), (row.get("size") or "").strip()
        if name in groups:
            raise DataError(f"{path} has two rows for {name}; leave one out")
        try:
            number = float(size) if size else None
        except ValueError:
            number = math.nan
        if number is not None and not 0 < number < math.inf:
            raise DataError(f"{path}: size of {name} must be a number above 0, got {size!r}")
        groups[name] = LanguageGroup(name, (row.get("family") or "").strip(), number)
    lacking = [language for language in languages if language not in groups]
    if lacking:
        raise DataError(f"{path} has no row for {', '.join(lacking)}; it has {', '.join(groups) or 'none'}")
    return {language: groups[language] for language in languages}


@dataclass(frozen=True, slots=True)
class FamilyContrast:
    """The mean share lost over the languages of a family minus that over all others, without the same heads.

    Interval and p are by Welch's t over languages; None where the family or the others are a single language.
    """

    without: str
    family: str
    n_languages: int
    n_others: int
    lost: float
    lost_by_others: float
    difference: float
    low: float | None
    high: float | None
    p: float | None
    q: float | None = None


@dataclass(frozen=True, slots=True)
class SizeTrend:
    """The rank correlation over languages of the share lost with the size of the corpus, with its interval and p-value over languages."""

    without: str
    n_languages: int
    correlation: float
    low: float
    high: float
    p: float
    q: float | None = None


def contrast_language_families(
    lost_shares_by_removal: Mapping[str, Mapping[str, float]], group_of_language: Mapping[str, LanguageGroup]
) -> list[FamilyContrast]:
    """Returns a contrast for every removal and family from the share lost, by removal and language."""
    rows = []
    for without, shares in lost_shares_by_removal.items():
        families = dict.fromkeys(group_of_language[language].family for language in shares if group_of_language[language].family)
        for family in families:
            own = np.array([share for language, share in shares.items() if group_of_language[language].family == family])
            others = np.array([share for language, share in shares.items() if group_of_language[language].family not in ("", family)])
            if not len(others):
                continue
            low = high = p = None
            if min(len(own), len(others)) > 1 and own.std() + others.std() > 0:
                test: Any = stats.ttest_ind(own, others, equal_var=False)
                interval = test.confidence_interval()
                low, high, p = float(interval.low), float(interval.high), float(test.pvalue)
            means = float(own.mean()), float(others.mean())
            rows.append(FamilyContrast(without, family, len(own), len(others), *means, means[0] - means[1], low, high, p))
    return add_q_values(rows)


def correlate_losses_with_corpus_size(
    lost_shares_by_removal: Mapping[str, Mapping[str, float]], group_of_language: Mapping[str, LanguageGroup]
) -> list[SizeTrend]:
    """Returns, for every removal, the rank correlation of the share lost with the size; none for fewer than four languages with a size."""
    rows = []
    for without, shares in lost_shares_by_removal.items():
        languages = [language for language in shares if group_of_language[language].size is not None]
        sizes, values = (
            np.array([group_of_language[language].size for language in languages], float),
            np.array([shares[name] for name in languages]),
        )
        if len(languages) < FEWEST_LANGUAGES or sizes.std() == 0 or values.std() == 0:
            continue
        observed = float(spearman(values, sizes))
        rows.append(SizeTrend(without, len(languages), observed, *rank_correlation_interval(observed, len(languages))))
    return add_q_values(rows)
