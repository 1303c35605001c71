from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import KW_ONLY, asdict, astuple, dataclass
from typing import TYPE_CHECKING

from headcount.core.errors import OptionError
from headcount.core.figure import Axis, HeatMap
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.studies import _measure
from headcount.studies._base import SIGNIFICANT, Effort, Study, StudyContext, StudyInfo, parse_name_value_pairs

if TYPE_CHECKING:
    from headcount.studies._measure.language_groups import FamilyContrast, SizeTrend
    from headcount.studies._measure.languages import LanguageGap, LanguageLosses, LossRow, ModelGap


@dataclass(frozen=True)
class Languages(Study):
    """Do languages need the same layers, and does a multilingual model suffer more from pruning than a monolingual one?

    Budhraja et al. 2021 on multilingual BERT: fine-tune on one language, prune, evaluate on each. Heads are chosen on the first language alone;
    blocks of layers are gated away. Drops are paired with the dense model on the same examples; against a monolingual model the relative drops are
    compared on the examples that both read. With `fine_tune` the models are trained on the first language before (zero-shot transfer to the others).
    With `recover` they are pruned first and then trained, the dense model too. A file of groups adds contrasts between language families and the
    rank correlation with the size of the pre-training corpus.
    """

    _: KW_ONLY
    tasks: tuple[str, ...] = option((), "The same task in each language, one or more; heads are chosen (and trained) on the first")
    languages: tuple[str, ...] = option((), "Instead of tasks: a file of the task in each language, as NAME=FILE, such as en=en.tsv")
    groups: str = option("", "A csv file with the columns language, family and size, for contrasts between groups of languages")
    against: str | None = option(None, "A monolingual model, for the tasks that it can read")
    shared: tuple[str, ...] = option((), "The tasks that the other model reads; by default the first")
    method: str = option("gradient", "A pruner with its options, or an importance to rank by")
    keep: tuple[int | float | str, ...] = option((), "How many heads stay: numbers or shares; by default 75%, 50%, 25%")
    seeds: int = option(
        1, "Draws of the heads and, with recover, trainings, of the models that lose single heads; these are averaged", minimum=1
    )
    recover: float | str | None = option(
        None, "How long pruned models are fine-tuned on the first task, before all languages are read: epochs, steps (300steps), or auto"
    )
    repair: bool | None = option(False, "Refit output projections in closed form; none does so unless training follows")
    fine_tune: float = option(0.0, "Epochs of training of both models on the first task before; 0 for none", minimum=0)
    tune_option: tuple[str, ...] = option((), "Options of the task for the training alone, each NAME=VALUE, such as size=20000")
    labels: tuple[str, ...] = option((), "The classes of a new head, for a model that has none for the task")
    rate: float = option(5e-5, "The learning rate of trainings", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    info = StudyInfo(paper="Budhraja et al. 2021", needs=frozenset({"model", "run"}), optional=frozenset({"task"}))

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tasks", tuple(dict.fromkeys(self.tasks)))
        if bool(self.tasks) == bool(self.languages):
            raise OptionError("name the task in one language or more: either tasks, or languages as NAME=FILE")
        names = self.names  # raises for a language that is not NAME=FILE
        if self.shared and self.against is None:
            raise OptionError("shared names the tasks of the other model, so it goes with against; name that model or leave shared out")
        if self.shared and (self.shared[0] != names[0] or not set(self.shared) <= set(names)):
            raise OptionError(f"shared must name some of tasks, the first of them included; got {', '.join(self.shared)}")

    @property
    def files(self) -> dict[str, str]:
        """The files of the languages by name; empty where tasks are named."""
        return parse_name_value_pairs(self.languages, "a language")

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the languages: those of their tasks, or those that stand before their files."""
        return self.tasks or tuple(self.files)

    def effort(self, context: StudyContext) -> Effort:
        """Returns the evaluations in every language, and the choice and training of all models."""
        return _measure.languages.estimate_effort(self, context)

    def check_inputs(self, context: StudyContext) -> None:
        """Raises an error where a file or task of a language cannot be read, or the other model has other kinds of attention."""
        _measure.languages.check_languages(self, context)

    @property
    def trains_new_head(self) -> bool:
        """Whether models are fine-tuned after pruning, the dense one too."""
        return self.recover is not None

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns what every model loses in every language without layers or heads, compared between languages and between models."""
        losses = _measure.languages.measure_languages(self, context)
        tables = [_loss_table(losses)]
        if losses.between:
            tables.append(_language_gap_table(losses.between, f"Rise of the loss beyond that in {self.names[0]}, {losses.models[0]}"))
        if losses.gaps:
            title = f"Share above chance that {losses.models[0]} loses minus that of {losses.models[1]}, on the same examples"
            tables.append(_model_gap_table(losses.gaps, title))
        if losses.contrasts:
            tables.append(_contrast_table(losses.contrasts))
        if losses.trends:
            tables.append(_trend_table(losses.trends))
        return StudyResult(
            study=str(self),
            tables=tuple(tables),
            sentence=_summary_sentence(losses),
            notes=tuple(_notes(losses)),
            figures=(_figure(losses),),
            measurements={
                **losses.request,
                "rows": [row.to_dict() for row in losses.rows],
                "between languages": [asdict(row) for row in losses.between],
                "against": [asdict(row) for row in losses.gaps],
                "families": [asdict(row) for row in losses.contrasts],
                "sizes": [asdict(row) for row in losses.trends],
            },
        )


def _loss_table(losses: LanguageLosses) -> Table:
    row_of = {(row.model, row.language, row.without): row for row in losses.rows}
    headings = [Column("without")]
    for model, language in losses.columns:
        headings += interval_columns(f"{model}: {language}", ".1%")
    cells = []
    for without in dict.fromkeys(row.without for row in losses.rows):
        shares: list[float | None] = []
        for model, language in losses.columns:
            row = row_of.get((model, language, without))
            shares += (None, None, None) if row is None else row.share.interval_lost
        cells.append((without, *shares))
    return Table("lost", tuple(headings), tuple(cells), "Share of its own score above chance that each model loses in each language")


def _figure(losses: LanguageLosses) -> HeatMap:
    row_of = {(row.model, row.language, row.without): row for row in losses.rows}
    removals = tuple(dict.fromkeys(row.without for row in losses.rows))
    cells = [[row_of.get((model, language, without)) for model, language in losses.columns] for without in removals]
    sizes = {row.n_examples for row in losses.rows}
    names, note = _shorten_removals(removals)
    return HeatMap(
        name="lost",
        title="Share of its own score above chance that each model loses in each language",
        x=Axis("language"),
        y=Axis("without"),
        table="lost",
        n=min(sizes) if len(sizes) == 1 else None,
        n_unit="examples in each language",
        note=note,
        rows=names,
        columns=tuple(language if len(losses.models) == 1 else f"{model}: {language}" for model, language in losses.columns),
        values=tuple(tuple(None if row is None else row.share.interval_lost[0] for row in cells_of_row) for cells_of_row in cells),
        value=Axis("share of the score above chance that is lost", is_share=True),
        marks=tuple(tuple(row is not None and row.q <= SIGNIFICANT for row in cells_of_row) for cells_of_row in cells),
        mark_label=f"a change of the score with q ≤ {SIGNIFICANT}",
        missing_label="not defined: the dense model is not surely above chance",
    )


def _shorten_removals(removals: Sequence[str]) -> tuple[tuple[str, ...], str]:
    """Returns the names of what is removed, and a note with the method of those that remove single heads, where all have one."""
    methods = {text.partition(" heads by ")[2] for text in removals} - {""}
    if len(methods) != 1:
        return tuple(removals), ""
    method = methods.pop()
    return tuple(text.removesuffix(f" by {method}") for text in removals), f"Single heads by {method}."


def _notes(losses: LanguageLosses) -> Iterator[str]:
    row_of = {(row.model, row.language): row for row in losses.rows}
    for model, language in losses.columns:
        row = row_of[model, language]
        chance = "unknown" if row.share.chance is None else f"{row.share.chance:.4g}"
        yield f"{model}, {language}: score of the dense model {row.dense:.4g}, of the best constant answer {chance}."
        if row.share.reason:
            yield f"{model}, {language}: no share is defined: {row.share.reason}."


def _language_gap_table(rows: Sequence[LanguageGap], title: str) -> Table:
    columns = (Column("language"), Column("without"), *interval_columns("difference", "+.3g"), Column("q", format=".2g"))
    cells = tuple((row.language, row.without, row.difference, row.low, row.high, row.q) for row in rows)
    return Table("between languages", columns, cells, title)


def _model_gap_table(rows: Sequence[ModelGap], title: str) -> Table:
    columns = (
        Column("language"),
        Column("without"),
        Column("one", format=".1%"),
        Column("other", format=".1%"),
        *interval_columns("difference", "+.1%"),
        Column("q", format=".2g"),
    )
    cells = tuple((row.language, row.without, row.lost, row.lost_by_other, row.difference, row.low, row.high, row.q) for row in rows)
    return Table("against", columns, cells, title)


def _contrast_table(rows: Sequence[FamilyContrast]) -> Table:
    columns = (
        Column("without"),
        Column("family"),
        Column("languages"),
        Column("other languages"),
        Column("lost", format=".1%"),
        Column("lost by others", format=".1%"),
        *interval_columns("difference", "+.1%"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    title = "Share above chance that the languages of a family lose, against all others; Welch's t over languages"
    return Table("families", columns, tuple(astuple(row) for row in rows), title)


def _trend_table(rows: Sequence[SizeTrend]) -> Table:
    columns = (
        Column("without"),
        Column("languages"),
        *interval_columns("rank correlation", "+.2f"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    title = (
        "Rank correlation over languages of the share lost with the size of the corpus; interval by resampling examples, p by permutation"
    )
    return Table("sizes", columns, tuple(astuple(row) for row in rows), title)


def _summary_sentence(losses: LanguageLosses) -> str:
    def count(tests: Sequence[LossRow] | Sequence[LanguageGap] | Sequence[ModelGap]) -> str:
        return f"{sum(row.q <= SIGNIFICANT for row in tests)} of {len(tests)}"

    text = f"{count(losses.rows)} removals change the score significantly (q ≤ {SIGNIFICANT})"
    text += f", {count(losses.between)} differ between languages" if losses.between else ""
    return f"{text}, and {count(losses.gaps)} differ between the models." if losses.gaps else f"{text}."
