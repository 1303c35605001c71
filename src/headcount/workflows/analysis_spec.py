"""The request of an analysis, with its defaults in this one place. No torch here."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from headcount.core.budget import Budget
from headcount.core.errors import OptionError
from headcount.core.margin import Margin
from headcount.core.options import convert_to_declared_types, option, options_of
from headcount.pruning.recipe import Recipe
from headcount.runs.latency import BATCHES, MIN_ROUNDS

DEFAULT_SHARES = (0.125, 0.25, 0.5)
"""The shares of heads whose nearest whole KV groups are pruned to, where no sizes are named."""
DEFAULT_RECIPE = Recipe()


@dataclass(frozen=True, slots=True)
class BenchSizes:
    """The batch sizes and lengths that latency is measured for, and the rounds of each.

    Raises:
        OptionError: there is no batch size or length, or a number is no whole number from 1 on.
    """

    batches: tuple[int, ...] = option(help="Rows of a pass.", minimum=1)
    lengths: tuple[int, ...] = option(help="Tokens of a row.", minimum=1)
    rounds: int = option(MIN_ROUNDS, "Rounds of measurement.", minimum=1)

    def __post_init__(self) -> None:
        convert_to_declared_types(self, options_of(BenchSizes), "a measurement of latency")
        for name, numbers in (("batches", self.batches), ("lengths", self.lengths)):
            if not numbers:
                raise OptionError(f"{name} must be whole numbers from 1 on; got none")


COMPARED_SIZES = BenchSizes(BATCHES, (128,))
"""What a comparison measures latency for, unless other sizes are named."""


@dataclass(frozen=True)
class ComparisonSpec:
    """How much a comparison does, unless its caller says otherwise: pruners, sizes and seeds."""

    methods: tuple[str, ...] = option(
        ("surgeon", "gradient", "random"),
        "Pruners or importances, with options in brackets: dsp(tau=2), or a grid of them: dsp(tau=1|10). Random is always there.",
    )
    keep: tuple[int | float | str, ...] = option(("12.5%", "25%", "50%", "75%"), "How many heads stay: numbers, or shares such as 10%.")
    seeds: int = option(3, "Seeds of methods with chance in them.", minimum=1)


@dataclass(frozen=True)
class AnalysisSpec:
    """How much an analysis does: importances, pruners, sizes, seeds and examples.

    Raises:
        OptionError: a value has the wrong type or is out of range.
        PlanError: `keep` holds something that is neither a number nor a share of heads.
    """

    by: tuple[str, ...] = option(
        ("gradient", "ablation", "output-norm", "confidence", "random"), "Importances of `headcount ls importance`."
    )
    methods: tuple[str, ...] = option(
        ("surgeon", "gradient", "l0", "dsp", "random"), "Pruners or importances to prune by. Random is always there."
    )
    keep: tuple[int | float | str, ...] | None = option(
        None, "How many heads stay: numbers, or shares; by default whole KV groups near 12.5%,25%,50%."
    )
    seeds: int = option(2, "Seeds of methods with chance in them.", minimum=1)
    training_seeds: int | None = option(None, "Seeds of methods that train; by default as many as of the others.", minimum=1)
    score_limit: int = option(256, "Calibration examples that scores are taken on.", minimum=2)
    verdict_limit: int | None = option(
        None,
        "Report examples that the verdicts on single heads are taken on; by default as many as a head that changes none of them needs to be safe.",
        minimum=2,
    )
    comparison_limit: int | None = option(None, "Examples that models are compared on; by default the whole report split.", minimum=2)
    margin: str | None = option(
        None, "How much worse the kept model may be: 1% of the dense model's metric, or 0.5pt (points); without it, bounds alone."
    )
    profile_limit: int = option(256, "Sentences that head profiles are taken on.", minimum=1)
    max_map_length: int = option(32, "Tokens of the longest sentence whose attention is shown; 512 can be looked at.", minimum=2)
    recipe: Recipe = option(DEFAULT_RECIPE, "How methods that train do so.")
    bench_sizes: BenchSizes = option(BenchSizes(BATCHES, (64,)), "What the latency of the kept model is measured for.")
    seed: int = option(0, "The seed of everything drawn at random.", minimum=0)

    def __post_init__(self) -> None:
        for name in ("by", "methods"):
            value = getattr(self, name)
            if isinstance(value, str) or not value:
                raise OptionError(f"{name} must be a list of names, such as {getattr(AnalysisSpec, name)[:2]}; got {value!r}")
        object.__setattr__(self, "margin", None if self.margin is None else str(Margin.parse(self.margin)))
        convert_to_declared_types(self, options_of(AnalysisSpec), "an analysis")
        for keep in self.keep or ():
            Budget(keep=keep)

    def cap_examples(self, limit: int | None) -> AnalysisSpec:
        """Returns the request with at most `limit` examples for scores, verdicts and comparisons."""
        if limit is None:
            return self
        return replace(
            self,
            score_limit=min(self.score_limit, limit),
            verdict_limit=min(self.verdict_limit or limit, limit),
            comparison_limit=min(self.comparison_limit or limit, limit),
        )

    @property
    def quality_margin(self) -> Margin | None:
        """The margin of the kept model; None for bounds without a verdict."""
        return None if self.margin is None else Margin.parse(self.margin)

    def to_dict(self) -> dict[str, Any]:
        """Returns the request as plain data, defaults included."""
        values: dict[str, Any] = {field.name: getattr(self, field.name) for field in fields(self)}
        lists = {name: None if values[name] is None else list(values[name]) for name in ("by", "methods", "keep")}
        return values | lists | {"recipe": self.recipe.to_dict(), "bench_sizes": asdict(self.bench_sizes)}
