"""What models lose in several languages without some layers or heads, compared between languages and between models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from scipy import stats
from torch import nn

from headcount.core.budget import Budget
from headcount.core.errors import DataError, OptionError
from headcount.core.evaluation import Evaluation
from headcount.core.files import is_file
from headcount.core.heads import Head
from headcount.core.stats.corrected_rows import add_q_values
from headcount.data.embedded.entailment import LABELS
from headcount.data.share_above_chance import (
    DenseAndPruned,
    Share,
    lost_share_of_first_minus_second,
    score_of_best_constant_answer,
    share_above_chance_left,
)
from headcount.data.task import SPLITS, Task
from headcount.models.modules import unwrap
from headcount.pruning.base import Pruner
from headcount.pruning.prune import check_request
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.runs.results import PrunedRecord
from headcount.studies._base import STEP_BATCH, Effort, LoadedModel, Progress, StudyContext, parse_name_value_pairs
from headcount.studies._checks import check_same_kinds
from headcount.studies._gated import PairedChange, allow_other_model, evaluate_without, list_kept_counts, measure_paired_change
from headcount.studies._grid import estimate_grid_effort
from headcount.studies._measure.language_groups import (
    FamilyContrast,
    LanguageGroup,
    SizeTrend,
    contrast_language_families,
    correlate_losses_with_corpus_size,
    read_language_groups,
)
from headcount.studies._measure.layers import LAYER, THIRD, group_layers
from headcount.studies._results import describe_study_run
from headcount.studies._tuning import CLASSIFIER, load_as_classifier, train_or_read_model
from headcount.workflows.grid import average_evaluations
from headcount.workflows.prune import Pruning

if TYPE_CHECKING:
    from headcount.studies.languages import Languages


HEADS = "heads"
"""The kind of a removal of single heads, rather than of all heads of some layers."""
SHARES = (0.75, 0.5, 0.25)
"""The shares of heads that stay by default."""


@dataclass(frozen=True, slots=True)
class StudiedModel:
    """A model, its task in each language by the name of the task, and the requests for pruned models."""

    name: str
    loaded: LoadedModel
    tasks: Mapping[str, Task]
    requests: Sequence[PruneSpec]
    is_untrained: bool = False
    """Whether the model has a new head that only the training after pruning trains."""


class ModelLanguageRemoval(NamedTuple):
    """The name of a model, a language, and what was removed."""

    model: str
    language: str
    removal: str


DenseAndPrunedEvaluations = Mapping[ModelLanguageRemoval, DenseAndPruned]


@dataclass(frozen=True, slots=True)
class LossRow:
    """A model in one language without some heads: its loss and metric, their change, and the share of its score above chance that it loses.

    `dense` is the score of the dense model that it is compared with, after the same training; `untrained` is that before, None without
    training and for a new head.
    """

    model: str
    language: str
    kind: str
    without: str
    dense: float
    loss: float
    value: float | None
    n_examples: int
    drop: PairedChange
    share: Share
    p: float | None
    q: float | None = None
    untrained: float | None = None

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data."""
        names = {"model": self.model, "language": self.language, "kind": self.kind, "without": self.without}
        scores = {"dense": self.dense, "untrained": self.untrained, "loss": self.loss, "value": self.value, "n_examples": self.n_examples}
        share = {**self.share.to_dict(), "lost": self.share.lost_low_high[0]}
        return {**names, **scores, **self.drop.to_dict(), **share, "p": self.p, "q": self.q}


@dataclass(frozen=True, slots=True)
class LanguageGap:
    """The rise of the loss of a model in one language minus that in another (`against`), without the same heads."""

    model: str
    language: str
    against: str
    without: str
    difference: float
    low: float
    high: float
    p: float
    q: float = 1.0


@dataclass(frozen=True, slots=True)
class ModelGap:
    """The share of its score above chance that one model loses in a language minus that which the other loses, without the same layers."""

    language: str
    without: str
    lost: float
    lost_by_other: float
    difference: float
    low: float
    high: float
    p: float
    q: float = 1.0


