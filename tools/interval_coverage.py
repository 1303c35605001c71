"""How often verdicts and intervals err, by simulation: the experiments of `make coverage`, and what every experiment gives.

Every generator of verdicts is scaled so that its mean, clipped as the procedure clips it, lies at the margin: a correct procedure then certifies in
at most 5 % of the draws. Power is measured at no difference, so that a procedure that refuses everything fails.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from scipy import special

from headcount.core.certificate import bound_of_loss, bound_of_metric
from headcount.core.damage import FEWEST_DOCUMENTS, Damage, judge_damage
from headcount.core.evaluation import Evaluation, loss_and_metric_of_pruned_minus_dense, score_interval
from headcount.core.heads import Head
from headcount.core.margin import Margin
from headcount.core.stats.agreement import correlate, spearman
from headcount.core.stats.betting import p_value_of_mean_at_least
from headcount.core.stats.means import mean_interval
from headcount.core.stats.metric_parts import find_metric_of_sums
from headcount.core.stats.ranks import rank_confidence_sets, ranks
from headcount.core.stats.samples import Samples, make_generator
from headcount.core.stats.seed_scores import SeedScores
from headcount.core.stats.significance import single_interval_level
from headcount.core.stats.tango import PairedCounts
from headcount.core.tolerance import Tolerance
from headcount.runs.latency import Speedup

SIZES = (64, 256, 1024, 4096)
INTERVAL_SIZES = (64, 256, 1024)
ALPHA = 0.05
LEAST_SHOWN = 0.05
"""Of intervals that are shown in fewer draws than this, no coverage is given."""
DOCUMENT = 8
"""Examples of a document, in generators that have documents."""


@dataclass(frozen=True, slots=True)
class Rate:
    """How often something happened, among the draws that show a number, and the share of these."""

    rate: float
    shown: float = 1.0

    @classmethod
    def of(cls, hits: Sequence[bool | None]) -> Rate:
        """Returns the rate of hits; None stands for a draw that shows nothing."""
        seen = [hit for hit in hits if hit is not None]
        return cls(sum(seen) / len(seen) if seen else 0.0, len(seen) / len(hits))


Key = tuple[str, str, str, int, int, str]
"""What tells an experiment, or its row, from others: table, procedure, generator, n, draws and limit."""


@dataclass(frozen=True, slots=True)
class Row:
    """One measurement: what was simulated, how often it happened, and the limit that it must keep."""

    table: str
    procedure: str
    generator: str
    n: int
    draws: int
    rate: float
    limit: str
    shown: float = 1.0

    @property
    def key(self) -> Key:
        """What tells it from other rows."""
        return self.table, self.procedure, self.generator, self.n, self.draws, self.limit

    @property
    def holds(self) -> bool:
        """Whether the rate keeps its limit, within two standard errors of the simulation, or is rarely shown."""
        if self.shown < LEAST_SHOWN:
            return True
        sign, bound = self.limit[0], float(self.limit.split()[1])
        slack = 2 * (bound * (1 - bound) / (self.draws * self.shown)) ** 0.5 if self.draws else 0.0
        return self.rate <= bound + slack if sign == "≤" else self.rate >= bound - slack

    def describe(self) -> str:
        """Returns the row in a line."""
        shown = "" if self.shown == 1 else f", shown in {self.shown:.0%}"
        return (
            f"{self.procedure}, {self.generator}, n = {self.n}: {self.rate:.3f} ({self.limit}{shown}){'' if self.holds else '  NOT KEPT'}"
        )


@dataclass(frozen=True, slots=True)
class Experiment:
    """What gives one row; the number of draws is 0 where the rate is exact."""

    table: str
    procedure: str
    generator: str
    n: int
    draws: int
    limit: str
    measure: Callable[[], Rate]

    @property
    def key(self) -> Key:
        """What tells it from others."""
        return self.table, self.procedure, self.generator, self.n, self.draws, self.limit

    def run(self) -> Row:
        """Measures the row."""
        found = self.measure()
        return Row(self.table, self.procedure, self.generator, self.n, self.draws, found.rate, self.limit, found.shown)


def describe(function: Callable[..., object]) -> str:
    """Returns the first sentence of a generator's docstring."""
    return (function.__doc__ or "").split("\n")[0].rstrip(".")


# Damage per example, with a clipped mean at the tolerance: 0.02 nats, or half a point

NATS, POINTS = Tolerance.parse("0.02"), Tolerance.parse("0.5pt")


def few_with_much(random: np.random.Generator, n: int, repeats: int) -> Damage:
    """1 % of the examples lose 2 nats, the others nothing."""
    return Damage(np.float32(2) * (random.random((n, repeats)) < 0.01))


