from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from typing import Literal

from headcount.core.errors import OptionError
from headcount.core.options import option
from headcount.core.study_result import StudyResult
from headcount.studies import _measure
from headcount.studies._base import Effort, Study, StudyContext, StudyInfo, parse_name_value_pairs
from headcount.studies._language_parts import build_language_parts, describe_dense_models
from headcount.studies._parts import choose_part


@dataclass(frozen=True)
class Languages(Study):
    """Do languages need the same layers, and does a multilingual model suffer more from pruning than a monolingual one?

    Budhraja et al. 2021 on multilingual BERT: fine-tune on one language, prune, evaluate on each. Heads are chosen on the first language alone;
    blocks of layers are gated away. Of files, those after the first are read in full, since nothing is chosen on them. Drops are paired with the
    dense model on the same examples; against a monolingual model the relative drops are compared on the examples that both read. With `fine_tune`
    the models are trained on the first language before (zero-shot transfer to the others). With `recover` they are pruned first and then trained,
    the dense model too, and no layers are removed. A file of groups adds contrasts between language families and the rank correlation with the size
    of the pre-training corpus. With `other_tasks` the two models are also compared on further tasks, each pruned by its own data.
    """

    _: KW_ONLY
    tasks: tuple[str, ...] = option((), "The same task in each language, one or more; heads are chosen (and trained) on the first")
    languages: tuple[str, ...] = option((), "Instead of tasks: a file of the task in each language, as NAME=FILE, such as en=en.tsv")
    groups: str = option("", "A csv file with the columns language, family and size, for contrasts between groups of languages")
    against: str | None = option(None, "A monolingual model, for the tasks that it can read")
    shared: tuple[str, ...] = option((), "The tasks that the other model reads; by default the first")
    other_tasks: tuple[str, ...] = option(
        (), "Further tasks that both models are compared on: TASK, or MODEL=OTHER=TASK for two other models"
    )
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
    show: Literal["all", "models", "transfer", "layers", "families", "sizes", "trained"] = option("all", "What the result holds")
    info = StudyInfo(paper="Budhraja et al. 2021", needs=frozenset({"model", "run"}), optional=frozenset({"task"}))

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "tasks", tuple(dict.fromkeys(self.tasks)))
        if bool(self.tasks) == bool(self.languages):
            raise OptionError("name the task in one language or more: either tasks, or languages as NAME=FILE")
        names = self.names  # raises for a language that is not NAME=FILE
        if self.other_tasks and self.against is None:
            raise OptionError("other_tasks compares two models, so it goes with against; name the other model")
        if self.shared and self.against is None:
            raise OptionError("shared names the tasks of the other model, so it goes with against; name that model or leave shared out")
        if self.show == "models" and self.against is None:
            raise OptionError("show=models compares two models; name the other one with against")
        if self.show in ("families", "sizes") and not self.groups:
            raise OptionError(f"show={self.show} needs the languages' groups; name a csv file with groups")
        if self.show == "trained" and self.recover is None:
            raise OptionError("show=trained needs a training after pruning; say how long with recover")
        if self.show == "layers" and self.recover is not None:
            raise OptionError("layers are removed from models that are not trained after pruning; leave recover out")
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
        _measure.languages.check_language_inputs(self, context)

    @property
    def trains_new_head(self) -> bool:
        """Whether models are fine-tuned after pruning, the dense one too."""
        return self.recover is not None

    def measure(self, context: StudyContext) -> StudyResult:
        """Returns what every model loses in every language without layers or heads, compared between languages and between models."""
        losses = _measure.languages.measure_languages(self, context)
        parts = build_language_parts(losses, self.names[0], is_trained=self.recover is not None)
        part = choose_part(parts, self.show)
        most = "" if context.limit is None else f", at most {context.limit}"
        file_note = f"Heads are chosen on {self.names[0]}; of every other language all rows of the file are read{most}."
        return StudyResult(
            study=str(self),
            tables=part.tables,
            sentence=part.sentence,
            notes=(*((file_note,) if self.files else ()), *describe_dense_models(losses, part.tables)),
            figures=part.figures,
            measurements={
                **losses.request,
                "rows": [row.to_dict() for row in losses.rows],
                "between languages": [asdict(row) for row in losses.between],
                "against": [asdict(row) for row in losses.gaps],
                "families": [asdict(row) for row in losses.contrasts],
                "sizes": [asdict(row) for row in losses.trends],
            },
        )