@dataclass(frozen=True, slots=True)
class TaskDrop:
    """What two models lose on one task without the same number of heads: a row of each, and the difference of their shares."""

    row: LossRow
    row_of_other: LossRow
    gap: ModelGap


@dataclass(frozen=True, slots=True)
class LanguageLosses:
    """Everything that the study measures, the names of the models, and the request as plain data."""

    models: list[str]
    columns: list[tuple[str, str]]
    request: dict[str, object]
    rows: list[LossRow]
    between: list[LanguageGap]
    gaps: list[ModelGap]
    contrasts: list[FamilyContrast]
    trends: list[SizeTrend]
    groups: Mapping[str, LanguageGroup]
    drops: list[TaskDrop]

    @property
    def n_examples_of_columns(self) -> list[int]:
        """The number of examples of every column."""
        n_examples = {(row.model, row.language): row.n_examples for row in self.rows}
        return [n_examples[column] for column in self.columns]


def measure_languages(study: Languages, context: StudyContext) -> LanguageLosses:
    """Returns what every model loses in every language without layers or heads, compared between languages and between models."""
    if study.tasks and context.sources.task_name.partition("(")[0] not in ("", study.tasks[0].partition("(")[0]):
        raise OptionError("tasks names the tasks of this study, the first being that on which heads are chosen; leave task out")
    if study.against == context.model_name:
        raise OptionError(f"against must name another model than {context.model_name}")
    template = make_request_template(study, context.seed)
    tuning = replace(template.recipe, epochs=study.fine_tune or None)
    config = {"study": study.name, "tasks": list(study.names), **({"fine-tune": tuning.to_dict()} if study.fine_tune else {})}
    groups = read_language_groups(Path(study.groups), study.names) if study.groups else {}
    describe_study_run(context, context.loaded, config)
    subjects = [_open_and_tune_model(study, context, context.model_name, study.names, template, tuning)]
    if study.against is not None:
        subjects.append(_open_and_tune_model(study, context, study.against, study.shared or study.names[:1], template, tuning))
    with context.progress("evaluating", "evaluations") as advance:
        rows, evaluations = measure_losses_by_language(context, subjects, n_seeds=study.seeds, progress=advance)
    between = compare_languages_with_first(evaluations, subjects[0])
    pairs = [MeasuredModelPair(subjects, rows, evaluations)] if study.against is not None else []
    pairs += [_measure_model_pair(study, context, pair, template, tuning) for pair in list_model_pairs_on_further_tasks(study, context)]
    gaps, drops = _compare_model_pairs(context, pairs)
    models = [subject.name for subject in subjects]
    request: dict[str, object] = {
        "models": models,
        "tasks": list(study.names),
        "spec": template.to_dict(),
        "keep": ",".join(map(str, study.keep)) or None,
        "tune": tuning.to_dict() if study.fine_tune else None,
    }
    columns = [(subject.name, language) for subject in subjects for language in subject.tasks]
    contrasts, trends = compare_language_groups(context, subjects[0], groups, rows) if groups else ([], [])
    return LanguageLosses(models, columns, request, rows, between, gaps, contrasts, trends, groups, drops)


@dataclass(frozen=True, slots=True)
class ModelPairOnTask:
    """A further task, and the two models that are compared on it."""

    task: str
    model: str
    control: str


def list_model_pairs_on_further_tasks(study: Languages, context: StudyContext) -> list[ModelPairOnTask]:
    """Returns the further tasks of a study, each TASK for its own two models, or MODEL=OTHER=TASK.

    Raises:
        OptionError: a text is neither.
    """
    pairs = []
    for text in study.other_tasks:
        name, parenthesis, options = text.partition("(")  # an equals sign within parentheses belongs to an option of the task
        *models, task = name.split("=")
        if len(models) not in (0, 2) or not all((*models, task)):
            raise OptionError(f"a further task must be TASK or MODEL=OTHER=TASK, with two models to compare; got {text!r}")
        model, control = models or (context.model_name, study.against or "")
        pairs.append(ModelPairOnTask(f"{task}{parenthesis}{options}", model, control))
    return pairs


