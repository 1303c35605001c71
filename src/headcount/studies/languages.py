from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

from headcount.core.errors import DataError, OptionError
from headcount.core.options import option
from headcount.core.study_result import Column, StudyResult, Table, interval_columns
from headcount.data.embedded.entailment import LABELS
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.studies._base import LoadedModel, Progress, Study, StudyContext, StudyInfo, parse_pairs
from headcount.studies._results import SIGNIFICANT, correct_rows, keep_rows
from headcount.studies.layers import LAYER, THIRD, group_layers

if TYPE_CHECKING:
    from headcount.core.evaluation import Evaluation
    from headcount.core.heads import Head
    from headcount.data.task import Task


@dataclass(frozen=True)
class Languages(Study):
    """Do languages need the same layers, and does a multilingual model suffer more from pruning than a monolingual one?

    Budhraja et al. 2021 on multilingual BERT: fine-tune on one language, prune, evaluate on each. Heads are chosen on the first task alone; blocks of
    layers are gated away. Drops are paired with the dense model on the same examples; against a monolingual model the relative drops are compared on
    the examples that both read. With `fine_tune` the models are trained on the first task before (zero-shot transfer to the others).
    """

    _: KW_ONLY
    tasks: tuple[str, ...] = option(help="The same task in each language, two or more; heads are chosen (and trained) on the first")
    against: str | None = option(None, "A monolingual model, for the tasks that it can read")
    shared: tuple[str, ...] = option((), "The tasks that the other model reads; by default the first")
    method: str = option("gradient", "A pruner with its options, or an importance to rank by")
    keep: tuple[int | float | str, ...] = option((), "How many heads stay: numbers or shares; by default 75%, 50%, 25%")
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
        if len(self.tasks) < 2:
            raise OptionError(f"tasks must name the same task in two languages or more; got {', '.join(self.tasks) or 'none'}")
        if self.shared and self.against is None:
            raise OptionError("shared names the tasks of the other model, so it goes with against; name that model or leave shared out")
        if self.shared and (self.shared[0] != self.tasks[0] or not set(self.shared) <= set(self.tasks)):
            raise OptionError(f"shared must name some of tasks, the first of them included; got {', '.join(self.shared)}")

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns what every model loses in every language without layers or heads, compared between languages and between models."""
        from headcount.pruning.base import Pruner

        if context.sources.task_name:
            raise OptionError("tasks names the tasks of this study, the first being that on which heads are chosen; leave task out")
        if self.against == context.model_name:
            raise OptionError(f"against must name another model than {context.model_name}")
        pruner, recipe = Pruner.parse(self.method), Recipe(rate=self.rate, train_batch=self.train_batch)
        tuning = replace(recipe, epochs=self.fine_tune or None)
        size = None if pruner.sizes_itself else 1
        template = PruneSpec.of(pruner, size, repair=self.repair, recipe=recipe, seed=context.seed)
        context.describe_run(
            context.loaded, {"study": self.name, "tasks": list(self.tasks), **({"fine-tune": tuning.to_dict()} if self.fine_tune else {})}
        )
        subjects = [self._open_subject(context, context.model_name, self.tasks, template, tuning)]
        if self.against is not None:
            subjects.append(self._open_subject(context, self.against, self.shared or self.tasks[:1], template, tuning))
        with context.progress("evaluating", "evaluations") as advance:
            rows, evaluations = prune_languages(context, subjects, progress=advance)
        between = compare_languages(evaluations, subjects[0])
        gaps = compare_models(evaluations, *subjects, limit=context.limit, seed=context.seed) if self.against is not None else []
        request = {
            "models": [subject.name for subject in subjects],
            "tasks": list(self.tasks),
            "spec": template.to_dict(),
            "keep": ",".join(map(str, self.keep)) or None,
            "tune": tuning.to_dict() if self.fine_tune else None,
        }
        keep_rows(context.run, self.name, {**request, "limit": context.limit, "seed": context.seed}, rows)
        first = subjects[0]
        columns = [(subject.name, language) for subject in subjects for language in subject.tasks]
        tables = [_loss_table(columns, rows), _between_table(between, f"Rise of the loss beyond that in {self.tasks[0]}, {first.name}")]
        if gaps:
            title = f"Share above chance that {first.name} loses minus that of {subjects[1].name}, on the same examples"
            tables.append(_gap_table(gaps, title))
        return StudyResult(
            study=str(self),
            tables=tuple(tables),
            sentence=_verdict(rows, between, gaps),
            notes=tuple(_notes(columns, rows)),
            measurements={**request, "rows": rows, "between languages": between, "against": gaps},
        )

    def _open_subject(self, context: StudyContext, name: str, tasks: Sequence[str], template: PruneSpec, tuning: Recipe) -> Subject:
        """Opens a model with its task in each language, after training it if that is asked for."""
        from headcount.pruning.prune import check_request
        from headcount.studies._gated import count_levels
        from headcount.studies._tuning import load_with_head, train_model

        if self.fine_tune:
            labels = self.labels or (LABELS if self.tasks[0].startswith("demo/entailment") else ())
            loaded = train_model(
                context, load_with_head(context, name, labels), self.tasks[0], tuning, parse_pairs(self.tune_option, "tune_option")
            )
        else:
            loaded = context.loaded if name == context.model_name else context.sources.load_model(name)
        requests = [template]
        if self.keep or not template.method.sizes_itself:
            requests = [template.resized(keep) for keep in count_levels(self.keep, loaded.heads, (0.75, 0.5, 0.25))]
        for request in requests:
            check_request(request, loaded.model, loaded.heads)
        return Subject(name, loaded, {task: context.sources.open_task(loaded, task) for task in tasks}, requests)


@dataclass(frozen=True, slots=True)
class Subject:
    """A model, its task in each language by the name of the task, and the requests for pruned models."""

    name: str
    loaded: LoadedModel
    tasks: Mapping[str, Task]
    requests: Sequence[PruneSpec]


Evaluations = Mapping[tuple[str, str, str], tuple["Evaluation", "Evaluation"]]
"""(model, language, what was removed) → the evaluations of the dense and the pruned model."""


def prune_languages(
    context: StudyContext, subjects: Sequence[Subject], *, progress: Progress | None = None
) -> tuple[list[dict[str, Any]], Evaluations]:
    """Returns a row for every model, language and block of layers or number of heads, and the evaluations behind them.

    A row holds the change of loss and metric, and the share of the score above chance that is lost; None, and `why`, if that is not defined.
    """
    from headcount.studies import _gated as gated

    evaluations: dict[tuple[str, str, str], tuple[Evaluation, Evaluation]] = {}
    rows: list[dict[str, Any]] = []
    for subject in subjects:
        gated.admit_model(context.run, subject.loaded.model)
        chances = {language: gated.chance_of(subject.loaded.model, task, context.limit) for language, task in subject.tasks.items()}
        for language, removal, dense, pruned in _evaluate_removals(context, subject, progress):
            evaluations[subject.name, language, removal.name] = dense, pruned
            task = subject.tasks[language]
            drop = gated.measure_drop(dense, pruned, task, seed=context.seed)
            share = gated.share_left(dense, pruned, task, chances[language], seed=context.seed)
            names = {"model": subject.name, "language": language, "kind": removal.kind, "what": removal.name}
            rows.append(
                {
                    **names,
                    "whole": gated.score_of(dense),
                    "loss": pruned.loss,
                    "value": pruned.value,
                    **drop.flat(),
                    **share.flat(),
                    "lost": None if share.remaining is None else 1 - share.remaining.difference,
                    "why": share.reason,
                    "p": drop.score.p,
                }
            )
    correct_rows(rows)
    return rows, evaluations


@dataclass(frozen=True, slots=True)
class Removal:
    """What is removed from a model: the heads of some layers by gates, or single heads by a cut."""

    kind: str
    name: str
    model: Any
    heads: Sequence[Head] = ()


def _evaluate_removals(
    context: StudyContext, subject: Subject, progress: Progress | None
) -> Iterator[tuple[str, Removal, Evaluation, Evaluation]]:
    """Yields language, removal, and the evaluations of the dense and the pruned model; pruned models choose their heads on the first task."""
    from headcount.models.head_map import HeadMap
    from headcount.studies._gated import evaluate_without
    from headcount.workflows.prune import Pruning

    run, model, n_heads = context.required_run, subject.loaded.model, len(subject.loaded.heads)
    reading: Any = {"limit": context.limit, "batch_size": context.batch_size}
    removals = [Removal(group.kind, group.name, model, group.heads) for group in group_layers(subject.loaded.heads, (THIRD, LAYER))]
    pruning = Pruning(run, model, next(iter(subject.tasks.values())), limit=context.limit, command=context.command)
    device = next(model.parameters()).device
    for request in subject.requests:
        small = pruning.make(request)[1].to(device).eval()
        name = f"{n_heads - len(HeadMap.of(small))} of {n_heads} heads by {request.label}"
        removals.append(Removal("heads", name, small))
    n_finished, total = 0, len(subject.tasks) * len(removals)
    for language, task in subject.tasks.items():
        dense = evaluate_without(run, f"{subject.name}, {language}: dense", model, task, (), **reading)
        for removal in removals:
            label = f"{subject.name}, {language}: without {removal.name}"
            pruned = evaluate_without(run, label, removal.model, task, removal.heads, **reading)
            n_finished += 1
            if progress is not None:
                progress(n_finished, total)
            yield language, removal, dense, pruned


def compare_languages(evaluations: Evaluations, subject: Subject) -> list[dict[str, Any]]:
    """Returns, by removal, the rise of the loss in each further language minus that in the first: different examples, so Welch's t."""
    from scipy import stats

    first, *others = subject.tasks
    removals = [removal for model, language, removal in evaluations if (model, language) == (subject.name, first)]
    rows = []
    for language in others:
        for removal in removals:
            pairs = [evaluations[subject.name, name, removal] for name in (language, first)]
            rises = [pruned.losses - dense.losses for dense, pruned in pairs]
            test: Any = stats.ttest_ind(*rises, equal_var=False)
            low, high = test.confidence_interval()
            varies = rises[0].std() + rises[1].std() > 0
            gap = float(rises[0].mean() - rises[1].mean())
            ends = {"low": float(low), "high": float(high), "p": float(test.pvalue)} if varies else {"low": gap, "high": gap, "p": 1.0}
            rows.append({"model": subject.name, "language": language, "against": first, "what": removal, "difference": gap, **ends})
    correct_rows(rows)
    return rows


