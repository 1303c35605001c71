"""Every law of every kind refuses a method that breaks it: a law without a broken example, or one that nothing enforces, fails here."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from random import Random
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor

import headcount as hc
from headcount.behaviour.base import ProbeRole, Role, RoleInfo, View
from headcount.core.definition import Definition, DefinitionInfo
from headcount.core.errors import ArtifactError, OptionError
from headcount.core.figure import Axis, Line, LineFigure
from headcount.core.files import check_writable, write_atomic
from headcount.core.options import Configurable, option
from headcount.core.registry import KINDS
from headcount.core.role_table import RoleTable
from headcount.core.study_result import Column, StudyResult, Table
from headcount.data.metrics import ACCURACY
from headcount.data.task import Task, pad
from headcount.data.task_builder import TaskBuilder, TaskInfo, TaskRequest
from headcount.importance.base import BlockImportance, Importance, ImportanceInfo, ScoreContext, WeightImportance
from headcount.importance.methods.output_norm import OutputNorm
from headcount.models.observe import Observation
from headcount.pruning.base import Choice, Plan, PruneContext, Pruner, PrunerInfo
from headcount.studies._base import Study, StudyContext, StudyInfo
from headcount.surgery.export.portable import Portable
from headcount.surgery.export_base import Exported, ExportInfo, ExportTarget
from headcount.testing.kinds import CHECKS, LAWS
from headcount.testing.kinds.declaration import DeclarationLaw
from headcount.testing.kinds.definition import DefinitionLaw, measured_table
from headcount.testing.kinds.export_target import ExportLaw
from headcount.testing.kinds.importance import ImportanceLaw
from headcount.testing.kinds.pruner import PrunerLaw
from headcount.testing.kinds.role import RoleLaw
from headcount.testing.kinds.study import StudyLaw
from headcount.testing.kinds.task import TaskLaw
from headcount.testing.laws import LawBroken

KIND_OF_BASE: Mapping[type, str] = {
    Importance: "importance",
    Role: "roles",
    Definition: "definitions",
    Pruner: "pruners",
    TaskBuilder: "tasks",
    ExportTarget: "exports",
    Study: "studies",
}
EXAMPLES: list[Any] = []


@dataclass(frozen=True)
class BrokenExample:
    """A class that breaks one law of its kind. `patched` replaces attributes of `headcount`, for laws that watch the engine of the kind."""

    kind: str
    law: StrEnum
    cls: type[Configurable]
    inputs: Callable[[], Mapping[str, Any]] = dict
    patched: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    text: str = ""

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.law.name}-{self.cls.__name__}"

    def check(self) -> None:
        """Runs the laws of the kind on the class, registered as `broken` meanwhile."""
        registry = KINDS[self.kind]
        with mock.patch.dict(registry._registered):
            registry.register("broken")(self.cls)
            with mock.patch.multiple(hc, **self.patched) if self.patched else mock.patch.dict({}):
                CHECKS[self.kind](self.text or self.cls(), **self.inputs())


def breaks(
    law: StrEnum,
    *,
    inputs: Callable[[], Mapping[str, Any]] = dict,
    text: str = "",
    is_dataclass: bool = True,
    **patched: Callable[..., Any],
) -> Callable[[type], Any]:
    """Lists a class as an example that breaks a law, tried by its `text` or as an object; `patched` are attributes of `headcount`."""

    def decorate(cls: type) -> Any:
        method = as_method(cls) if is_dataclass else cls
        kind = next(kind for base, kind in KIND_OF_BASE.items() if issubclass(cls, base))
        EXAMPLES.append(BrokenExample(kind, law, method, inputs, patched, text))
        return method

    return decorate


def as_method(cls: Any) -> Any:
    """Makes a class a frozen dataclass, documented unless it says that it is not."""
    if "__doc__" not in vars(cls) or vars(cls)["__doc__"] is None:
        cls.__doc__ = "Does what its name says."
    return dataclass(frozen=True)(cls)


def change_weights(model: Any) -> None:
    with torch.no_grad():
        next(iter(model.parameters())).add_(1.0)


calls = itertools.count()
"""A state outside of methods, by which one gives something else each time."""


# Declarations, by the example of definitions


@as_method
class ByAccuracy(Definition):
    """A head has a role if its strongest key is in the sieve for half of the tokens or more."""

    _: KW_ONLY
    share: float = option(0.5, "The least share of tokens", minimum=0, maximum=1)
    info = DefinitionInfo(source="an example", families={"local": ("local",)})

    def relabel(self, table: RoleTable) -> RoleTable:
        rows = tuple(replace(row, has_role=row.accuracy >= self.share) for row in table.rows)
        return replace(table, rows=rows, definition=str(self))


@breaks(DeclarationLaw.TEXT_DESCRIBES_IT, text="no-such-method")
class Unnamed(ByAccuracy): ...


@breaks(DeclarationLaw.IS_FROZEN_DATACLASS, is_dataclass=False)
class Bare(ByAccuracy): ...


@breaks(DeclarationLaw.FIELDS_ARE_OPTIONS)
class WithField(ByAccuracy):
    more: int = 1

    def __post_init__(self) -> None: ...


@breaks(DeclarationLaw.OPTIONS_HAVE_HELP)
class Helpless(ByAccuracy):
    more: int = option(1)


@breaks(DeclarationLaw.HAS_DOCSTRING)
class Undocumented(ByAccuracy):
    __doc__ = ""


@breaks(DeclarationLaw.HAS_INFO)
class OtherInfo(ByAccuracy):
    info = RoleInfo(source="an example")


@breaks(DeclarationLaw.INFO_IS_COMPLETE)
class Sourceless(ByAccuracy):
    info = DefinitionInfo(source="", families={})


@breaks(DeclarationLaw.DATA_GIVE_IT_BACK)
class ForgettingData(ByAccuracy):
    is_strict: bool = option(False, "Whether it is strict")

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name} if self.is_strict else super().to_dict()


@breaks(DeclarationLaw.DATA_GIVE_IT_BACK)
class NoPlainData(ByAccuracy):
    def to_dict(self) -> dict[str, Any]:
        return {"name": self.name, "share": {0.5}}


@breaks(DeclarationLaw.TEXT_GIVES_IT_BACK)
class ForgettingText(ByAccuracy):
    is_strict: bool = option(False, "Whether it is strict")

    def __str__(self) -> str:
        return self.name if self.is_strict else super().__str__()


@breaks(DeclarationLaw.TEXT_GIVES_IT_BACK)
class NoText(ByAccuracy):
    def __str__(self) -> str:
        return "(share"


@breaks(DeclarationLaw.WRONG_VALUES_ARE_REFUSED)
class Unchecked(ByAccuracy):
    def __post_init__(self) -> None: ...


@breaks(DeclarationLaw.WRONG_VALUES_ARE_REFUSED)
class Unbounded(ByAccuracy):
    def __post_init__(self) -> None:
        if not isinstance(self.share, int | float):
            super().__post_init__()


@breaks(DeclarationLaw.WRONG_VALUES_ARE_REFUSED)
class RawRefusal(ByAccuracy):
    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except OptionError as error:
            raise TypeError(str(error)) from error


@breaks(DeclarationLaw.WRONG_VALUES_ARE_REFUSED)
class NamelessRefusal(ByAccuracy):
    def __post_init__(self) -> None:
        try:
            super().__post_init__()
        except OptionError as error:
            raise OptionError("a value is wrong") from error


@breaks(DeclarationLaw.UNKNOWN_OPTIONS_ARE_REFUSED)
class TakesAnything(ByAccuracy):
    @classmethod
    def from_text(cls, arguments: str) -> Any:
        return cls()


# Importances


@as_method
class ByCall(WeightImportance):
    """Gives heads the numbers from 0 on."""

    info = ImportanceInfo(frozenset({"weights"}), True, "nothing", "an example", sees_projection=False)

    def of_model(self, context: ScoreContext) -> Tensor:
        return torch.arange(len(context.heads), dtype=torch.float64)


@breaks(ImportanceLaw.SCORES_A_MODEL)
class Raises(ByCall):
    def of_model(self, context: ScoreContext) -> Tensor:
        raise ValueError("it does not")


@breaks(ImportanceLaw.LEAVES_THE_MODEL)
class ChangesWeights(ByCall):
    def of_model(self, context: ScoreContext) -> Tensor:
        change_weights(context.model)
        return super().of_model(context)


def score_infinitely(model: Any, *_: Any, **__: Any) -> Any:
    heads = hc.HeadMap.of(model)
    return mock.Mock(values=(float("inf"),) * len(heads))


@breaks(ImportanceLaw.IS_FINITE, score=score_infinitely)
class Infinite(ByCall): ...


@breaks(ImportanceLaw.SAME_SEED)
class Changing(ByCall):
    def of_model(self, context: ScoreContext) -> Tensor:
        return super().of_model(context) + next(calls)


@breaks(ImportanceLaw.BATCHES_DO_NOT_MATTER)
class CountsBatch(BlockImportance):
    info = replace(ByCall.info, needs=frozenset({"outputs"}))

    def of_block(self, observation: Observation) -> Tensor:
        n_examples = len(observation.queries)
        return torch.full((n_examples, observation.block.n_heads), float(n_examples), dtype=torch.float64)


@breaks(ImportanceLaw.SILENT_SCORES_ZERO)
class ClaimsToSeeProjection(ByCall):
    info = replace(ByCall.info, sees_projection=True)

    def of_model(self, context: ScoreContext) -> Tensor:
        return super().of_model(context) + 1


@breaks(ImportanceLaw.SILENT_RANKS_LAST)
class TurnedOver(OutputNorm):
    info = replace(OutputNorm.info, higher_is_keep=False)


# Roles


@as_method
class Previous(Role):
    """Attends to the token before."""

    info = RoleInfo(source="an example")

    def sieve(self, view: View) -> Tensor:
        return view.ordinary & at_distance(view, 1)


def at_distance(view: View, distance: int) -> Tensor:
    """The keys so many tokens before each query, [1, q, k]."""
    n_queries, n_keys = view.queries.ids.shape[1], view.keys.ids.shape[1]
    return (torch.arange(n_queries)[:, None] - torch.arange(n_keys)[None] == distance)[None]


@breaks(RoleLaw.HAS_SIEVE)
class Sieveless(Role):
    info = Previous.info


@breaks(RoleLaw.IS_TESTED)
class RaisingRole(Previous):
    def sieve(self, view: View) -> Tensor:
        raise ValueError("it does not")


@breaks(RoleLaw.LEAVES_THE_MODEL)
class ChangingProbe(ProbeRole):
    info = Previous.info

    def probe(self, model: Any, seed: int) -> None:
        change_weights(model)

    def sieve(self, view: View) -> Tensor:
        return view.ordinary


@breaks(RoleLaw.SIEVE_IS_MASK)
class FloatSieve(Previous):
    def sieve(self, view: View) -> Tensor:
        return view.ordinary.float()


@breaks(RoleLaw.SIEVE_FITS)
class SmallSieve(Previous):
    def sieve(self, view: View) -> Tensor:
        return view.ordinary[..., :1, :-1]


@breaks(RoleLaw.IS_SHOWN)
class EmptySieve(Previous):
    def sieve(self, view: View) -> Tensor:
        return view.ordinary & False


def measure_nan(*arguments: Any, **options: Any) -> RoleTable:
    table = UNPATCHED_ROLES(*arguments, **options)
    return replace(table, rows=tuple(replace(row, bias=float("nan")) for row in table.rows))


UNPATCHED_ROLES = hc.roles


@breaks(RoleLaw.IS_FINITE, roles=measure_nan)
class Undefined(Previous): ...


@breaks(RoleLaw.SAME_AGAIN)
class DrawingSieve(Previous):
    def sieve(self, view: View) -> Tensor:
        drawn = np.random.default_rng(next(calls)).random(tuple(view.ordinary.shape)) < 0.5
        return view.ordinary & torch.from_numpy(drawn)


@breaks(RoleLaw.BATCHES_DO_NOT_MATTER)
class CountsSentences(Previous):
    def sieve(self, view: View) -> Tensor:
        return view.ordinary & at_distance(view, 1 if len(view.queries.ids) > 3 else 2)


# Definitions


@breaks(DefinitionLaw.FAMILIES_ARE_KNOWN)
class UnknownFamily(ByAccuracy):
    info = DefinitionInfo(source="an example", families={"local": ("no-such-role",)})


@breaks(DefinitionLaw.LABELS_A_TABLE)
class RaisingDefinition(ByAccuracy):
    def relabel(self, table: RoleTable) -> RoleTable:
        raise ValueError("it does not")


@breaks(DefinitionLaw.LEAVES_THE_TABLE, inputs=lambda: {"table": replace(measured_table())})
class WritesIntoTable(ByAccuracy):
    def relabel(self, table: RoleTable) -> RoleTable:
        object.__setattr__(table, "alpha", table.alpha / 2)
        return super().relabel(table)


@breaks(DefinitionLaw.SAME_ROWS)
class DropsRow(ByAccuracy):
    def relabel(self, table: RoleTable) -> RoleTable:
        return super().relabel(replace(table, rows=table.rows[1:]))


@breaks(DefinitionLaw.KEEPS_MEASUREMENTS)
class ChangesBias(ByAccuracy):
    def relabel(self, table: RoleTable) -> RoleTable:
        return super().relabel(replace(table, rows=tuple(replace(row, bias=0.0) for row in table.rows)))


@breaks(DefinitionLaw.KEEPS_THE_TABLE)
class DropsHeads(ByAccuracy):
    def relabel(self, table: RoleTable) -> RoleTable:
        return replace(super().relabel(table), heads=())


@breaks(DefinitionLaw.NAMES_ITSELF)
class NamesAnother(ByAccuracy):
    def relabel(self, table: RoleTable) -> RoleTable:
        return replace(super().relabel(table), definition="voita2019")


def label(table: RoleTable, definition: Definition, labels: Iterator[bool]) -> RoleTable:
    """The table with these labels."""
    rows = tuple(replace(row, has_role=has_role) for row, has_role in zip(table.rows, labels, strict=True))
    return replace(table, rows=rows, definition=str(definition))


@breaks(DefinitionLaw.IS_IDEMPOTENT)
class TurnsLabels(ByAccuracy):
    def relabel(self, table: RoleTable) -> RoleTable:
        return label(table, self, (not row.has_role for row in table.rows))


@breaks(DefinitionLaw.FORGETS_OTHER_LABELS)
class RemembersVoita(ByAccuracy):
    def relabel(self, table: RoleTable) -> RoleTable:
        return label(table, self, (row.accuracy >= 0.5 and table.definition != "voita2019" for row in table.rows))


@breaks(DefinitionLaw.ORDER_DOES_NOT_MATTER)
class FirstRows(ByAccuracy):
    def relabel(self, table: RoleTable) -> RoleTable:
        return label(table, self, (number < len(table) // 2 for number in range(len(table))))


@breaks(DefinitionLaw.IS_MONOTONE)
class WeakHeads(ByAccuracy):
    def relabel(self, table: RoleTable) -> RoleTable:
        return label(table, self, (row.bias < 2 for row in table.rows))


@breaks(DefinitionLaw.FOLLOWS_ITS_THRESHOLD)
class OtherThreshold(ByAccuracy):
    def accuracy_threshold(self, row: Any) -> float:
        return 0.99


# Pruners


@as_method
class LastFirst(Pruner):
    """The last heads go first."""

    info = PrunerInfo(source="an example")

    def choose(self, context: PruneContext) -> Choice:
        return Choice(context.plan([-number for number in range(len(context.heads))], str(self)))


@breaks(PrunerLaw.PRUNES_A_MODEL)
class RaisingPruner(LastFirst):
    def choose(self, context: PruneContext) -> Choice:
        raise ValueError("it does not")


@breaks(PrunerLaw.LEAVES_THE_MODEL)
class ChangingPruner(LastFirst):
    def choose(self, context: PruneContext) -> Choice:
        change_weights(context.model)
        return super().choose(context)


def prune_nothing(model: Any, *arguments: Any, **options: Any) -> Any:
    return replace(UNPATCHED_PRUNE(model, *arguments, **options), model=model)


UNPATCHED_PRUNE = hc.prune


@breaks(PrunerLaw.IS_CARRIED_OUT, prune=prune_nothing)
class NotCarriedOut(LastFirst): ...


@breaks(PrunerLaw.KEEPS_WHAT_WAS_ASKED_FOR)
class RemovesOne(LastFirst):
    def choose(self, context: PruneContext) -> Choice:
        return Choice(Plan.removing(context.heads[:1]))


@breaks(PrunerLaw.KEEPS_WHAT_WAS_ASKED_FOR)
class RemovesOneWhereHeadsAreProtected(LastFirst):
    def choose(self, context: PruneContext) -> Choice:
        return Choice(Plan.removing(context.heads[:1])) if context.budget.protected else super().choose(context)


@breaks(PrunerLaw.SAME_SEED)
class ChangingPlan(LastFirst):
    def choose(self, context: PruneContext) -> Choice:
        sign = (-1) ** next(calls)
        return Choice(context.plan([sign * number for number in range(len(context.heads))], str(self)))


@breaks(PrunerLaw.PROTECTED_HEADS_STAY)
class IgnoresProtection(LastFirst):
    def choose(self, context: PruneContext) -> Choice:
        return Choice(Plan.removing(context.heads[: len(context.heads) - context.keep]))


# Tasks


@as_method
class Parity(TaskBuilder):
    """Whether the first token is an odd one."""

    info = TaskInfo(uses=(), model="AutoModelForSequenceClassification", metric="accuracy")

    def draw(self, seed: int, size: int) -> list[dict[str, Any]]:
        random = Random(seed)
        tokens = [[random.randrange(10, 100) for _ in range(random.randrange(3, 7))] for _ in range(size)]
        return [{"input_ids": ids, "labels": ids[0] % 2} for ids in tokens]

    def build(self, request: TaskRequest) -> Task:
        splits = [self.draw(3 * request.seed + part, min(20, request.limit or 20)) for part in range(3)]
        return Task(request.name, *splits, collate=pad, metric=ACCURACY)


@breaks(TaskLaw.IS_BUILT)
class RaisingTask(Parity):
    def build(self, request: TaskRequest) -> Task:
        raise ValueError("it does not")


@breaks(TaskLaw.IS_BUILT)
class UnknownHead(Parity):
    info = TaskInfo(uses=(), model="AutoModelForNothing", metric="accuracy")


@breaks(TaskLaw.KEEPS_THE_LIMIT)
class IgnoresLimit(Parity):
    def build(self, request: TaskRequest) -> Task:
        return super().build(replace(request, limit=None))


@breaks(TaskLaw.SPLITS_ARE_DISJOINT)
class OneSplit(Parity):
    def draw(self, seed: int, size: int) -> list[dict[str, Any]]:
        return super().draw(0, size)


@breaks(TaskLaw.BATCHES_COLLATE)
class OtherVocabulary(Parity):
    def draw(self, seed: int, size: int) -> list[dict[str, Any]]:
        return [{"input_ids": [10**6, seed, number], "labels": 0} for number in range(size)]


def loss_of_nothing(output: Any, batch: Any) -> Tensor:
    return torch.full((len(batch["labels"]),), torch.nan)


@breaks(TaskLaw.IS_EVALUATED)
class NoLoss(Parity):
    def build(self, request: TaskRequest) -> Task:
        return replace(super().build(request), loss=loss_of_nothing)


def evaluate_to_nan(*arguments: Any, **options: Any) -> Any:
    return replace(UNPATCHED_EVALUATE(*arguments, **options), value=float("nan"))


UNPATCHED_EVALUATE = hc.evaluate


@breaks(TaskLaw.METRIC_IS_FINITE, evaluate=evaluate_to_nan)
class NoMetric(Parity): ...


def loss_of_batch(output: Any, batch: Any) -> Tensor:
    return output.logits.sum(1) + len(batch["labels"])


@breaks(TaskLaw.BATCHES_DO_NOT_MATTER)
class LossOfBatch(Parity):
    def build(self, request: TaskRequest) -> Task:
        return replace(super().build(request), loss=loss_of_batch)


@breaks(TaskLaw.SAME_SEED)
class DrawsAnew(Parity):
    def draw(self, seed: int, size: int) -> list[dict[str, Any]]:
        return super().draw(1000 + next(calls), size)


@breaks(TaskLaw.LEAVES_THE_MODEL)
class ChangingTask(Parity):
    def build(self, request: TaskRequest) -> Task:
        change_weights(request.model)
        return super().build(request)


# Export targets


def weights_of(model: Any) -> bytes:
    return b"".join(tensor.numpy().tobytes() for tensor in model.state_dict().values())


@as_method
class Weights(ExportTarget):
    """The weights alone, one after the other."""

    info = ExportInfo(writes="file")

    def check_path(self, path: Path, *, overwrite: bool) -> None:
        check_writable(path)
        if path.exists() and not overwrite:
            raise ArtifactError(f"{path} exists already; name another file")

    def write(self, model: Any, path: Path, **_: Any) -> Exported:
        write_atomic(path, weights_of(model))
        return Exported(path)


class Unwary(Weights):
    """Checks no path."""

    def check_path(self, path: Path, *, overwrite: bool) -> None: ...


@breaks(ExportLaw.REFUSES_BAD_PATHS)
class RaisesRawErrorOfTheSystem(Unwary):
    def write(self, model: Any, path: Path, **_: Any) -> Exported:
        path.write_bytes(weights_of(model))
        return Exported(path)


@breaks(ExportLaw.REFUSES_BAD_PATHS)
class RaisesRawError(Weights):
    def check_path(self, path: Path, *, overwrite: bool) -> None:
        raise ValueError("no such path")


@breaks(ExportLaw.REFUSES_BAD_PATHS)
class TakesEveryPath(Unwary):
    def write(self, model: Any, path: Path, **_: Any) -> Exported:
        return Exported(path)


@breaks(ExportLaw.REFUSES_BAD_PATHS)
class RunsTheModelFirst(Unwary):
    def write(self, model: Any, path: Path, **_: Any) -> Exported:
        model(input_ids=torch.ones(1, 2, dtype=torch.long))
        super().check_path(path, overwrite=False)
        raise ArtifactError(f"{path} is no path")


@breaks(ExportLaw.WRITES)
class RaisingTarget(Weights):
    def write(self, model: Any, path: Path, **_: Any) -> Exported:
        raise ValueError("it does not")


@breaks(ExportLaw.LEAVES_THE_MODEL)
class ChangingTarget(Weights):
    def write(self, model: Any, path: Path, **_: Any) -> Exported:
        change_weights(model)
        return super().write(model, path)


@breaks(ExportLaw.RETURNS_ITS_PATH)
class ReturnsNothing(Weights):
    def write(self, model: Any, path: Path, **_: Any) -> Any:
        super().write(model, path)


@breaks(ExportLaw.WRITES_WHAT_IT_SAYS)
class NoFolder(Weights):
    info = ExportInfo(writes="folder")


@breaks(ExportLaw.EQUALS_THE_MODEL)
class OtherModel(Portable):
    def write(self, model: Any, path: Path, **options: Any) -> Any:
        other = hc.cut(model, Plan.removing(["L0H0"]))
        return super().write(other, path, **options)


@breaks(ExportLaw.EQUALS_THE_MODEL)
class NoModel(Weights):
    info = ExportInfo(writes="folder")

    def write(self, model: Any, path: Path, **_: Any) -> Exported:
        path.mkdir()
        (path / "config.json").write_text("no JSON")
        return Exported(path)


@breaks(ExportLaw.REFUSES_EXISTING_PATHS)
class Overwrites(Weights):
    def check_path(self, path: Path, *, overwrite: bool) -> None:
        super().check_path(path, overwrite=overwrite or path.suffix == ".broken")


@breaks(ExportLaw.REFUSES_EXISTING_PATHS)
class EmptiesAndRefuses(Weights):
    def check_path(self, path: Path, *, overwrite: bool) -> None:
        if path.suffix == ".broken" and path.exists():
            path.write_bytes(b"")
        super().check_path(path, overwrite=overwrite)


@breaks(ExportLaw.IS_ATOMIC)
class LeavesHalf(Weights):
    def write(self, model: Any, path: Path, **_: Any) -> Exported:
        path.write_bytes(weights_of(model))
        return Exported(path)


@breaks(ExportLaw.IS_ATOMIC)
class HidesTheError(Weights):
    def write(self, model: Any, path: Path, **_: Any) -> Exported:
        try:
            return super().write(model, path)
        except ArtifactError:
            return Exported(path)


# Studies


@as_method
class CountHeads(Study):
    """How many heads are there? An example."""

    info = StudyInfo(paper="an example", needs=frozenset({"model"}))

    def measure(self, context: StudyContext) -> StudyResult:
        return self.count(len(context.loaded.heads))

    def count(self, n_heads: float) -> StudyResult:
        table = Table("heads", (Column("layers"), Column("heads")), ((1, n_heads), (2, 2 * n_heads)))
        return StudyResult(str(self), (table,), f"There are {n_heads} heads.", figures=self.draw(n_heads))

    def draw(self, n_heads: float) -> tuple[LineFigure, ...]:
        return (self.line(n_heads),)

    def line(self, n_heads: float, label: str = "heads", figure: type[LineFigure] = LineFigure) -> LineFigure:
        lines = (Line("heads", (1.0, 2.0), (n_heads, 2 * n_heads)),)
        return figure(name="heads", title="Heads", x=Axis("layers"), y=Axis(label), table="heads", n=None, lines=lines)


@breaks(StudyLaw.REFUSES_OTHER_MODELS)
class TakesEveryModel(CountHeads):
    def measure(self, context: StudyContext) -> StudyResult:
        return self.count(3)


@breaks(StudyLaw.REFUSES_OTHER_MODELS)
class RaisesRawErrorOfOtherModels(CountHeads):
    def measure(self, context: StudyContext) -> StudyResult:
        return self.count(context.loaded.model.config.num_attention_heads)


@breaks(StudyLaw.REFUSES_OTHER_MODELS)
class RunsOtherModels(CountHeads):
    def measure(self, context: StudyContext) -> StudyResult:
        context.loaded.model(input_ids=torch.ones(1, 2, dtype=torch.long))
        return super().measure(context)


@breaks(StudyLaw.REFUSES_OTHER_MODELS)
class RefusesAllByOptions(CountHeads):
    def measure(self, context: StudyContext) -> StudyResult:
        raise OptionError("an option is wrong")


@breaks(StudyLaw.MEASURES)
class RaisingStudy(CountHeads):
    def count(self, n_heads: float) -> StudyResult:
        raise ValueError("it does not")


@breaks(StudyLaw.LEAVES_THE_MODEL)
class ChangingStudy(CountHeads):
    def measure(self, context: StudyContext) -> StudyResult:
        heads = context.loaded.heads
        change_weights(context.loaded.model)
        return self.count(len(heads))


@breaks(StudyLaw.NAMES_ITSELF)
class NamesAnotherStudy(CountHeads):
    def count(self, n_heads: float) -> StudyResult:
        return replace(super().count(n_heads), study="layers")


@breaks(StudyLaw.HAS_TABLES)
class EmptyTable(CountHeads):
    def count(self, n_heads: float) -> StudyResult:
        return StudyResult(str(self), (Table("heads", (Column("heads"),), ()),), "There are heads.")


@breaks(StudyLaw.HAS_SENTENCE)
class NoVerdict(CountHeads):
    def count(self, n_heads: float) -> StudyResult:
        return replace(super().count(n_heads), sentence="")


@breaks(StudyLaw.IS_FINITE)
class InfiniteCell(CountHeads):
    def count(self, n_heads: float) -> StudyResult:
        return StudyResult(str(self), (Table("heads", (Column("heads"),), ((float("inf"),),)),), "There are heads.")


@breaks(StudyLaw.IS_PLAIN)
class NoPlainMeasurements(CountHeads):
    def count(self, n_heads: float) -> StudyResult:
        return replace(super().count(n_heads), measurements={"heads": {n_heads}})


class LongerResult(StudyResult):
    def to_dict(self) -> dict[str, Any]:
        return {**StudyResult.to_dict(self), "more": 1}


@breaks(StudyLaw.IS_PLAIN)
class ForgetsMeasurements(CountHeads):
    def count(self, n_heads: float) -> StudyResult:
        result = super().count(n_heads)
        return LongerResult(result.study, result.tables, result.sentence)


class ForgetfulFigure(LineFigure):
    def to_dict(self) -> dict[str, Any]:
        return {**LineFigure.to_dict(self), "title": "Another title"}


@breaks(StudyLaw.FIGURES_ARE_PLAIN)
class ForgetsTitle(CountHeads):
    def draw(self, n_heads: float) -> tuple[LineFigure, ...]:
        return (self.line(n_heads, figure=ForgetfulFigure),)


@breaks(StudyLaw.FIGURES_HAVE_UNITS)
class NamelessAxis(CountHeads):
    def draw(self, n_heads: float) -> tuple[LineFigure, ...]:
        return (self.line(n_heads, label=""),)


@breaks(StudyLaw.FIGURES_SHOW_TABLES)
class OtherNumbers(CountHeads):
    def draw(self, n_heads: float) -> tuple[LineFigure, ...]:
        return (self.line(n_heads + 0.5),)


@breaks(StudyLaw.SAME_AGAIN)
class CountsAnew(CountHeads):
    def count(self, n_heads: float) -> StudyResult:
        return super().count(n_heads + next(calls))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda example: example.name)
def test_a_broken_law_is_named(example: BrokenExample) -> None:
    with pytest.raises(LawBroken) as caught:
        example.check()
    assert f"breaks the law that {example.law}: " in str(caught.value)


def test_every_law_has_a_broken_example() -> None:
    assert {example.law for example in EXAMPLES} == {law for laws in LAWS.values() for law in laws}


@pytest.mark.parametrize("cls", [ByAccuracy, ByCall, Previous, LastFirst, Parity, Weights, CountHeads], ids=lambda cls: cls.__name__)
def test_what_the_broken_examples_are_made_of_keeps_the_laws(cls: Any) -> None:
    kind = next(kind for base, kind in KIND_OF_BASE.items() if issubclass(cls, base))
    BrokenExample(kind, DeclarationLaw.HAS_INFO, cls).check()
