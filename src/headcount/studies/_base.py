"""What a study is: a frozen dataclass with declared options and `measure`, and the context that it measures in."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

from headcount.core.errors import HeadcountError, OptionError
from headcount.core.options import Configurable
from headcount.core.progress import Progress
from headcount.core.registry import STUDIES

if TYPE_CHECKING:
    from torch import nn

    from headcount.behaviour.base import Corpus
    from headcount.core.study_result import StudyResult
    from headcount.data.task import Task
    from headcount.models.head_map import HeadMap
    from headcount.runs.store import Run
    from headcount.workflows.prune import TrainingEstimate

STEP_BATCH = 32
"""The examples of an optimiser step that efforts are counted in."""
SIGNIFICANT = 0.05
"""The corrected p-value up to which a difference counts as significant."""
ANY_ROLE = "any role"
"""Stands for all roles together in the rows of a study."""
StudyAblation = Literal["zero", "mean", "uniform"]
"""What stands in for removed heads: nothing, their mean output, or uniform attention."""
Input = Literal["model", "task", "text", "run", "comparison"]


@dataclass(frozen=True, slots=True)
class StudyInfo:
    """Facts about a study.

    Attributes:
        paper: The paper and the part of it that holds the experiment.
        needs: The inputs without which it cannot run: a `model`, a `task`, a `text` to measure roles on, a `run` folder that keeps its
            evaluations and models, or the run folder of a finished `comparison`. Every study can keep its result in a run folder.
        optional: Further inputs that it can use.
        measures_time: Whether it measures how long something takes, which is not the same twice.
    """

    paper: str
    needs: frozenset[Input] = frozenset()
    optional: frozenset[Input] = frozenset()
    measures_time: bool = False

    def uses(self, input: Input) -> bool:
        """Whether the study needs an input or can use it."""
        return input in self.needs | self.optional or input == "run"


@dataclass(frozen=True)
class LoadedModel:
    """A model with the name and the folder that it was loaded from; a model that was built in memory has no folder."""

    name: str
    model: nn.Module
    folder: Path | None = None

    @cached_property
    def heads(self) -> HeadMap:
        """The heads of the model."""
        from headcount.models.head_map import HeadMap

        return HeadMap.of(self.model)


class Sources(Protocol):
    """Opens the models, tasks and texts that a study works on."""

    @property
    def task_name(self) -> str:
        """The name of the task that the caller chose; empty if the head of the model decides."""
        ...

    def load_model(self, model_name: str, *, class_from_config: bool = False, new_classes: Sequence[str] = ()) -> LoadedModel:
        """Returns the model of a folder, hub id or embedded name.

        With `class_from_config` its own configuration chooses the class, whatever class the caller chose; with `new_classes` it gets a new,
        untrained classification head for these classes.
        """
        ...

    def read_heads(self, model_name: str) -> HeadMap:
        """Returns the heads of a model without keeping the model."""
        ...

    def find_processor(self, loaded: LoadedModel) -> Any:
        """Returns the tokenizer or image processor of a model; None if it has none."""
        ...

    def read_classes(self) -> tuple[str, ...]:
        """Returns the names of the classes in the data of the caller's task."""
        ...

    def open_task(
        self,
        loaded: LoadedModel,
        task_name: str | None = None,
        options: Mapping[str, str] | None = None,
        *,
        data_file: Path | None = None,
        file_is_held_out: bool = False,
    ) -> Task:
        """Returns the task of the caller, or the named one, for a model.

        `options` are further options of the task; `data_file` holds its data in place of those that the caller named. With `file_is_held_out`
        it stands in for those held out alone, where the caller named some for training and some held out. A name that is a file stands for the
        task of the caller on the data in it.
        """
        ...

    @property
    def has_text_or_task(self) -> bool:
        """Whether the caller named a text, or a task whose texts can be read."""
        ...

    def open_corpus(self, loaded: LoadedModel, task: Task | None = None) -> Corpus | None:
        """Returns the text of the caller, or else of the task, aligned with the tokens of a model; None if there is neither."""
        ...

    @property
    def text_fingerprint(self) -> str:
        """What identifies the content of the text that the caller named; empty if it named none."""
        ...

    def record_to_reopen(self, model_name: str) -> dict[str, Any]:
        """Returns what it takes to open the model of that name and the task again, as plain data."""
        ...


def silent_progress(description: str, unit: str = "examples") -> AbstractContextManager[Progress]:
    """Stands in for the progress of a caller that shows none."""
    return nullcontext(lambda n_finished, total: None)