class MeasuredModelPair(NamedTuple):
    """Two models, what they lose, and the evaluations behind it."""

    subjects: Sequence[StudiedModel]
    rows: Sequence[LossRow]
    evaluations: DenseAndPrunedEvaluations


def _measure_model_pair(
    study: Languages, context: StudyContext, pair: ModelPairOnTask, template: PruneSpec, tuning: Recipe
) -> MeasuredModelPair:
    """Returns what the two models of a further task lose, both pruned on that task."""
    alone = replace(study, tasks=(pair.task,), languages=(), shared=(), groups="", against=pair.control, other_tasks=())
    subjects = [_open_and_tune_model(alone, context, name, (pair.task,), template, tuning) for name in (pair.model, pair.control)]
    with context.progress(f"evaluating on {pair.task}", "evaluations") as advance:
        rows, evaluations = measure_losses_by_language(context, subjects, n_seeds=study.seeds, progress=advance)
    return MeasuredModelPair(subjects, rows, evaluations)


def _compare_model_pairs(context: StudyContext, pairs: Sequence[MeasuredModelPair]) -> tuple[list[ModelGap], list[TaskDrop]]:
    """Returns the differences between the models of every pair, corrected together, and those of pruned heads with the rows behind them."""
    gaps: list[ModelGap] = []
    rows_of: list[tuple[LossRow, LossRow]] = []
    for (first, second), rows, evaluations in pairs:
        of_pair = subtract_share_lost_by_second_model(evaluations, first, second, limit=context.limit, seed=context.seed)
        by_model = {(row.model, row.language, row.without): row for row in rows}
        keys = [(gap.language, gap.without) for gap in of_pair]
        rows_of += [(by_model[first.name, *key], by_model[second.name, *key]) for key in keys]
        gaps += of_pair
    gaps = add_q_values(gaps)
    drops = [TaskDrop(*pair, gap) for pair, gap in zip(rows_of, gaps, strict=True) if pair[0].kind == HEADS]
    return gaps, drops


def estimate_effort(study: Languages, context: StudyContext) -> Effort:
    """Returns the evaluations of every model in every language, and the choice and training of all pruned models.

    The first language, and every language that is a task by name, is taken to have as many examples as the task of the context; the other model as
    many heads.
    """
    heads, n_report = context.loaded.heads, len(context.task.report)
    template = make_request_template(study, context.seed)
    sizes = [None] if template.method.sizing_option_text and not study.keep else list_kept_counts(study.keep, heads, SHARES)
    requests = [template if size is None else template.resized(size) for size in sizes]
    by_seed = [
        replace(request, seed=request.seed + number) for request in requests for number in range(_count_needed_seeds(request, study.seeds))
    ]
    if study.recover is not None:
        first = by_seed[: _count_needed_seeds(requests[0], study.seeds)]
        by_seed += [replace(each, method=Pruner.parse("random"), budget=Budget(keep=len(heads))) for each in first]
    n_groups = 0 if context.new_head or study.recover is not None else len(group_layers(heads, (THIRD, LAYER)))
    effort = Effort()
    readings = [(context.model_name, study.names), *([] if study.against is None else [(study.against, study.shared or study.names[:1])])]
    readings += [
        (model, (pair.task,)) for pair in list_model_pairs_on_further_tasks(study, context) for model in (pair.model, pair.control)
    ]
    for model, languages in readings:
        effort += estimate_grid_effort(context, by_seed, other_subject=f"{model}, {languages[0]}")
        for language in languages:
            n_rows = _count_lines_of_file(study, language) or n_report
            n_examples = min(n_rows, context.limit or n_rows)
            effort += Effort(shared={("layers", model, language): Effort(passes=(1 + n_groups) * n_examples)})
            effort += Effort(shared={("heads", model, language, request): Effort(passes=n_examples) for request in by_seed})
        if study.fine_tune:
            n_steps = replace(template.recipe, epochs=study.fine_tune).n_steps(len(context.task.calibration))
            effort += Effort(shared={("tuned", model, languages[0]): Effort(steps=n_steps * study.train_batch / STEP_BATCH)})
    return effort


