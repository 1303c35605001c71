"""How often verdicts and intervals err, by simulation: `make coverage` writes the rows and the tables of docs/statistics.md.

Every generator of verdicts is scaled so that its mean, clipped as the procedure clips it, lies at the margin: a correct procedure then certifies in
at most 5 % of the draws. Power is measured at no difference, so that a procedure that refuses everything fails.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from scipy import special

from headcount.core.damage import Damage, judge_damage
from headcount.core.heads import Head
from headcount.core.stats.betting import betting_bound, betting_p
from headcount.core.stats.means import mean_interval
from headcount.core.stats.metric_parts import f1, matthews, worsen_parts
from headcount.core.stats.quality_loss import BootstrapLoss
from headcount.core.stats.ranks import rank_sets, ranks
from headcount.core.stats.samples import make_generator
from headcount.core.stats.tango import PairedCounts

ROOT = Path(__file__).resolve().parents[1]
ROWS, PAGE = ROOT / "benchmarks" / "coverage.json", ROOT / "docs" / "statistics.md"
START, END = "<!-- coverage: written by make coverage -->", "<!-- end of coverage -->"
SIZES = (64, 256, 1024, 4096)
TOLERANCE, CLIP = 0.02, 2.0
ALPHA = 0.05

Draw = Callable[[np.random.Generator, int, int], np.ndarray]
"""(random, examples, repetitions) -> values [examples, repetitions]."""


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

    @property
    def holds(self) -> bool:
        """Whether the rate keeps its limit, within three standard errors of the simulation."""
        bound = float(self.limit.split()[1])
        slack = 3 * (bound * (1 - bound) / self.draws) ** 0.5 if self.draws else 0.0
        return self.rate <= bound + slack if self.limit.startswith("≤") else self.rate >= bound - slack


# Damage per example, in nats, with a clipped mean of 0.02


def few_with_much(random: np.random.Generator, n: int, repeats: int) -> np.ndarray:
    """1 % of the examples lose 2 nats, the others nothing."""
    return (random.random((n, repeats)) < TOLERANCE / 2) * 2.0


def few_beyond_the_clip(random: np.random.Generator, n: int, repeats: int) -> np.ndarray:
    """1 % of the examples lose 8 nats, which count as 2."""
    return (random.random((n, repeats)) < TOLERANCE / CLIP) * 8.0


def many_with_little(random: np.random.Generator, n: int, repeats: int) -> np.ndarray:
    """Every example changes a little: normal, mean 0.02, deviation 0.05."""
    return random.normal(TOLERANCE, 0.05, (n, repeats))


def nearly_equal(random: np.random.Generator, n: int, repeats: int) -> np.ndarray:
    """5 % of the examples lose 0.4 nats, the others nothing."""
    return (random.random((n, repeats)) < 0.05) * 0.4


def help_and_harm(random: np.random.Generator, n: int, repeats: int) -> np.ndarray:
    """Most examples gain 0.02 nats, 4 % lose 0.98."""
    return np.where(random.random((n, repeats)) < 0.04, 0.98, -0.02)


def clusters(random: np.random.Generator, n: int, repeats: int) -> np.ndarray:
    """Documents of 8 examples that share their damage, bet on as means: one value per document."""
    shared = (random.random((n // 8, repeats)) < 0.05) * 0.4
    return shared + random.normal(0, 0.02, shared.shape)


DAMAGES: tuple[Draw, ...] = (few_with_much, few_beyond_the_clip, many_with_little, nearly_equal, help_and_harm, clusters)


def betting_rows(sizes: Sequence[int], draws: int) -> Iterator[Row]:
    """Yields how often betting calls a head or a model safe whose damage is the tolerance."""
    for damage in DAMAGES:
        for n in sizes:
            values = damage(make_generator(n), n, draws)
            rate = float((betting_p(values, TOLERANCE, CLIP) <= ALPHA).mean())
            yield Row("verdicts", "betting", describe(damage), n, draws, rate, "≤ 0.05")


def draw_heads(n: int, number: int, random: np.random.Generator) -> np.ndarray:
    """A quarter of the heads do nothing, the others lose 2 nats on 1 % of the examples: their mean is the tolerance."""
    harm = (random.random((n, number)) < TOLERANCE / CLIP) * CLIP
    harm[:, : number // 4] = 0.0
    return harm


def head_rows(sizes: Sequence[int], draws: int, number: int = 32) -> Iterator[Row]:
    """Yields the share of false verdicts among the heads of a model that are called safe, and how often a harmless head among them is found."""
    heads = [Head("", 0, index) for index in range(number)]
    generator = f"{number} heads, a quarter of them harmless, the others at the tolerance by rare harm"
    for n in sizes:
        random = make_generator(n)
        wrong, found = [], []
        for _ in range(draws):
            verdicts = judge_damage(heads, Damage(draw_heads(n, number, random)), tolerance=TOLERANCE)
            safe = np.array([bool(row.safe) for row in verdicts.rows])
            wrong.append(safe[number // 4 :].sum() / max(1, safe.sum()))
            found.append(safe[: number // 4].mean())
        yield Row("verdicts", "betting, corrected over heads", generator, n, draws, float(np.mean(wrong)), "≤ 0.05")
        if n >= 1024:
            yield Row("power", "betting, corrected over heads", generator, n, draws, float(np.mean(found)), "≥ 0.7")


def tango_error(n: int, margin: float, discordance: float) -> float:
    """Returns the exact probability that Tango certifies a loss of exactly the margin, if that share of the examples is discordant."""
    lost = (discordance + margin) / 2
    total, spread = n * discordance, 8 * (n * discordance) ** 0.5 + 8
    probability = 0.0
    for number in range(max(0, int(total - spread)), min(n, int(total + spread)) + 1):
        weight = _binomial(number, n, discordance)
        if weight < 1e-12:
            continue
        share = lost / discordance
        fewest = next((b for b in range(number + 1) if PairedCounts(n, b, number - b).p_above(-margin) > ALPHA), number + 1)
        probability += weight * float(special.bdtr(fewest - 1, number, share) if fewest else 0.0)
    return probability


def _binomial(k: int, n: int, p: float) -> float:
    return float(
        np.exp(special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1) + k * np.log(p) + (n - k) * np.log1p(-p))
    )


def tango_rows(sizes: Sequence[int], discordances: Sequence[float] = (0.0125, 0.02, 0.05, 0.1, 0.3)) -> Iterator[Row]:
    """Yields the exact rate at which Tango certifies an accuracy that is worse by one point."""
    for n in sizes:
        for discordance in discordances:
            rate = tango_error(n, 0.01, discordance)
            yield Row("verdicts", "Tango", f"{100 * discordance:g} % of the answers change, exact", n, 0, rate, "≤ 0.07")


def confusions(true: np.ndarray, guess: np.ndarray) -> np.ndarray:
    """Returns one-hot [true, predicted], flattened, of two classes."""
    return np.eye(4)[2 * true + guess]


@dataclass(frozen=True, slots=True)
class Classifier:
    """A classifier that is right in 90 %, and a smaller one that gets right answers of one class wrong at such a rate that it loses the margin."""

    metric: str
    share: float
    """The share of class 1."""
    harmed: int
    """The class whose right answers turn wrong."""
    margin: float

    def describe(self) -> str:
        """Returns the generator in words."""
        return f"{self.metric}, {100 * self.share:g} % of class 1, class {self.harmed} turns wrong, {100 * self.margin:g} points"

    def harm_rate(self) -> float:
        """Returns the share of right answers of that class that turn wrong."""
        total = f1 if self.metric == "F1" else matthews
        right = np.array([(1 - self.share) * 0.9, (1 - self.share) * 0.1, self.share * 0.1, self.share * 0.9])

        def lost(rate: float) -> float:
            moved = right.copy()
            cell, wrong = (0, 1) if self.harmed == 0 else (3, 2)
            moved[cell] -= rate * right[cell]
            moved[wrong] += rate * right[cell]
            return float(total(right) - total(moved))

        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if lost(middle) < self.margin else (low, middle)
        return high

    def certifies(self, random: np.random.Generator, n: int, seed: int) -> bool:
        """Returns whether a smaller model that loses just the margin is certified on a draw."""
        true = (random.random(n) < self.share).astype(int)
        dense = np.where(random.random(n) < 0.9, true, 1 - true)
        harmed = (dense == true) & (true == self.harmed) & (random.random(n) < self.harm_rate())
        parts = [confusions(true, guess) for guess in (dense, np.where(harmed, 1 - dense, dense))]
        total = f1 if self.metric == "F1" else matthews
        loss = BootstrapLoss(parts[0], parts[1], total, worsen=lambda rows: np.asarray(worsen_parts(self.metric, rows)), seed=seed)
        return loss.p_value_of_at_least(self.margin) <= ALPHA


CLASSIFIERS = [
    Classifier(metric, share, harmed, margin)
    for metric in ("F1", "Matthews correlation")
    for share in (0.08, 0.3, 0.5)
    for harmed in (0, 1)
    for margin in (0.01, 0.05)
]


def bootstrap_rows(sizes: Sequence[int], draws: int, classifiers: Sequence[Classifier] = CLASSIFIERS) -> Iterator[Row]:
    """Yields how often the paired bootstrap certifies a metric that loses the margin, where it gives a verdict at all."""
    for classifier in classifiers:
        for n in sizes:
            if n < 256 or n * classifier.share < 25:
                continue
            random = make_generator(n)
            rate = sum(classifier.certifies(random, n, seed) for seed in range(draws)) / draws
            yield Row("verdicts", "paired bootstrap", classifier.describe(), n, draws, rate, "≤ 0.07")


def power_rows(draws: int) -> Iterator[Row]:
    """Yields how often what is harmless is certified."""
    random, n = make_generator(1), 2000
    changed = random.binomial(n, 0.02, draws)
    lost = random.binomial(changed, 0.5)
    rate = float(np.mean([PairedCounts(n, int(a), int(b - a)).p_above(-0.01) <= ALPHA for a, b in zip(lost, changed, strict=True)]))
    yield Row("power", "Tango", "2 % of the answers change, no true difference, margin of 1 point", n, draws, rate, "≥ 0.7")
    bound = float(betting_bound(np.zeros((1500, 1)), CLIP)[0])
    yield Row("power", "betting", "no damage at all, tolerance of 0.02 nats", 1500, 0, float(bound < TOLERANCE), "≥ 1.0")
    values = make_generator(2).normal(0.0, 0.05, (1500, draws))
    rate = float((betting_p(values, TOLERANCE, CLIP) <= ALPHA).mean())
    yield Row("power", "betting", "normal damage of mean 0 and deviation 0.05, tolerance of 0.02 nats", 1500, draws, rate, "≥ 0.7")


# Values around a known mean, for descriptive intervals


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


def interval_rows(sizes: Sequence[int], draws: int) -> Iterator[Row]:
    """Yields how often the interval of a mean covers it, among the draws that show one."""
    for name, draw in MEANS.items():
        for n in sizes:
            columns = draw(make_generator(n), n, draws).T
            intervals = [(interval.low, interval.high) for interval in map(mean_interval, columns)]
            shown = [(low, high) for low, high in intervals if low is not None and high is not None]
            if len(shown) >= draws / 20:
                rate = sum(low <= 0 <= high for low, high in shown) / len(shown)
                yield Row("intervals", "t with Hall's transform", name, n, len(shown), rate, "≥ 0.93")


RANKED: dict[str, Callable[[np.random.Generator, int, np.ndarray], np.ndarray]] = {
    "normal": lambda random, n, means: means + random.normal(size=(n, len(means))),
    "gamma, skewness 2": lambda random, n, means: means + 0.3 * (random.gamma(1.0, 1.0, (n, len(means))) - 1),
    "gamma, spreads from 0.1 to 3, shared noise": lambda random, n, means: (
        means + (random.gamma(1.0, 1.0, (n, len(means))) - 1) * np.linspace(0.1, 3, len(means)) + random.normal(size=(n, 1))
    ),
    "rare harm of 2 nats": lambda random, n, means: (random.random((n, len(means))) < means / 2) * 2.0,
}
"""Values of heads with these means, [examples, heads]."""


def rank_rows(sizes: Sequence[int], draws: int, number: int = 16) -> Iterator[Row]:
    """Yields how often the sets of ranks of all heads hold together."""
    for spacing in (0.005, 0.05):
        means = spacing * np.arange(number)
        truth = ranks(means)
        for name, draw in RANKED.items():
            for n in sizes:
                random, hits = make_generator(n), []
                for seed in range(draws):
                    found = rank_sets(draw(random, n, means), seed=seed, repeats=200)
                    hits.append(found is not None and bool(((found.low <= truth) & (truth <= found.high)).all()))
                generator = f"{number} heads, {name}, means {spacing:g} apart"
                yield Row("ranks", "max-t over all pairs", generator, n, draws, float(np.mean(hits)), "≥ 0.93")


def describe(function: Callable[..., object]) -> str:
    """Returns the first sentence of a generator's docstring."""
    return (function.__doc__ or "").split("\n")[0].rstrip(".")