@dataclass(frozen=True)
class StudyContext:
    """What a study measures on.

    Attributes:
        model: The model, or its name; None for studies that read run folders alone.
        sources: Opens further models, the task and the text.
        run: The run folder that keeps finished work, if there is one.
        seed: The seed of everything that is drawn at random.
        limit: The most examples read of each split; None for all.
        batch_size: Examples per batch; None chooses the largest that fits.
        new_head: Whether the model, which is pre-trained alone, gets an untrained head for the classes of the task, drawn by the seed.
        command: The command line that is running; empty in Python.
        progress: Called with a description of the work that begins and the unit it is counted in.
        note: Called with sentences about what was decided.
        note_training: Called with the training that lies ahead, before it begins.
    """

    sources: Sources
    model: LoadedModel | str | None = None
    run: Run | None = None
    seed: int = 0
    limit: int | None = None
    batch_size: int | None = None
    new_head: bool = False
    command: str = ""
    progress: Callable[..., AbstractContextManager[Progress]] = silent_progress
    note: Callable[[str], None] = field(default=lambda sentence: None)
    note_training: Callable[[TrainingEstimate], None] = field(default=lambda estimate: None)

    @cached_property
    def loaded(self) -> LoadedModel:
        """The model of the study, loaded when it is first used."""
        if self.model is None:
            raise OptionError("this study works on a model; name one")
        if not isinstance(self.model, str):
            return self.model
        if not self.new_head:
            return self.sources.load_model(self.model)
        import torch  # a context alone needs none

        classes = self.sources.read_classes()
        torch.manual_seed(self.seed)
        return self.sources.load_model(self.model, new_classes=classes)

    @cached_property
    def task(self) -> Task:
        """The task of the study, opened when it is first used."""
        return self.sources.open_task(self.loaded)

    @cached_property
    def text_problem(self) -> HeadcountError | OSError | None:
        """Why the text of the caller, or of the task, cannot be read with the tokenizer of the model; None if it can, or if there is none."""
        try:
            if self.sources.has_text_or_task:
                self.sources.open_corpus(self.loaded, self.task)
        except (HeadcountError, OSError) as error:
            return error
        return None

    @property
    def model_name(self) -> str:
        """The name of the model; empty if there is none."""
        return self.model if isinstance(self.model, str) else "" if self.model is None else self.model.name

    @property
    def required_run(self) -> Run:
        """The run folder, for a study that needs one."""
        if self.run is None:
            raise OptionError("this study keeps its evaluations and models in a run folder; name one with out")
        return self.run


@dataclass(frozen=True, slots=True)
class Effort:
    """How much work a study is.

    Attributes:
        passes: Forward passes of one example each; forward and backward are three.
        steps: Optimiser steps of `STEP_BATCH` examples; one of fewer examples is that share of a step.
        seconds: Further time, which does not depend on how fast the model is.
        shared: Work whose result the run keeps, by what identifies it: studies of one run that need the same do it once.
    """

    passes: float = 0.0
    steps: float = 0.0
    seconds: float = 0.0
    shared: Mapping[Hashable, Effort] = field(default_factory=dict)

    def __add__(self, other: Effort) -> Effort:
        shared = {**self.shared, **other.shared}
        return Effort(self.passes + other.passes, self.steps + other.steps, self.seconds + other.seconds, shared)

    def with_shared_work(self) -> Effort:
        """Returns all work, that which is shared included, as numbers alone."""
        parts = [self, *self.shared.values()]
        return Effort(sum(part.passes for part in parts), sum(part.steps for part in parts), sum(part.seconds for part in parts))


@dataclass(frozen=True)
class Study(Configurable):
    """An experiment of a paper. Its fields are its options, its docstring is its documentation."""

    info: ClassVar[StudyInfo]

    @abstractmethod
    def measure(self, context: StudyContext) -> StudyResult:
        """Runs the experiment and returns its tables, its verdict and every measurement."""

    def effort(self, context: StudyContext) -> Effort:
        """Returns how much work `measure` is, for an estimate of its time; nothing where that is not known."""
        return Effort()

    def check_inputs(self, context: StudyContext) -> None:
        """Raises an error where a file, model or task that an option names cannot be used with the model, before any work. By default all can."""

    @property
    def trains_new_head(self) -> bool:
        """Whether a new head of the model, which is untrained, is trained before predictions are judged.

        By default it need not be where the study takes no task.
        """
        return "task" not in self.info.needs

    @classmethod
    def parse(cls, study: str | Study) -> Study:
        """Returns the study of a text such as `layers(how=mean)`; a study is returned as it is.

        Raises:
            UnknownName: no study of that name is registered, or it has no such option.
            OptionError: a value has the wrong type or is out of range.
        """
        return STUDIES.parse(study, Study)


def family_label_of_head(roles_of_head: Iterable[str]) -> str:
    """Returns the family of a head with these roles, the part of a role before its colon: `no role`, or `several` for roles of more than one."""
    families = sorted({role.partition(":")[0] for role in roles_of_head})
    return families[0] if len(families) == 1 else "several" if families else "no role"


def parse_name_value_pairs(texts: Sequence[str], option_name: str) -> dict[str, str]:
    """Returns the values of texts of the form NAME=VALUE by name; raises OptionError for any other text, and for a name that comes twice."""
    values: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise OptionError(f"{option_name} must be NAME=VALUE; got {text!r}")
        if name in values:
            raise OptionError(f"{option_name} must name {name} once; got {values[name]!r} and {value!r}")
        values[name] = value
    return values


def load_options_of_new_head(classes: Sequence[str]) -> dict[str, Any]:
    """Returns the arguments of `headcount.load` that give a model a new classification head for these classes."""
    names = {"id2label": dict(enumerate(classes)), "label2id": {name: number for number, name in enumerate(classes)}}
    return {"auto": "AutoModelForSequenceClassification", "new_layers": True, "model_kwargs": names}