def compare_models(
    evaluations: Evaluations, first: Subject, second: Subject, *, limit: int | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """Returns the share of its score above chance that the first model loses minus that of the second, in every language that both read.

    A pair with a model that is not above chance has no row.

    Raises:
        DataError: the models read different examples.
    """
    from headcount.studies._gated import chance_of, relative_gap, share_left

    rows = []
    for name, language, removal in list(evaluations):
        if name != first.name or (second.name, language, removal) not in evaluations:
            continue
        pairs = evaluations[name, language, removal], evaluations[second.name, language, removal]
        if pairs[0][0].n_examples != pairs[1][0].n_examples:
            raise DataError(f"{first.name} and {second.name} read different examples of {language}; give both the same task and limit")
        task = first.tasks[language]
        chance = chance_of(first.loaded.model, task, limit)
        shares = [share_left(*pair, task, chance, seed=seed).remaining for pair in pairs]
        if chance is None or shares[0] is None or shares[1] is None:
            continue
        gap = relative_gap(*pairs, task, chance, seed=seed)
        ends = {"difference": gap.difference, "low": gap.low, "high": gap.high, "p": gap.p}
        lost = {"lost": 1 - shares[0].difference, "lost by the other": 1 - shares[1].difference}
        rows.append({"language": language, "what": removal, **lost, **ends})
    correct_rows(rows)
    return rows


def _loss_table(columns: Sequence[tuple[str, str]], rows: Sequence[Mapping[str, Any]]) -> Table:
    row_of = {(row["model"], row["language"], row["what"]): row for row in rows}
    removals = list(dict.fromkeys(row["what"] for row in rows))
    headings = [Column("without")]
    for model, language in columns:
        headings += interval_columns(f"{model}: {language}", ".1%")
    cells = []
    for removal in removals:
        shares: list[float | None] = []
        for model, language in columns:
            row = row_of.get((model, language, removal), {})
            shares += [None if row.get(end) is None else 1 - row[end] for end in ("left", "left high", "left low")]
        cells.append((removal, *shares))
    return Table("lost", tuple(headings), tuple(cells), "Share of its own score above chance that each model loses in each language")


def _notes(columns: Sequence[tuple[str, str]], rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    row_of = {(row["model"], row["language"]): row for row in rows}
    for model, language in columns:
        row = row_of[model, language]
        chance = "unknown" if row["chance"] is None else f"{row['chance']:.4g}"
        yield f"{model}, {language}: score of the dense model {row['whole']:.4g}, of the best constant answer {chance}."
        if row["why"]:
            yield f"{model}, {language}: no share is defined: {row['why']}."


def _between_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    columns = (Column("language"), Column("without"), *interval_columns("difference", "+.3g"), Column("q", format=".2g"))
    names = ("language", "what", "difference", "low", "high", "q")
    return Table("between languages", columns, tuple(tuple(row[name] for name in names) for row in rows), title)


def _gap_table(rows: Sequence[Mapping[str, Any]], title: str) -> Table:
    columns = (
        Column("language"),
        Column("without"),
        Column("one", format=".1%"),
        Column("other", format=".1%"),
        *interval_columns("difference", "+.1%"),
        Column("q", format=".2g"),
    )
    names = ("language", "what", "lost", "lost by the other", "difference", "low", "high", "q")
    return Table("against", columns, tuple(tuple(row[name] for name in names) for row in rows), title)


def _verdict(rows: Sequence[Mapping[str, Any]], between: Sequence[Mapping[str, Any]], gaps: Sequence[Mapping[str, Any]]) -> str:
    def count(tests: Sequence[Mapping[str, Any]]) -> str:
        return f"{sum(row['q'] <= SIGNIFICANT for row in tests)} of {len(tests)}"

    text = f"{count(rows)} removals change the score significantly (q ≤ {SIGNIFICANT}), {count(between)} differ between languages"
    return f"{text}, and {count(gaps)} differ between the models." if gaps else f"{text}."