def _count_lines_of_file(study: Languages, language: str) -> int | None:
    """Returns how many lines the file of a language after the first has; None for the first and for a named task."""
    if language == study.names[0] or not study.files:
        return None
    with Path(study.files[language]).open("rb") as file:
        return sum(1 for _ in file)


def make_request_template(study: Languages, seed: int) -> PruneSpec:
    """Returns the request that those of all sizes and seeds differ from."""
    pruner, recipe = Pruner.parse(study.method), Recipe(rate=study.rate, train_batch=study.train_batch)
    size = None if pruner.sizing_option_text else 1
    return PruneSpec.of(pruner, size, repair=study.repair, recover=study.recover, recipe=recipe, seed=seed)


def _count_needed_seeds(request: PruneSpec, n_seeds: int) -> int:
    return n_seeds if request.method.info.draws or request.method.info.trains or request.recover is not None else 1


def check_language_inputs(study: Languages, context: StudyContext) -> None:
    """Raises an error where a file or task of a language, or a file of groups, cannot be read, or the other model is of another kind."""
    for name, file in study.files.items():
        if not is_file(Path(file)):
            raise DataError(f"{file}, the file of language {name}, does not exist; name a file of the task as NAME=FILE")
    for name in study.names:
        open_task_of_language(study, context, context.loaded, name)
    if study.groups:
        read_language_groups(Path(study.groups), study.names)
    if study.against is not None:
        check_same_kinds(context, study.against)
    for pair in list_model_pairs_on_further_tasks(study, context):
        for model in (pair.model, pair.control):
            loaded = context.loaded if model == context.model_name else context.sources.load_model(model)
            context.sources.open_task(loaded, pair.task)


def compare_language_groups(
    context: StudyContext,
    subject: StudiedModel,
    group_of_language: Mapping[str, LanguageGroup],
    rows: Sequence[LossRow],
) -> tuple[list[FamilyContrast], list[SizeTrend]]:
    """Returns the contrasts between families and the rank correlations with size, of the share that a model loses."""
    lost: dict[str, dict[str, float]] = {}
    for row in rows:
        share = row.share.lost_low_high[0]
        if row.model == subject.name and share is not None:
            lost.setdefault(row.without, {})[row.language] = share
    return contrast_language_families(lost, group_of_language), correlate_losses_with_corpus_size(lost, group_of_language)


def _open_and_tune_model(
    study: Languages, context: StudyContext, model_name: str, languages: Sequence[str], template: PruneSpec, tuning: Recipe
) -> StudiedModel:
    """Opens a model with its task in each language, after training it if the study fine-tunes."""
    loaded = context.loaded if model_name == context.model_name else context.sources.load_model(model_name)
    has_new_head = CLASSIFIER not in type(unwrap(loaded.model)).__name__
    if study.fine_tune or study.recover is not None:
        labels = study.labels or (LABELS if study.names[0].startswith("demo/entailment") else ())
        has_new_head = (has_new_head and bool(labels)) or (context.new_head and loaded is context.loaded)
        loaded = load_as_classifier(context, model_name, labels)
    if study.fine_tune:
        options = {name.replace("-", "_"): value for name, value in parse_name_value_pairs(study.tune_option, "tune_option").items()}
        loaded = train_or_read_model(context, loaded, open_task_of_language(study, context, loaded, study.names[0], options), tuning)
    requests = [template]
    if study.keep or not template.method.sizing_option_text:
        requests = [template.resized(keep) for keep in list_kept_counts(study.keep, loaded.heads, SHARES)]
    for request in requests:
        check_request(request, loaded.model, loaded.heads)
    tasks = open_tasks_of_languages(study, context, loaded, languages)
    return StudiedModel(
        model_name, loaded, tasks, requests, is_untrained=has_new_head and not study.fine_tune and study.recover is not None
    )


