"""What models lose in several languages: the tables, the figures and the sentence of each question. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple
from math import log10
from pathlib import PurePath
from typing import TYPE_CHECKING, NamedTuple

from headcount.core.figure import Axis, BarFigure, Bars, HeatMap, Points, ScatterFigure
from headcount.core.study_result import Cell, Column, Table, format_interval, interval_columns
from headcount.studies._base import SIGNIFICANT
from headcount.studies._parts import Part
from headcount.studies._rows import describe_undecided, is_significant

if TYPE_CHECKING:
    from headcount.studies._measure.language_groups import FamilyContrast, SizeTrend
    from headcount.studies._measure.languages import LanguageGap, LanguageLosses, LossRow, ModelGap, TaskDrop

SINGLE_HEADS = "heads"
"""The kind of a removal of single heads, rather than of whole layers."""
LANGUAGES = "languages"
"""The name of the table with a row for every language and model."""
LOST = "share of the score above chance that is lost"


class RemovalNames(NamedTuple):
    """The names of what is removed, and the note of the figure with the method that all of them share; empty if they share none."""

    names: tuple[str, ...]
    note: str


def build_language_parts(losses: LanguageLosses, first_language: str, *, is_trained: bool) -> dict[str, Part]:
    """Returns what was measured by question.

    `first_language` is the one that heads are chosen on, and that all models are trained on if they are.
    """
    lost, languages = _table_of_removals_with_model_language_columns(losses), _dense_scores_table(losses)
    heads = [row for row in losses.rows if row.kind == SINGLE_HEADS and row.model == losses.models[0]]
    parts = {"transfer": _transfer_part(losses, (lost, languages), heads, first_language)}
    if is_trained:
        parts["trained"] = _trained_part(heads, first_language)
    else:
        parts["layers"] = Part((lost, languages), (_share_lost_heat_map(losses),), _layer_sentence(losses))
    if len(losses.models) > 1:
        parts["models"] = _models_part(losses)
    if losses.groups:
        parts["families"] = _families_part(losses, languages)
        parts["sizes"] = _corpus_sizes_part(losses, heads, languages)
    return parts


def describe_dense_models(losses: LanguageLosses, shown_tables: Sequence[Table]) -> Iterator[str]:
    """Yields a sentence about the score of every dense model, before and after training, and why shares are not defined.

    Models that were not trained are left out where the table of languages is among `shown_tables`, which says the same of them.
    """
    listed = set(losses.columns) if any(table.name == LANGUAGES for table in shown_tables) else set()
    names = _short_model_names(losses)
    of_tasks = [row for drop in losses.drops for row in (drop.row, drop.row_of_other)]
    row_of = {(row.model, row.language): row for row in (*losses.rows, *of_tasks)}
    for (model, language), row in row_of.items():
        if (model, language) in listed and row.untrained is None:
            continue
        chance = "unknown" if row.share.chance is None else f"{row.share.chance:.4g}"
        score = f"{row.dense:.4g}" if row.untrained is None else f"{row.untrained:.4g} before and {row.dense:.4g} after the fine-tuning"
        yield f"{names[model]}, {language}: score of the dense model {score}, of the best constant answer {chance}."
        if row.share.reason:
            yield f"{names[model]}, {language}: no share is defined: {row.share.reason}."


def _short_model_names(losses: LanguageLosses) -> dict[str, str]:
    """Returns how every model is called: folders by the last part of their path, where no other model has the same; all others as they are."""
    of_tasks = [row.model for drop in losses.drops for row in (drop.row, drop.row_of_other)]
    models = list(dict.fromkeys([*losses.models, *of_tasks]))
    names = {model: PurePath(model).name if PurePath(model).is_absolute() or model.count("/") > 1 else model for model in models}
    return names if len(set(names.values())) == len(names) else {model: model for model in models}


def _column_headings(losses: LanguageLosses) -> list[str]:
    """Returns the name of every column: the language, after the model where there are two."""
    names = _short_model_names(losses)
    return [language if len(losses.models) == 1 else f"{names[model]}: {language}" for model, language in losses.columns]


def _describe_significant_rows(rows: Sequence[LossRow] | Sequence[LanguageGap] | Sequence[ModelGap], claim: str) -> str:
    """Returns of how many rows a claim is shown, and that the others are undecided."""
    n_significant = sum(is_significant(row.q) for row in rows)
    return f"{n_significant} of {len(rows)} {claim} (q ≤ {SIGNIFICANT}){describe_undecided(n_significant, len(rows))}"


def _format_share_lost(row: LossRow) -> str:
    share, low, high = row.share.lost_low_high
    return "an undefined share" if share is None else format_interval(share, low, high, ".1%")


def _rows_of_smallest_model(rows: Sequence[LossRow]) -> list[LossRow]:
    """Returns the rows of the smallest models, those that are made last."""
    return [row for row in rows if row.without == rows[-1].without]


# What is lost: every language and block of layers or number of heads.


def _table_of_removals_with_model_language_columns(losses: LanguageLosses) -> Table:
    row_of = {(row.model, row.language, row.without): row for row in losses.rows}
    headings = [Column("without")]
    for name, n_examples in zip(_column_headings(losses), losses.n_examples_of_columns, strict=True):
        headings += interval_columns(name, ".1%", f"n = {n_examples}")
    cells = []
    for without in dict.fromkeys(row.without for row in losses.rows):
        shares: list[float | None] = []
        for model, language in losses.columns:
            row = row_of.get((model, language, without))
            shares += (None, None, None) if row is None else row.share.lost_low_high
        cells.append((without, *shares))
    return Table("lost", tuple(headings), tuple(cells), "Share of its own score above chance that each model loses in each language")


def _dense_scores_table(losses: LanguageLosses) -> Table:
    row_of = {(row.model, row.language): row for row in losses.rows}
    columns = (
        Column("model"),
        Column("language"),
        Column("examples"),
        Column("score", "of the dense model", ".3g"),
        Column("chance", format=".3g"),
        Column("family"),
        Column("size"),
        Column("remark"),
    )
    names, cells = _short_model_names(losses), []
    for (model, language), n_examples in zip(losses.columns, losses.n_examples_of_columns, strict=True):
        row, group = row_of[model, language], losses.groups.get(language)
        family, size = (None, None) if group is None else (group.family, group.size)
        remark = f"no share is defined: {row.share.reason}" if row.share.reason else ""
        cells.append((names[model], language, n_examples, row.dense, row.share.chance, family, size, remark))
    title = "Examples of each language, the score of the dense model, and that of the best constant answer"
    return Table(LANGUAGES, columns, tuple(cells), title)


def _share_lost_heat_map(losses: LanguageLosses) -> HeatMap:
    row_of = {(row.model, row.language, row.without): row for row in losses.rows}
    removals = tuple(dict.fromkeys(row.without for row in losses.rows))
    cells = [[row_of.get((model, language, without)) for model, language in losses.columns] for without in removals]
    columns, is_one_size = _column_headings(losses), len(set(losses.n_examples_of_columns)) == 1
    names, note = _short_removal_names(removals)
    return HeatMap(
        name="lost",
        title="Share of its own score above chance that each model loses in each language",
        x=Axis("language"),
        y=Axis("without"),
        table="lost",
        n=losses.n_examples_of_columns[0] if is_one_size else None,
        n_unit="examples in each language",
        note=note,
        rows=names,
        columns=tuple(
            columns if is_one_size else (f"{name}, n = {n}" for name, n in zip(columns, losses.n_examples_of_columns, strict=True))
        ),
        values=tuple(tuple(None if row is None else row.share.lost_low_high[0] for row in cells_of_row) for cells_of_row in cells),
        value=Axis(LOST, is_share=True),
        marks=tuple(tuple(row is not None and is_significant(row.q) for row in cells_of_row) for cells_of_row in cells),
        mark_label=f"a change of the score with q ≤ {SIGNIFICANT}",
        missing_label="not defined: the dense model is not surely above chance",
    )


def _short_removal_names(removals: Sequence[str]) -> RemovalNames:
    """Returns the names of what is removed, and a note with the method of those that remove single heads, where all have one."""
    methods = {text.partition(" heads by ")[2] for text in removals} - {""}
    if len(methods) != 1:
        return RemovalNames(tuple(removals), "")
    method = methods.pop()
    return RemovalNames(tuple(text.removesuffix(f" by {method}") for text in removals), f"Single heads by {method}.")


def _layer_sentence(losses: LanguageLosses) -> str:
    rows = [row for row in losses.rows if row.kind != SINGLE_HEADS and row.model == losses.models[0]]
    defined = [row for row in rows if row.share.lost_low_high[0] is not None]
    text = _describe_significant_rows(rows, "removals of layers change the score")
    if not defined:
        return f"{text}; no share of the score above chance is defined."
    most: dict[str, LossRow] = {}
    for row in defined:
        if row.language not in most or _share_lost_or_zero(row) > _share_lost_or_zero(most[row.language]):
            most[row.language] = row
    blocks = [row.without for row in most.values()]
    common = max(dict.fromkeys(blocks), key=blocks.count)
    worst = max(most.values(), key=_share_lost_or_zero)
    return (
        f"{text}; {blocks.count(common)} of {len(most)} languages lose most without {common}, "
        f"and {worst.language} without {worst.without} loses {_format_share_lost(worst)} of its score above chance."
    )


def _share_lost_or_zero(row: LossRow) -> float:
    share = row.share.lost_low_high[0]
    return 0.0 if share is None else share


# Every language without single heads.


def _transfer_part(losses: LanguageLosses, shared_tables: Sequence[Table], head_rows: Sequence[LossRow], first_language: str) -> Part:
    tables, text = list(shared_tables), ""
    if head_rows:
        last = _rows_of_smallest_model(head_rows)
        shares = ", ".join(f"{row.language} loses {_format_share_lost(row)}" for row in last)
        text = f"Without {last[0].without}, of the score above chance {shares}; "
    if losses.between:
        columns = (Column("language"), Column("without"), *interval_columns("difference", "+.3g"), Column("q", format=".2g"))
        cells = tuple((row.language, row.without, row.difference, row.low, row.high, row.q) for row in losses.between)
        tables.append(
            Table(
                "between languages",
                columns,
                cells,
                f"Rise of the loss beyond that in {first_language}, {_short_model_names(losses)[losses.models[0]]}",
            )
        )
        text += f"{_describe_significant_rows(losses.between, f'removals raise the loss otherwise than in {first_language}')}."
    else:
        text += f"{_describe_significant_rows(losses.rows, 'removals change the score')}."
    figures = (
        (_share_lost_by_language_figure("languages", "Share of the score above chance that each language loses", head_rows, "lost"),)
        if head_rows
        else ()
    )
    return Part(tuple(tables), figures, text)


def _share_lost_by_language_figure(figure_name: str, title: str, rows: Sequence[LossRow], table_name: str) -> BarFigure:
    """Returns a group of bars for every language, one for each number of heads."""
    languages, row_of = tuple(dict.fromkeys(row.language for row in rows)), {(row.language, row.without): row for row in rows}
    bars = []
    for without in dict.fromkeys(row.without for row in rows):
        shares = [row_of[language, without].share.lost_low_high for language in languages]
        bars.append(Bars(f"without {without}", *zip(*shares, strict=True)))
    sizes = {row.n_examples for row in rows}
    return BarFigure(
        name=figure_name,
        title=title,
        x=Axis("language"),
        y=Axis(LOST, is_share=True),
        table=table_name,
        n=min(sizes),
        n_unit="examples in each language" if len(sizes) == 1 else "examples in a language at least",
        categories=languages,
        bars=tuple(bars),
    )


# Pruned, then fine-tuned on the first language.


def _trained_part(head_rows: Sequence[LossRow], first_language: str) -> Part:
    columns = (
        Column("language"),
        Column("without"),
        Column("dense before the fine-tuning", format=".4g"),
        Column("dense, fine-tuned", format=".4g"),
        Column("pruned, fine-tuned", format=".4g"),
        *interval_columns("change", "+.3g"),
        *interval_columns("lost", ".1%"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    cells: list[tuple[Cell, ...]] = []
    for row in head_rows:
        pruned = row.loss if row.value is None else row.value
        scores = row.untrained, row.dense, pruned
        cells.append((row.language, row.without, *scores, *row.drop.score.interval, *row.share.lost_low_high, row.p, row.q))
    title = (
        f"Heads pruned and the model fine-tuned on {first_language} alone, then read in every language, means over seeds; "
        "the dense model is trained alike"
    )
    last = _rows_of_smallest_model(head_rows)
    changes = ", ".join(f"{row.language} {format_interval(*row.drop.score.interval)}" for row in last)
    sentence = (
        f"Without {last[0].without}, and fine-tuned on {first_language}, the score changes against the dense model after the same fine-tuning "
        f"by: {changes}; {_describe_significant_rows(head_rows, 'removals change it')}."
    )
    figure = _share_lost_by_language_figure(
        "trained", f"Share of the score above chance that each language loses, fine-tuned on {first_language}", head_rows, "trained"
    )
    return Part((Table("trained", columns, tuple(cells), title),), (figure,), sentence)


# Two models, task by task.


def _models_part(losses: LanguageLosses) -> Part:
    names = _short_model_names(losses)
    tables = [_share_lost_by_task_table(losses.drops, names)] if losses.drops else []
    title = f"Share above chance that {names[losses.models[0]]} loses minus that of the other model, on the same examples"
    tables.append(_table_of_gaps_by_language_and_removal(losses.gaps, title))
    both = " and ".join(names[model] for model in losses.models)
    text = _describe_significant_rows(losses.gaps, f"removals take another share of the score above chance from {both}")
    smallest = {drop.gap.language: drop for drop in losses.drops}  # the last of every task is the smallest model
    differences = [
        f"on {task} {names[drop.row.model]} loses {_format_share_lost(drop.row)} "
        f"and {names[drop.row_of_other.model]} {_format_share_lost(drop.row_of_other)}, "
        f"a difference of {format_interval(drop.gap.difference, drop.gap.low, drop.gap.high, '+.1%')}"
        for task, drop in smallest.items()
    ]
    sentence = f"Of the score above chance, {'; '.join(differences)}. {text}." if differences else f"{text}."
    return Part(tuple(tables), (_share_lost_by_task_figure(losses.drops, names),) if losses.drops else (), sentence)


def _share_lost_by_task_table(drops: Sequence[TaskDrop], short_name_by_model: Mapping[str, str]) -> Table:
    columns = (
        Column("task"),
        Column("without"),
        Column("model"),
        Column("other model"),
        Column("dense model", format=".4g"),
        Column("dense other model", format=".4g"),
        *interval_columns("lost", ".1%"),
        *interval_columns("lost by the other", ".1%"),
        *interval_columns("difference", "+.1%"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    cells = []
    for drop in drops:
        row, control, gap = drop.row, drop.row_of_other, drop.gap
        shares = (*row.share.lost_low_high, *control.share.lost_low_high, gap.difference, gap.low, gap.high)
        models = short_name_by_model[row.model], short_name_by_model[control.model]
        cells.append((gap.language, gap.without, *models, row.dense, control.dense, *shares, gap.p, gap.q))
    return Table(
        "tasks", columns, tuple(cells), "Share of its own score above chance that each model loses, task by task, on the same examples"
    )


def _share_lost_by_task_figure(drops: Sequence[TaskDrop], short_name_by_model: Mapping[str, str]) -> BarFigure:
    """Returns a group of bars for every task and number of heads: one for the model, one for the other."""
    has_levels = len({drop.gap.without for drop in drops}) > 1
    own, of_control = ([row.share.lost_low_high for row in rows] for rows in ([d.row for d in drops], [d.row_of_other for d in drops]))
    first = drops[0]
    return BarFigure(
        name="tasks",
        title="Share of its own score above chance that each model loses, by task",
        x=Axis("task"),
        y=Axis(LOST, is_share=True),
        table="tasks",
        n=min(drop.row.n_examples for drop in drops),
        n_unit="examples of a task at least",
        categories=tuple(f"{drop.gap.language}, without {drop.gap.without}" if has_levels else drop.gap.language for drop in drops),
        bars=(
            Bars(short_name_by_model[first.row.model], *zip(*own, strict=True)),
            Bars(short_name_by_model[first.row_of_other.model], *zip(*of_control, strict=True)),
        ),
    )


def _table_of_gaps_by_language_and_removal(rows: Sequence[ModelGap], title: str) -> Table:
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


# Families of languages, and the size of their corpus.


def _choose_removal_to_report(rows: Sequence[FamilyContrast] | Sequence[SizeTrend], losses: LanguageLosses) -> str:
    """Returns the removal to speak of: the smallest model, or else the first that was compared."""
    heads = [row.without for row in losses.rows if row.kind == SINGLE_HEADS]
    compared = [row.without for row in rows]
    return next((without for without in reversed(heads) if without in compared), compared[0])


def _families_part(losses: LanguageLosses, language_table: Table) -> Part:
    rows = losses.contrasts
    tables = (_family_contrast_table(rows), language_table)
    if not rows:
        return Part(tables, (), "No contrast: the file of groups names fewer than two families whose losses are defined.")
    without = _choose_removal_to_report(rows, losses)
    texts = []
    for row in rows:
        if row.without == without:
            tested = "no interval, since one side is a single language" if row.p is None else f"p = {row.p:.2g}, q = {row.q:.2g}"
            texts.append(f"{row.family} {format_interval(row.difference, row.low, row.high, '+.1%')} ({tested})")
    sentence = f"Without {without}, the share that languages of a family lose differs from that of all others by: {'; '.join(texts)}."
    return Part(tables, (_family_contrast_figure(rows),), sentence)


def _family_contrast_figure(rows: Sequence[FamilyContrast]) -> BarFigure:
    removals, row_of = tuple(dict.fromkeys(row.without for row in rows)), {(row.family, row.without): row for row in rows}
    bars = []
    for family in dict.fromkeys(row.family for row in rows):
        cells = [row_of.get((family, without)) for without in removals]
        numbers = [(None, None, None) if row is None else (row.difference, row.low, row.high) for row in cells]
        bars.append(Bars(family, *zip(*numbers, strict=True)))
    return BarFigure(
        name="families",
        title="Share above chance that the languages of a family lose minus that of all others",
        x=Axis("without"),
        y=Axis("difference of the share lost", is_share=True),
        table="families",
        n=rows[0].n_languages + rows[0].n_others,
        n_unit="languages",
        categories=removals,
        bars=tuple(bars),
        is_horizontal=True,
    )


def _family_contrast_table(rows: Sequence[FamilyContrast]) -> Table:
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


def _corpus_sizes_part(losses: LanguageLosses, head_rows: Sequence[LossRow], language_table: Table) -> Part:
    sizes = _table_of_languages_with_corpus_sizes(losses, head_rows)
    tables = (*([_corpus_size_trend_table(losses.trends)] if losses.trends else []), sizes, language_table)
    figures = tuple(_share_lost_by_corpus_size_figures(sizes, {row.without: row for row in losses.trends}))
    if not losses.trends:
        n_languages = len({row.language for row in head_rows if losses.groups[row.language].size is not None})
        sentence = (
            f"No rank correlation of the share lost with the size of the corpus: {n_languages} languages have a size, and it takes four."
        )
        return Part(tables, figures, sentence)
    without = _choose_removal_to_report(losses.trends, losses)
    (row,) = [row for row in losses.trends if row.without == without]
    sentence = (
        f"Without {without}, the rank correlation of the share lost with the size of the corpus over {row.n_languages} languages is "
        f"{format_interval(row.correlation, row.low, row.high, '+.2f')} (p = {row.p:.2g}, q = {row.q:.2g})."
    )
    return Part(tables, figures, sentence)


def _table_of_languages_with_corpus_sizes(losses: LanguageLosses, head_rows: Sequence[LossRow]) -> Table:
    columns = (
        Column("language"),
        Column("family"),
        Column("size", format=".4g"),
        Column("log10 size", format=".3f"),
        Column("without"),
        *interval_columns("lost", ".1%"),
    )
    cells = []
    for row in head_rows:
        group = losses.groups[row.language]
        if group.size is not None:
            cells.append((row.language, group.family, group.size, log10(group.size), row.without, *row.share.lost_low_high))
    return Table("language sizes", columns, tuple(cells), "Share above chance that every language loses, with the size of its corpus")


def _share_lost_by_corpus_size_figures(size_table: Table, trend_by_removal: Mapping[str, SizeTrend]) -> Iterator[ScatterFigure]:
    """Yields every language by the size of its corpus and the share that it loses, a figure for each number of heads."""
    records = [record for record in size_table.records() if record["lost"] is not None]
    removals = list(dict.fromkeys(str(record["without"]) for record in records))
    for number, without in enumerate(removals, 1):
        own = [record for record in records if record["without"] == without]
        families = dict.fromkeys(str(record["family"]) for record in own)
        groups = []
        for family in families:
            of_family = [record for record in own if record["family"] == family]
            x, y = (tuple(float(record[name] or 0) for record in of_family) for name in ("log10 size", "lost"))
            groups.append(Points(family or "no family", x, y, tuple(str(record["language"]) for record in of_family)))
        trend = trend_by_removal.get(without)
        yield ScatterFigure(
            name="sizes" if len(removals) == 1 else f"sizes {number}",
            title=f"Share above chance that languages lose by the size of their corpus, without {without}",
            x=Axis("size of the corpus", "log10"),
            y=Axis("share lost", is_share=True),
            table=size_table.name,
            n=len(own),
            n_unit="languages",
            groups=tuple(groups),
            note="" if trend is None else f"rank correlation {format_interval(trend.correlation, trend.low, trend.high, '+.2f')}",
        )


def _corpus_size_trend_table(rows: Sequence[SizeTrend]) -> Table:
    columns = (
        Column("without"),
        Column("languages"),
        *interval_columns("rank correlation", "+.2f"),
        Column("p", format=".2g"),
        Column("q", format=".2g"),
    )
    title = (
        "Rank correlation over languages of the share lost with the size of the corpus; interval and p by Fisher's z and t over languages"
    )
    return Table("sizes", columns, tuple(astuple(row) for row in rows), title)