def measure(draws: int) -> Iterator[Row]:
    """Yields all rows."""
    yield from betting_rows(SIZES, draws)
    yield from head_rows(SIZES, max(1, draws // 20))
    yield from tango_rows(SIZES)
    yield from bootstrap_rows(SIZES, draws)
    yield from power_rows(draws)
    yield from interval_rows((64, 256, 1024), draws)
    yield from rank_rows((64, 256, 1024), max(1, draws // 4))


TITLES = {
    "verdicts": "Verdicts at the margin: how often a model or head that loses just the margin is certified",
    "power": "Power: how often what does no harm is certified",
    "intervals": "Intervals of means: how often they cover the mean, where they are shown",
    "ranks": "Sets of ranks: how often those of all heads hold together",
}


def write_page(rows: Sequence[Row]) -> None:
    """Writes the tables into the page between their marks."""
    lines: list[str] = []
    for table, title in TITLES.items():
        lines += [f"**{title}**", "", "| procedure | generator | n | draws | rate | limit |", "|---|---|---:|---:|---:|---|"]
        for row in rows:
            if row.table == table:
                mark = "" if row.holds else " **not kept**"
                lines.append(
                    f"| {row.procedure} | {row.generator} | {row.n:,} | {row.draws or 'exact'} | {row.rate:.3f} | {row.limit}{mark} |"
                )
        lines.append("")
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(START)
    _, _, after = rest.partition(END)
    PAGE.write_text(f"{before}{START}\n\n" + "\n".join(lines) + f"\n{END}{after}", encoding="utf-8")


def main() -> int:
    """Measures everything, writes rows and page; returns 1 where a limit is not kept."""
    rows = []
    for row in measure(draws=int(sys.argv[1]) if len(sys.argv) > 1 else 2000):
        rows.append(row)
        print(f"{row.procedure}, {row.generator}, n = {row.n}: {row.rate:.3f} ({row.limit}){'' if row.holds else '  NOT KEPT'}", flush=True)
    ROWS.write_text(json.dumps([asdict(row) for row in rows], indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    write_page(rows)
    return int(not all(row.holds for row in rows))


if __name__ == "__main__":
    raise SystemExit(main())