def few_beyond_the_clip(random: np.random.Generator, n: int, repeats: int) -> Damage:
    """1 % of the examples lose 8 nats, which count as 2."""
    return Damage(np.float32(8) * (random.random((n, repeats)) < 0.01))


def many_with_little(random: np.random.Generator, n: int, repeats: int) -> Damage:
    """Every example changes a little: normal, mean 0.02, deviation 0.05."""
    return Damage(random.normal(0.02, 0.05, (n, repeats)).astype(np.float32))


def nearly_equal(random: np.random.Generator, n: int, repeats: int) -> Damage:
    """5 % of the examples lose 0.4 nats, the others nothing."""
    return Damage(np.float32(0.4) * (random.random((n, repeats)) < 0.05))


def help_and_harm(random: np.random.Generator, n: int, repeats: int) -> Damage:
    """Most examples gain 0.02 nats, 4 % lose 0.98."""
    return Damage(np.where(random.random((n, repeats)) < 0.04, 0.98, -0.02).astype(np.float32))


def clusters(random: np.random.Generator, n: int, repeats: int) -> Damage:
    """Documents of 8 examples, of which 5 % lose 0.4 nats in all their examples, with noise."""
    shared = np.repeat(0.4 * (random.random((n // DOCUMENT, repeats)) < 0.05), DOCUMENT, axis=0)
    return Damage((shared + random.normal(0, 0.02, shared.shape)).astype(np.float32), documents=np.arange(n) // DOCUMENT)


def wrong_answers(random: np.random.Generator, n: int, repeats: int) -> Damage:
    """1.5 % of the answers turn wrong, 1 % turn right."""
    draws = random.random((n, repeats))
    answers = (draws < 0.015).astype(np.int8) - (draws > 0.99).astype(np.int8)
    return Damage(np.zeros((n, repeats), dtype=np.float32), answers)


DAMAGES: dict[Callable[[np.random.Generator, int, int], Damage], Tolerance] = {
    few_with_much: NATS,
    few_beyond_the_clip: NATS,
    many_with_little: NATS,
    nearly_equal: NATS,
    help_and_harm: NATS,
    clusters: NATS,
    wrong_answers: POINTS,
}


def betting_experiments(sizes: Sequence[int], draws: int) -> Iterator[Experiment]:
    """Yields how often betting calls a head safe whose mean damage is the tolerance."""

    def measure(draw: Callable[..., Damage], tolerance: Tolerance, n: int) -> Rate:
        hits: list[bool] = []
        for seed in range(0, draws, 500):  # bounds the memory
            damage = draw(make_generator(n + seed), n, min(500, draws - seed))
            values = damage.clipped_damage(tolerance)
            few = damage.documents is not None and len(values) < FEWEST_DOCUMENTS
            hits += (
                (p_value_of_mean_at_least(values, tolerance.size, tolerance.clip, damage.document_sizes) <= ALPHA) & (not few)
            ).tolist()
        return Rate.of(hits)

    for draw, tolerance in DAMAGES.items():
        for n in sizes:
            yield Experiment("verdicts", "betting, one head", describe(draw), n, draws, "≤ 0.05", partial(measure, draw, tolerance, n))


def independent_heads(random: np.random.Generator, n: int, number: int) -> np.ndarray:
    """32 heads, a quarter of them harmless, the others at the tolerance by rare harm."""
    harm = (random.random((n, number)) < 0.01) * 2.0
    harm[:, : number // 4] = 0.0
    return harm


def heads_harmed_together(random: np.random.Generator, n: int, number: int) -> np.ndarray:
    """32 heads, a quarter of them harmless, the others at the tolerance by harm to the same examples."""
    harm = np.repeat((random.random((n, 1)) < 0.01) * 2.0, number, axis=1)
    harm[:, : number // 4] = 0.0
    return harm


def head_experiments(sizes: Sequence[int], draws: int, number: int = 32) -> Iterator[Experiment]:
    """Yields the share of false verdicts among the heads of a model that are called safe, and how often a harmless head among them is found."""
    heads, n_harmless = [Head("", 0, index) for index in range(number)], number // 4

    def judge(draw: Callable[..., np.ndarray], n: int, *, power: bool) -> Rate:
        random, rates = make_generator(n), []
        for _ in range(draws):
            verdicts = judge_damage(heads, Damage(draw(random, n, number).astype(np.float32)), tolerance=NATS)
            safe = np.array([bool(row.safe) for row in verdicts.rows])
            rates.append(safe[:n_harmless].mean() if power else safe[n_harmless:].sum() / max(1, safe.sum()))
        return Rate(float(np.mean(rates)))

    for draw in (independent_heads, heads_harmed_together):
        for n in sizes:
            name = "betting, corrected over heads"
            yield Experiment("verdicts", name, describe(draw), n, draws, "≤ 0.05", partial(judge, draw, n, power=False))
            if n >= 1024:
                yield Experiment("power", name, describe(draw), n, draws, "≥ 0.7", partial(judge, draw, n, power=True))


def evaluation_of(
    metric: str, parts: np.ndarray | None, losses: np.ndarray | None = None, documents: np.ndarray | None = None, *, data: str = ""
) -> Evaluation:
    """Returns the evaluation of a model whose metric is made of these parts, on examples with this hash."""
    n = len(parts if parts is not None else losses if losses is not None else ())
    total = find_metric_of_sums(metric)
    value = None if parts is None or total is None else float(total(parts.sum(0)))
    losses = np.zeros(n) if losses is None else losses
    return Evaluation("", "report", n, losses, metric, metric != "perplexity", value, parts, data, documents)


def sorted_file(random: np.random.Generator, n: int) -> np.ndarray:
    """A file sorted by class: the first half gains 0.48 nats, the second loses 0.52."""
    return np.sort(np.where(random.random(n) < 0.5, 0.52, -0.48))


def unequal_windows(random: np.random.Generator, n: int) -> tuple[np.ndarray, np.ndarray]:
    """Windows of 16 to 128 tokens, of which 4 % lose 0.5 nats per token, the longer ones more often."""
    tokens = random.integers(16, 129, n).astype(float)
    return tokens, tokens * 0.5 * (random.random(n) < 0.04 * tokens / (tokens**2).mean() * tokens.mean())


def certificate_experiments(sizes: Sequence[int], draws: int) -> Iterator[Experiment]:
    """Yields how often a loss or a perplexity is certified that rises by just the margin."""

    def certify_loss(n: int) -> Rate:
        random, hits, dense = make_generator(n), [], np.ones(n)
        for draw in range(draws):
            before, after = (evaluation_of("", None, losses, data=f"{draw}") for losses in (dense, dense + sorted_file(random, n)))
            hits.append(bound_of_loss(before, after, Margin.parse("2%")).verdict == "certified")
        return Rate.of(hits)

    def certify_perplexity(n: int) -> Rate:
        random, hits, total = make_generator(n), [], find_metric_of_sums("perplexity")
        assert total is not None
        for _ in range(draws):
            tokens, rise = unequal_windows(random, n)
            dense, small = (evaluation_of("perplexity", np.stack([losses, tokens], axis=1)) for losses in (tokens, tokens + rise))
            margin = f"{100 * np.expm1(0.02):.10f}%"
            hits.append(bound_of_metric(dense, small, total, Margin.parse(margin)).verdict == "certified")
        return Rate.of(hits)

    for n in sizes:
        yield Experiment("verdicts", "betting, loss", describe(sorted_file), n, draws, "≤ 0.05", partial(certify_loss, n))
        yield Experiment("verdicts", "betting, perplexity", describe(unequal_windows), n, draws, "≤ 0.05", partial(certify_perplexity, n))


def tango_error(n: int, margin: float, discordance: float) -> float:
    """Returns the exact probability that Tango certifies a loss of exactly the margin, if that share of the examples is discordant."""
    share = min(1.0, (discordance + margin) / 2 / discordance)
    total, spread = n * discordance, 8 * (n * discordance) ** 0.5 + 8
    probability = 0.0
    for number in range(max(0, int(total - spread)), min(n, int(total + spread)) + 1):
        weight = _binomial(number, n, discordance)
        if weight < 1e-12:
            continue
        # p falls with the number of gains, so the certified numbers are those from the fewest on
        fewest = bisect_left(
            range(number + 1), True, key=lambda gains, of=number: PairedCounts(n, of - gains, gains).p_value_of_at_most(-margin) <= ALPHA
        )
        most_lost = number - fewest
        probability += weight * float(special.bdtr(most_lost, number, share) if most_lost >= 0 else 0.0)
    return probability


def _binomial(k: int, n: int, p: float) -> float:
    ways = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    return float(np.exp(ways + k * np.log(p) + (n - k) * np.log1p(-p)))


def tango_experiments(sizes: Sequence[int], margins: Sequence[float] = (0.005, 0.01, 0.02, 0.05)) -> Iterator[Experiment]:
    """Yields the largest exact rate at which Tango certifies an accuracy that is worse by a margin, over shares of answers that change."""
    for margin in margins:
        shares = [share for share in (margin, 1.25 * margin, 2 * margin, 5 * margin, 0.3) if margin <= share <= 0.3]
        listed = ", ".join(f"{100 * share:.3g}" for share in shares)
        generator = f"{100 * margin:g} points, {listed} % of the answers change: the worst of them, exact"
        for n in sizes:
            yield Experiment(
                "verdicts",
                "Tango",
                generator,
                n,
                0,
                "≤ 0.07",
                lambda n=n, margin=margin, shares=shares: Rate(max(tango_error(n, margin, share) for share in shares)),
            )


# Pairs of models whose metric differs by just the margin


@dataclass(frozen=True, slots=True)
class Classifier:
    """A classifier that is right in 90 %, and a smaller one that gets right answers of one class wrong at such a rate that it loses the margin."""

    metric: str
    share: float
    """The share of class 1."""
    harmed: int
    """The class whose right answers turn wrong."""
    margin: str
    churn: float = 0.0
    """The share of the other answers that change, whatever they are."""

    def describe(self) -> str:
        """Returns the generator in words."""
        churn = f", {100 * self.churn:g} % change besides" if self.churn else ""
        unit = self.margin.replace("pt", " points").replace("%", " %")
        return f"{self.metric}, {100 * self.share:g} % of class 1, class {self.harmed} turns wrong{churn}, {unit}"

    def cells(self, rate: float) -> np.ndarray:
        """Returns the probabilities [true, answer of the dense model, answer of the smaller one], if that share of the class turns wrong."""
        cells = np.zeros((2, 2, 2))
        for true, of_class in enumerate((1 - self.share, self.share)):
            for answer in (0, 1):
                at_hand = of_class * (0.9 if answer == true else 0.1)
                turned = rate if answer == true == self.harmed else self.churn
                cells[true, answer, [answer, 1 - answer]] = at_hand * (1 - turned), at_hand * turned
        return cells

    def harm_rate(self) -> float:
        """Returns the share of right answers of that class that turn wrong."""
        total = find_metric_of_sums(self.metric)
        assert total is not None

        def excess(rate: float) -> float:
            cells = self.cells(rate)
            dense, small = (float(total(cells.sum(axis).ravel())) for axis in (2, 1))
            return dense - small - Margin.parse(self.margin).of_metric(self.metric, dense)

        return _zero(excess)

    def draw(self, random: np.random.Generator, n: int) -> tuple[Evaluation, Evaluation]:
        """Returns the evaluations of both models on a draw."""
        kinds = np.repeat(np.arange(8), random.multinomial(n, self.cells(self.harm_rate()).ravel()))
        true, dense, small = kinds >> 2, kinds >> 1 & 1, kinds & 1
        return evaluation_of(self.metric, np.eye(4)[2 * true + dense]), evaluation_of(self.metric, np.eye(4)[2 * true + small])


def _zero(excess: Callable[[float], float]) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if excess(middle) < 0 else (low, middle)
    return high


@dataclass(frozen=True, slots=True)
class Documents:
    """Accuracy on documents of 8 examples, of which some turn wrong as a whole, or in which answers turn wrong at rates that differ."""

    margin: str = "5pt"
    is_whole: bool = True

    def describe(self) -> str:
        """Returns the generator in words."""
        harm = "5 % of the documents turn wrong" if self.is_whole else "answers turn wrong at a rate that documents share, beta(1, 19)"
        return f"accuracy, documents of 8 examples: {harm}, 5 points"

    def draw(self, random: np.random.Generator, n: int) -> tuple[Evaluation, Evaluation]:
        """Returns the evaluations of both models, the dense one without mistakes."""
        documents = np.arange(n) // DOCUMENT
        rates = random.random(n // DOCUMENT) < 0.05 if self.is_whole else random.beta(1, 19, n // DOCUMENT)
        right = random.random(n) >= rates[documents]
        dense, small = (np.stack([answers, np.ones(n)], axis=1) for answers in (np.ones(n), right.astype(float)))
        return evaluation_of("accuracy", dense, documents=documents), evaluation_of("accuracy", small, documents=documents)


@dataclass(frozen=True, slots=True)
class Translations:
    """Sentences of 12 words of which a model matches 80 % of the words; some of those of the smaller model match nothing, or all a little less."""

    margin: str = "2pt"
    is_rare: bool = True

    def describe(self) -> str:
        """Returns the generator in words."""
        return f"BLEU, {'a few translations match nothing' if self.is_rare else 'every translation matches a little less'}, 2 points"

    def draw(self, random: np.random.Generator, n: int) -> tuple[Evaluation, Evaluation]:
        """Returns the evaluations of both models on a draw."""
        rate, words = _translation_rate(self.is_rare), random.random((n, 12)) < 0.8
        lost = random.random((n, 1)) < rate if self.is_rare else random.random((n, 12)) < rate
        return evaluation_of("BLEU", bleu_parts(words)), evaluation_of("BLEU", bleu_parts(words & ~lost))


def bleu_parts(matches: np.ndarray) -> np.ndarray:
    """Returns what sentences add to BLEU, from which words match [sentences, words]: lengths, n-grams that match, and all n-grams."""
    n, length = matches.shape
    windows = [np.lib.stride_tricks.sliding_window_view(matches, order, axis=1).all(-1).sum(1) for order in (1, 2, 3, 4)]
    return np.stack([*np.full((2, n), length), *windows, *(np.full(n, length - order) for order in range(4))], axis=1).astype(float)


@cache
def _translation_rate(is_rare: bool) -> float:
    """Returns the rate of harm that costs 2 points of BLEU."""
    total = find_metric_of_sums("BLEU")
    assert total is not None
    orders = np.arange(1, 5)

    def corpus(kept: float, word: float) -> float:
        return float(total(1e6 * np.array([12, 12, *(kept * (13 - orders) * word**orders), *(13 - orders)])))

    return _zero(lambda rate: corpus(1.0, 0.8) - (corpus(1 - rate, 0.8) if is_rare else corpus(1.0, 0.8 * (1 - rate))) - 2.0)


Pair = Classifier | Documents | Translations
CLASSIFIERS = [
    Classifier(metric, share, harmed, margin)
    for metric in ("F1", "Matthews correlation")
    for share in (0.08, 0.3)
    for harmed in (0, 1)
    for margin in ("1pt", "5pt")
]
NEARLY_EQUAL = [Classifier(metric, 0.3, 1, "2pt", churn=0.01) for metric in ("F1", "Matthews correlation")]
RARE = [Classifier("F1", 0.3, 1, "4pt"), Classifier("Matthews correlation", 0.08, 1, "8pt")]
"""About 20 answers change of 1,024: where the bootstrap errs most."""
RELATIVE = [Classifier("F1", 0.3, 1, "3%")]


def pair_experiments(pairs: Sequence[Pair], sizes: Sequence[int], draws: int) -> Iterator[Experiment]:
    """Yields how often the paired bootstrap certifies a metric that loses the margin."""

    def measure(pair: Pair, n: int) -> Rate:
        random, hits = make_generator(n), []
        for seed in range(draws):
            dense, small = pair.draw(random, n)
            total = find_metric_of_sums(dense.metric)
            assert total is not None
            hits.append(bound_of_metric(dense, small, total, Margin.parse(pair.margin), seed=seed).verdict == "certified")
        return Rate.of(hits)

    for pair in pairs:
        for n in sizes:
            yield Experiment("verdicts", "paired bootstrap", pair.describe(), n, draws, "≤ 0.07", partial(measure, pair, n))


def power_experiments(draws: int) -> Iterator[Experiment]:
    """Yields how often what is harmless is certified."""

    def tango() -> Rate:
        random, n = make_generator(1), 2000
        changed = random.binomial(n, 0.02, draws)
        lost = random.binomial(changed, 0.5)
        return Rate.of([PairedCounts(n, int(a), int(b - a)).p_value_of_at_most(-0.01) <= ALPHA for a, b in zip(lost, changed, strict=True)])

    def bootstrap() -> Rate:
        random, hits, total = make_generator(3), [], find_metric_of_sums("F1")
        assert total is not None
        for seed in range(draws // 4):
            true, change = (random.random(2000) < 0.3).astype(int), random.random(2000)
            dense = np.where(random.random(2000) < 0.9, true, 1 - true)
            small = np.where(change < 0.02, 1 - true, dense)
            dense = np.where((change >= 0.02) & (change < 0.04), 1 - true, dense)
            before, after = (evaluation_of("F1", np.eye(4)[2 * true + answers]) for answers in (dense, small))
            hits.append(bound_of_metric(before, after, total, Margin.parse("3pt"), seed=seed).verdict == "certified")
        return Rate.of(hits)

    def one_harmless_head() -> Rate:
        harm = np.full((1500, 144), 2.0, dtype=np.float32)
        harm[:, 0] = 0.0
        verdicts = judge_damage([Head("", 0, index) for index in range(144)], Damage(harm), tolerance=NATS)
        return Rate(float(bool(verdicts["L0H0"].safe)))

    def normal_damage() -> Rate:
        values = make_generator(2).normal(0.0, 0.05, (1500, draws))
        return Rate(float((p_value_of_mean_at_least(values, NATS.size, NATS.clip) <= ALPHA).mean()))

    yield Experiment("power", "Tango", "2 % of the answers change, no true difference, margin of 1 point", 2000, draws, "≥ 0.7", tango)
    yield Experiment(
        "power", "paired bootstrap", "F1, 4 % of the answers change, no true difference, 3 points", 2000, draws // 4, "≥ 0.7", bootstrap
    )
    yield Experiment(
        "power", "betting, corrected over heads", "one head of 144 does no harm, all others much", 1500, 0, "≥ 1.0", one_harmless_head
    )
    yield Experiment(
        "power", "betting, one head", "normal damage of mean 0 and deviation 0.05, 0.02 nats", 1500, draws, "≥ 0.7", normal_damage
    )


# Descriptive intervals

Draw = Callable[[np.random.Generator, int, int], np.ndarray]
"""(random, examples, repetitions) -> values [examples, repetitions] whose mean is 0."""


def _gamma(skewness: float) -> Draw:
    shape = 4 / skewness**2
    return lambda random, n, repeats: random.gamma(shape, 1.0, (n, repeats)) - shape


MEANS: dict[str, Draw] = {
    "normal": lambda random, n, repeats: random.normal(0, 1, (n, repeats)),
    "gamma, skewness 1": _gamma(1),
    "gamma, skewness 2": _gamma(2),
    "gamma, skewness 3": _gamma(3),
    "a tenth at 1, less their mean (skewness 2.7)": lambda random, n, repeats: (random.random((n, repeats)) < 0.1) - 0.1,
}


def _covers(values: np.ndarray, truth: float) -> bool | None:
    found = mean_interval(values)
    return None if found.low is None or found.high is None else bool(found.low <= truth <= found.high)


def mean_experiments(sizes: Sequence[int], draws: int) -> Iterator[Experiment]:
    """Yields how often the interval of a mean covers it, among the draws that show one."""

    def measure(draw: Draw, n: int) -> Rate:
        return Rate.of([_covers(column, 0.0) for column in draw(make_generator(n), n, draws).T])

    for name, draw in MEANS.items():
        for n in sizes:
            yield Experiment("intervals", "mean, Hall's t", name, n, draws, "≥ 0.93", partial(measure, draw, n))


SCORED = (
    ("entailment", "entailment", "ablation"),
    ("entailment", "entailment", "gradient"),
    ("encoder", "text", "gradient"),
    ("decoder", "stories", "confidence"),
)
"""Embedded model, task and method whose scores of single examples are resampled."""


@cache
def real_values(model: str, task: str, method: str, limit: int = 256) -> np.ndarray:
    """Returns the score of every head on every example of the report split of an embedded task, [examples, heads]."""
    import headcount as hc

    network = hc.load(f"demo/{model}")
    data = hc.open_task(f"demo/{task}", network, hc.load_tokenizer(f"demo/{model}"))
    scores = hc.score(network, data, method, split="report", limit=limit, normalise="none", progress=False)
    if scores.damage is not None:
        return np.asarray(scores.damage.losses, dtype=np.float64)
    assert scores.samples is not None
    return scores.samples.group_pseudovalues()


def real_experiments(sizes: Sequence[int], draws: int, scored: Sequence[tuple[str, str, str]] = SCORED) -> Iterator[Experiment]:
    """Yields how often the interval of a score covers the mean of all examples that it was resampled from: over all heads of so many samples."""

    def measure(source: tuple[str, str, str], n: int) -> Rate:
        values, random = real_values(*source), make_generator(n)
        truth = values.mean(0)
        drawn = (values[random.integers(0, len(values), n)] for _ in range(draws))
        return Rate.of([_covers(column, mean) for sample in drawn for column, mean in zip(sample.T, truth, strict=True)])

    for source in scored:
        for n in sizes:
            generator = "{2} of the heads of demo/{0} on {1}, 256 examples resampled".format(*source)
            yield Experiment("intervals", "score, Hall's t", generator, n, draws, "≥ 0.93", partial(measure, source, n))


def metric_experiments(sizes: Sequence[int], draws: int) -> Iterator[Experiment]:
    """Yields how often the intervals of metrics, and of differences of two models, cover the truth."""
    pair = Classifier("F1", 0.08, 1, "5pt", churn=0.01)
    cells, total = pair.cells(pair.harm_rate()), find_metric_of_sums("F1")
    assert total is not None
    truths = [float(total(cells.sum(axis).ravel())) for axis in (2, 1)]

    def of_difference(n: int) -> Rate:
        random, hits = make_generator(n), []
        for seed in range(draws):
            change = loss_and_metric_of_pruned_minus_dense(*pair.draw(random, n), total, seed=seed)["metric"]
            hits.append(None if change.low is None or change.high is None else change.low <= truths[1] - truths[0] <= change.high)
        return Rate.of(hits)

    def of_value(n: int) -> Rate:
        random, hits = make_generator(n), []
        for _ in range(draws):
            low, high = score_interval(pair.draw(random, n)[0], total)
            hits.append(None if low is None or high is None else low <= truths[0] <= high)
        return Rate.of(hits)

    def of_accuracies(n: int, discordance: float) -> Rate:
        random = make_generator(n)
        changed = random.binomial(n, discordance, 10 * draws)
        lost = random.binomial(changed, 0.5)
        counts = [PairedCounts(n, int(a), int(b - a)) for a, b in zip(lost, changed, strict=True)]
        return Rate.of([count.p_value_of_at_most(0.0) > ALPHA / 2 and count.p_value_of_at_least(0.0) > ALPHA / 2 for count in counts])

    for n in sizes:
        yield Experiment("intervals", "difference, paired bootstrap", pair.describe(), n, draws, "≥ 0.93", partial(of_difference, n))
        yield Experiment("intervals", "metric, bootstrap", "F1, 8 % of class 1", n, draws, "≥ 0.93", partial(of_value, n))
        for discordance in (0.01, 0.1):
            generator = f"two models of equal accuracy, {100 * discordance:g} % of the answers change"
            yield Experiment("intervals", "difference, Tango", generator, n, 10 * draws, "≥ 0.93", partial(of_accuracies, n, discordance))


def few_experiments(draws: int) -> Iterator[Experiment]:
    """Yields how often intervals over a few seeds, and over rounds of latency, cover the truth."""

    def of_seeds(n: int) -> Rate:
        values = make_generator(n).normal(0.8, 0.01, (draws, n))
        scores = [SeedScores.from_value_of_each_seed(row.tolist(), "accuracy") for row in values]
        return Rate.of([None if row.low is None or row.high is None else row.low <= 0.8 <= row.high for row in scores])

    def of_rounds(n: int) -> Rate:
        random = make_generator(n)
        drift = random.normal(0, 0.05, (draws, n, 1)).cumsum(1)
        stalls = (random.random((draws, n, 2)) < 0.05) * random.gamma(1.0, 0.3, (draws, n, 2))
        times = np.exp(drift + random.normal(0, 0.03, (draws, n, 2)) + stalls)
        found = [Speedup.from_seconds_of_rounds(rounds[:, 0], rounds[:, 1]) for rounds in times]
        return Rate.of([None if row.low is None or row.high is None else row.low <= 1 <= row.high for row in found])

    for n in (2, 3, 5):
        yield Experiment("intervals", "mean over seeds, t", "normal", n, draws, "≥ 0.93", partial(of_seeds, n))
    for n in (14, 15, 50):
        generator = "two equal models, times drift together, 5 % of the passes stall"
        yield Experiment("intervals", "speed-up, t over rounds", generator, n, draws, "≥ 0.93", partial(of_rounds, n))


def correlation_experiments(sizes: Sequence[int], draws: int, number: int = 32, repeats: int = 400) -> Iterator[Experiment]:
    """Yields how often the interval of a correlation covers the middle of those that other examples give."""
    scores = make_generator(0).normal(size=(2, number))
    scores[1] = 0.8 * scores[0] + 0.6 * scores[1]

    def measure(n: int, noise: float) -> Rate:
        random = make_generator(n)
        drawn = [[Samples.of(mean + noise * np.sqrt(n) * random.normal(size=(n, number))) for mean in scores] for _ in range(draws)]
        middle = float(np.median([spearman(a.means(), b.means()) for a, b in drawn]))
        found = [correlate(a, b, seed=seed, repeats=repeats) for seed, (a, b) in enumerate(drawn)]
        return Rate.of([each.low <= middle <= each.high for each in found])

    for noise in (0.1, 0.5, 1.0):
        for n in sizes:
            generator = f"{number} heads, standard errors of {noise:g} deviations of the scores"
            yield Experiment("intervals", "correlation, bootstrap", generator, n, draws, "≥ 0.93", partial(measure, n, noise))


# Sets of ranks

RANKED: dict[str, Callable[[np.random.Generator, int, np.ndarray], np.ndarray]] = {
    "normal": lambda random, n, means: means + random.normal(size=(n, len(means))),
    "gamma, skewness 2": lambda random, n, means: means + 0.3 * (random.gamma(1.0, 1.0, (n, len(means))) - 1),
    "gamma, spreads from 0.1 to 3, shared noise": lambda random, n, means: (
        means + (random.gamma(1.0, 1.0, (n, len(means))) - 1) * np.linspace(0.1, 3, len(means)) + random.normal(size=(n, 1))
    ),
    "rare harm of 2 nats": lambda random, n, means: (random.random((n, len(means))) < means / 2) * 2.0,
}
"""Values of heads with these means, [examples, heads]."""


def rank_experiments(sizes: Sequence[int], draws: int, number: int = 16) -> Iterator[Experiment]:
    """Yields how often the sets of ranks of all heads hold together."""

    def measure(draw: Callable[..., np.ndarray], n: int, spacing: float) -> Rate:
        means = spacing * np.arange(number)
        truth, random, hits = ranks(means), make_generator(n), []
        for seed in range(draws):
            found = rank_confidence_sets(draw(random, n, means), seed=seed, repeats=200)
            hits.append(found is not None and bool(((found.low <= truth) & (truth <= found.high)).all()))
        return Rate.of(hits)

    for spacing in (0.005, 0.05):
        for name, draw in RANKED.items():
            for n in sizes:
                generator = f"{number} heads, {name}, means {spacing:g} apart"
                yield Experiment("joint", "ranks, max-t over all pairs", generator, n, draws, "≥ 0.93", partial(measure, draw, n, spacing))


def curve_experiments(sizes: Sequence[int], draws: int) -> Iterator[Experiment]:
    """Yields how often the intervals of the differences from the dense model hold at all sizes of a method together."""
    shares = np.linspace(0.01, 0.17, 9)  # of the answers that turn wrong, by size; half as many turn right

    def of_accuracy(n: int) -> Rate:
        random, half = make_generator(n), (1 - single_interval_level(len(shares))) / 2
        hits = []
        for change in random.random((draws, n)):  # the same examples at every size
            counts = [PairedCounts(n, int((change < share).sum()), int((change > 1 - share / 2).sum())) for share in shares]
            hits.append(
                all(min(c.p_value_of_at_most(-s / 2), c.p_value_of_at_least(-s / 2)) > half for c, s in zip(counts, shares, strict=True))
            )
        return Rate.of(hits)

    def of_losses(n: int) -> Rate:
        random, hits = make_generator(n), []
        for _ in range(draws):
            rise = (random.gamma(1.0, 1.0, (n, 1)) + random.normal(0, 0.5, (n, len(shares)))) * shares
            found = [mean_interval(column, level=single_interval_level(len(shares))) for column in rise.T]
            ends = [(each.low, each.high) for each in found]
            hits.append(all(low is None or high is None or low <= share <= high for (low, high), share in zip(ends, shares, strict=True)))
        return Rate.of(hits)

    for n in sizes:
        yield Experiment(
            "joint", "curve, Tango", "9 sizes, accuracy, from 0.5 to 8.5 points worse", n, draws, "≥ 0.93", partial(of_accuracy, n)
        )
        yield Experiment("joint", "curve, Hall's t", "9 sizes, losses of skewness 2 and less", n, draws, "≥ 0.93", partial(of_losses, n))


def interval_experiments(draws: int) -> list[Experiment]:
    """Returns the experiments on verdicts, intervals and joint statements."""
    return [
        *betting_experiments(SIZES, draws),
        *head_experiments((512, 1024), draws // 20),
        *certificate_experiments(SIZES, draws // 10),
        *tango_experiments(SIZES),
        *pair_experiments([*CLASSIFIERS, *NEARLY_EQUAL, *RELATIVE], SIZES[1:], draws // 4),
        *pair_experiments(RARE, (1024,), 2 * draws),
        *pair_experiments(CLASSIFIERS[:1], SIZES[:1], 50),
        *pair_experiments([Documents(), Documents(is_whole=False)], SIZES, draws // 4),
        *pair_experiments([Translations(), Translations(is_rare=False)], (256, 1024), draws // 10),
        *power_experiments(draws),
        *mean_experiments(INTERVAL_SIZES, draws),
        *real_experiments(INTERVAL_SIZES, draws // 4),
        *metric_experiments(INTERVAL_SIZES, draws // 4),
        *few_experiments(draws),
        *correlation_experiments((64, 256), draws // 2),
        *rank_experiments(INTERVAL_SIZES, draws // 4),
        *curve_experiments(INTERVAL_SIZES, draws // 4),
    ]