def open_tasks_of_languages(study: Languages, context: StudyContext, loaded: LoadedModel, languages: Sequence[str]) -> dict[str, Task]:
    """Returns the task of each language.

    Nothing is chosen on a language after the first, so that the report split of its file is the whole file; what is calibrated and selected
    is on the first.
    """
    first, *others = ((language, open_task_of_language(study, context, loaded, language)) for language in languages)
    tasks = dict([first, *others])
    for language, task in others if study.files else ():
        examples = [example for split in SPLITS for example in task.split(split)]
        tasks[language] = replace(task, calibration=first[1].calibration, selection=first[1].selection, report=examples)
    return tasks


def open_task_of_language(
    study: Languages, context: StudyContext, loaded: LoadedModel, language: str, task_options: Mapping[str, str] | None = None
) -> Task:
    """Returns the task of a language: the named task, or that of the caller on the file of the language.

    The first file is held out where the caller named data for training and data for evaluation, so that the former train; else it is divided.
    """
    if study.tasks:
        return context.sources.open_task(loaded, language, task_options)
    is_first = language == study.names[0]
    task = context.sources.open_task(loaded, None, task_options, data_file=Path(study.files[language]), file_is_held_out=is_first)
    return replace(task, name=f"{task.name} {language}")


def measure_losses_by_language(
    context: StudyContext, subjects: Sequence[StudiedModel], *, n_seeds: int = 1, progress: Progress | None = None
) -> tuple[list[LossRow], DenseAndPrunedEvaluations]:
    """Returns a row for every model, language and block of layers or number of heads, and the evaluations behind them."""
    evaluations: dict[ModelLanguageRemoval, DenseAndPruned] = {}
    rows: list[LossRow] = []
    for subject in subjects:
        allow_other_model(context.run, subject.loaded.model)
        chances = {
            language: score_of_best_constant_answer(subject.loaded.model, task, context.limit) for language, task in subject.tasks.items()
        }
        for language, removal, dense, pruned, untrained in _evaluate_removals_by_language(context, subject, n_seeds, progress):
            evaluations[ModelLanguageRemoval(subject.name, language, removal.name)] = DenseAndPruned(dense, pruned)
            task = subject.tasks[language]
            drop = measure_paired_change(dense, pruned, task, seed=context.seed)
            share = share_above_chance_left(dense, pruned, task, chances[language], seed=context.seed)
            names = subject.name, language, removal.kind, removal.name
            before = None if untrained is dense or subject.is_untrained else untrained.score
            scores = pruned.loss, pruned.value, dense.n_examples
            rows.append(LossRow(*names, dense.score, *scores, drop, share, drop.score.p, untrained=before))
    return add_q_values(rows), evaluations


@dataclass(frozen=True, slots=True)
class Removal:
    """What is removed from a model: the heads of some layers by gates, or single heads by a cut, with one model for every seed."""

    kind: str
    name: str
    models: tuple[nn.Module, ...]
    heads: Sequence[Head] = ()


class RemovalInLanguage(NamedTuple):
    """A removal in one language: the dense model after the same training, the pruned one, and the dense one before any training."""

    language: str
    removal: Removal
    dense: Evaluation
    pruned: Evaluation
    untrained: Evaluation


