"""How often roles beyond distance err, by simulation: experiments of `make coverage` on made-up heads over sentences of made-up trees."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
import torch
from interval_coverage import ALPHA, Experiment, Rate

from headcount.behaviour.base import Corpus, Role
from headcount.behaviour.catalogue.pos import PartOfSpeech
from headcount.behaviour.catalogue.rare import Rare
from headcount.behaviour.catalogue.same import Same
from headcount.behaviour.catalogue.syntax import Syntax
from headcount.behaviour.swaps import SwappedExcess
from headcount.behaviour.twin import N_FOLDS, TwinComparison
from headcount.behaviour.twin_pass import TwinPass
from headcount.core.stats.significance import benjamini_hochberg
from headcount.core.twin_score import MIN_EXCESS, excess_p_values
from headcount.data.text.aligned import Aligned
from headcount.data.text.annotated import Annotated, Word

Attention = Callable[[Aligned, np.random.Generator], np.ndarray]
"""(sentence, random) -> the attention of one head [q, k], rows of any sum."""
RELATIONS = ("nsubj", "obj", "amod", "det")
TAGS = ("NOUN", "VERB", "ADJ")
ROLES: tuple[Role, ...] = (
    *(Syntax(relation + back) for relation in RELATIONS for back in ("", "-of")),
    *(PartOfSpeech(tag) for tag in TAGS),
    Same(),
    Rare("1", frequent=100),
)
AT_ONCE = 32


def draw_sentence(random: np.random.Generator, lengths: tuple[int, int] = (5, 40)) -> Aligned:
    """Words between two special tokens; each depends on another one at a geometric distance to either side, by a random relation."""
    n = int(random.integers(lengths[0], lengths[1] + 1))
    offsets = random.geometric(0.45, (n, 50)) * random.choice((-1, 1), (n, 50))
    heads = [next((int(i + o) for o in offsets[i] if 0 <= i + o < n), -1) for i in range(n)]
    forms = [f"w{number}" for number in random.zipf(1.5, n) % 400]
    relations, tags = random.choice(RELATIONS, n), random.choice(TAGS, n)
    start = np.cumsum([0, *(len(form) + 1 for form in forms)]).tolist()
    words = tuple(
        Word(form, form, str(tags[i]), heads[i], str(relations[i]), start[i], start[i] + len(form)) for i, form in enumerate(forms)
    )
    ids = (0, *(2 + int(form[1:]) for form in forms), 1)
    spans = ((0, 0), *((word.start, word.end) for word in words), (0, 0))
    pieces = tuple((i + 1,) for i in range(n))
    annotated = Annotated(" ".join(forms), words)
    special = (True, *(False,) * n, True)
    return Aligned(ids, (None, *range(n), None), special, tuple(-1 if s else 0 for s in special), annotated, False, spans, pieces, 0)


def at_distance(mean: float, deviation: float, floor: float = 1e-3) -> Attention:
    """Attention by a Gaussian of the offset, times gamma noise."""

    def draw_attention(sentence: Aligned, random: np.random.Generator) -> np.ndarray:
        n = len(sentence.ids)
        offset = np.arange(n)[None, :] - np.arange(n)[:, None]
        return (np.exp(-0.5 * ((offset - mean) / deviation) ** 2) + floor) * random.gamma(3.0, size=(n, n))

    return draw_attention


def previous_token(sentence: Aligned, random: np.random.Generator) -> np.ndarray:
    """Nearly all attention on the previous token."""
    n = len(sentence.ids)
    return np.where(np.eye(n, k=-1) > 0, 1.0, 0.02) * random.gamma(2.0, size=(n, n))


def on_governor(share: float, base: Attention) -> Attention:
    """A share of the attention of each word on its governor, at any distance; the rest as another head."""

    def draw_attention(sentence: Aligned, random: np.random.Generator) -> np.ndarray:
        attention = base(sentence, random)
        attention /= attention.sum(-1, keepdims=True)
        for number, word in enumerate(sentence.annotated.words):
            if word.head is not None and word.head >= 0:
                attention[number + 1] *= 1 - share
                attention[number + 1, word.head + 1] += share
        return attention

    return draw_attention


DISTANCE_HEADS: Mapping[str, Attention] = {
    "previous token": previous_token,
    "Gaussian, offset 0 ± 1.5": at_distance(0, 1.5),
    "Gaussian, offset -1 ± 1": at_distance(-1, 1),
    "Gaussian, offset 2 ± 2": at_distance(2, 2),
    "uniform with noise": at_distance(0, 1e6),
}
PLANTED_HEADS: Mapping[str, Attention] = {"30 % on the governor": on_governor(0.3, at_distance(0, 3))}


@dataclass(frozen=True, slots=True)
class Simulated:
    """Comparisons with the twin by role, and the excess mass under swapped annotations."""

    comparisons: Sequence[TwinComparison]
    swapped: SwappedExcess | None


def simulate(
    sentences: Sequence[Aligned],
    heads: Sequence[Attention],
    random: np.random.Generator,
    *,
    roles: Sequence[Role] = ROLES,
    sees: Callable[[int], np.ndarray] = lambda n: np.ones((n, n), dtype=bool),
    n_swaps: int = 0,
) -> Simulated:
    """Measures heads on sentences as a pass over a model does; `sees` is the mask of a number of tokens."""
    corpus = Corpus(tuple(sentences))
    mask = sees(max(len(s.ids) for s in sentences))
    twin_pass = TwinPass.for_content_roles(corpus, "source", roles, {"block": mask}, n_swaps=n_swaps, seed=0)
    sums = np.zeros((N_FOLDS, twin_pass.n_attention_sums, len(heads)))
    for first in range(0, len(sentences), AT_ONCE):
        numbers = list(range(first, min(first + AT_ONCE, len(sentences))))
        n = max(len(sentences[number].ids) for number in numbers)
        attention = np.zeros((len(numbers), len(heads), n, n))
        for row, number in enumerate(numbers):
            size = len(sentences[number].ids)
            for column, head in enumerate(heads):
                attention[row, column, :size, :size] = head(sentences[number], random) * mask[:size, :size]
        sparse_sum = twin_pass.sum_weights_of_batch(twin_pass.texts[0], numbers, (n, n), torch.device("cpu"))
        of_batch = sparse_sum.sum_attention(torch.from_numpy(attention)).numpy().reshape(-1, twin_pass.n_attention_sums, len(heads))
        sums[twin_pass.folds_of_sentences(numbers)] += of_batch
    return Simulated(twin_pass.compare_with_twins(0, sums), twin_pass.excess_under_swaps(0, sums) if n_swaps else None)


def count_labels(comparisons: Sequence[TwinComparison]) -> np.ndarray:
    """Returns how many roles each head earns beyond distance."""
    p = np.array([excess_p_values(c.excess, c.stderr, c.n_folds, MIN_EXCESS) for c in comparisons])
    return (benjamini_hochberg(p) <= ALPHA).sum(0)


@dataclass(frozen=True, slots=True)
class LabelRates:
    """How often each head has a role of content, and the share of the tests that label under swapped annotations."""

    by_head: Mapping[str, float]
    of_swapped_tests: float


@cache
def measure_label_rates(draws: int, n_sentences: int, n_swaps: int) -> LabelRates:
    """Simulates heads of distance and a planted head on `draws` texts."""
    heads = {**DISTANCE_HEADS, **PLANTED_HEADS}
    has_role, n_errors = np.zeros(len(heads)), 0
    for draw in range(draws):
        random = np.random.default_rng(draw)
        sentences = [draw_sentence(random) for _ in range(n_sentences)]
        simulated = simulate(sentences, list(heads.values()), random, n_swaps=n_swaps)
        has_role += count_labels(simulated.comparisons) > 0
        swapped = simulated.swapped
        assert swapped is not None
        p = excess_p_values(swapped.excess, swapped.stderr, swapped.n_folds[:, :, None], MIN_EXCESS)[1:]
        assert p.size == count_swapped_tests(1, n_swaps)
        n_errors += sum(int((benjamini_hochberg(of_swap) <= ALPHA).sum()) for of_swap in p)
    return LabelRates(dict(zip(heads, has_role / draws, strict=True)), n_errors / count_swapped_tests(draws, n_swaps))


def count_swapped_tests(draws: int, n_swaps: int) -> int:
    """Returns how many pairs of a role and a head are tested under swapped annotations."""
    return draws * n_swaps * len(ROLES) * (len(DISTANCE_HEADS) + len(PLANTED_HEADS))


def role_experiments(draws: int, n_sentences: int = 300, n_swaps: int = 20) -> Iterator[Experiment]:
    """Yields how often heads of distance earn a content role, how often a planted head does, and the share of tests that label under swaps."""

    def of_head(name: str) -> Rate:
        return Rate(measure_label_rates(draws, n_sentences, n_swaps).by_head[name])

    for name in (*DISTANCE_HEADS, *PLANTED_HEADS):
        table, limit = ("power", "≥ 0.95") if name in PLANTED_HEADS else ("verdicts", "≤ 0.05")
        yield Experiment(table, "any role of content, beyond distance", name, n_sentences, draws, limit, partial(of_head, name))
    yield Experiment(
        "verdicts",
        "a role of content under swapped annotations",
        "all these heads",
        n_sentences,
        count_swapped_tests(draws, n_swaps),
        "≤ 0.05",
        lambda: Rate(measure_label_rates(draws, n_sentences, n_swaps).of_swapped_tests),
    )