def _evaluate_removals_by_language(
    context: StudyContext, subject: StudiedModel, n_seeds: int, progress: Progress | None
) -> Iterator[RemovalInLanguage]:
    """Yields every removal in every language.

    Pruned models choose their heads on the first task. Where they are trained, no layers are removed: that would be another, untrained model.
    """
    run, model, n_heads = context.required_run, subject.loaded.model, len(subject.loaded.heads)
    reading: Any = {"limit": context.limit, "batch_size": context.batch_size}
    trains = any(request.recover is not None for request in subject.requests)
    groups = [] if trains else group_layers(subject.loaded.heads, (THIRD, LAYER))
    removals = [Removal(group.kind, group.name, (model,), group.heads) for group in groups]
    pruning = Pruning(run, model, next(iter(subject.tasks.values())), limit=context.limit, command=context.command, seed=context.seed)
    device, trained = next(model.parameters()).device, []
    for request in subject.requests:
        by_seed = [replace(request, seed=request.seed + number) for number in range(_count_needed_seeds(request, n_seeds))]
        artifacts, loaded = zip(*map(pruning.load_or_make_model, by_seed), strict=True)
        models = tuple(model.to(device).eval() for model in loaded)
        if request.recover is not None and not trained:  # the dense model after the same training
            dense_requests = [replace(each, method=Pruner.parse("random"), budget=Budget(keep=n_heads)) for each in by_seed]
            trained = [pruning.load_or_make_model(dense_request)[1].to(device).eval() for dense_request in dense_requests]
        name = f"{len(PrunedRecord.from_artifact(artifacts[0]).removed)} of {n_heads} heads by {request.label}"
        removals.append(Removal(HEADS, name, models))
    n_finished, total = 0, len(subject.tasks) * len(removals)
    for language, task in subject.tasks.items():
        dense = evaluate_without(run, f"{subject.name}, {language}: dense", model, task, (), **reading)
        tuned = [evaluate_without(run, f"{subject.name}, {language}: dense, fine-tuned", each, task, (), **reading) for each in trained]
        dense_tuned = average_evaluations(tuned, task) if tuned else dense
        for removal in removals:
            label = f"{subject.name}, {language}: without {removal.name}"
            evaluated = [evaluate_without(run, label, each, task, removal.heads, **reading) for each in removal.models]
            pruned = evaluated[0] if len(evaluated) == 1 else average_evaluations(evaluated, task)
            n_finished += 1
            if progress is not None:
                progress(n_finished, total)
            yield RemovalInLanguage(language, removal, dense_tuned, pruned, dense)


def compare_languages_with_first(evaluations: DenseAndPrunedEvaluations, subject: StudiedModel) -> list[LanguageGap]:
    """Returns, by removal, the rise of the loss in each further language minus that in the first: different examples, so Welch's t."""
    first, *others = subject.tasks
    removals = [removal for model, language, removal in evaluations if (model, language) == (subject.name, first)]
    rows = []
    for language in others:
        for removal in removals:
            pairs = [evaluations[ModelLanguageRemoval(subject.name, name, removal)] for name in (language, first)]
            rises = [pruned.losses - dense.losses for dense, pruned in pairs]
            test: Any = stats.ttest_ind(*rises, equal_var=False)
            low, high = test.confidence_interval()
            varies = rises[0].std() + rises[1].std() > 0
            gap = float(rises[0].mean() - rises[1].mean())
            ends = (float(low), float(high), float(test.pvalue)) if varies else (gap, gap, 1.0)
            rows.append(LanguageGap(subject.name, language, first, removal, gap, *ends))
    return add_q_values(rows)


def subtract_share_lost_by_second_model(
    evaluations: DenseAndPrunedEvaluations, first: StudiedModel, second: StudiedModel, *, limit: int | None = None, seed: int = 0
) -> list[ModelGap]:
    """Returns the share of its score above chance that the first model loses minus that of the second, in every language that both read.

    A pair with a model that is not above chance has no row.

    Raises:
        DataError: the models read different examples.
    """
    rows = []
    for name, language, removal in list(evaluations):
        if name != first.name or ModelLanguageRemoval(second.name, language, removal) not in evaluations:
            continue
        pairs = (
            evaluations[ModelLanguageRemoval(name, language, removal)],
            evaluations[ModelLanguageRemoval(second.name, language, removal)],
        )
        if pairs[0][0].n_examples != pairs[1][0].n_examples:
            raise DataError(f"{first.name} and {second.name} read different examples of {language}; give both the same task and limit")
        chances = [score_of_best_constant_answer(subject.loaded.model, subject.tasks[language], limit) for subject in (first, second)]
        shares = [
            share_above_chance_left(*pair, first.tasks[language], chance, seed=seed).remaining
            for pair, chance in zip(pairs, chances, strict=True)
        ]
        if chances[0] is None or chances[1] is None or shares[0] is None or shares[1] is None:
            continue
        gap = lost_share_of_first_minus_second(*pairs, first.tasks[language], (chances[0], chances[1]), seed=seed)
        lost = 1 - shares[0].difference, 1 - shares[1].difference
        rows.append(ModelGap(language, removal, *lost, *gap.interval, gap.p))
    return add_q_values(rows)
