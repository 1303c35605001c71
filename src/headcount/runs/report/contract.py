"""The data of the report page as Python types, under the names and in the fields of web/src/contract.ts, where each field is explained.

They describe the JSON of the page and nothing else; a missing number is None. Use them through the module: `contract.Score`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypedDict

from headcount.core.study_result import Cell

Maybe = float | None
HeadNumber = int


class RunModel(TypedDict):
    """The model of a run."""

    name: str
    class_name: str
    model_type: str
    n_parameters: int
    weights: str


class Block(TypedDict):
    """One attention block: a row of a map."""

    path: str
    kind: str
    stack: str
    layer: int
    heads: list[HeadNumber]
    kv_group: list[int] | None


class Score(TypedDict):
    """One number per head that a map can be coloured by."""

    name: str
    about: str
    kind: Literal["importance", "description"]
    higher_is_keep: bool
    values: list[Maybe]
    stderr: list[Maybe] | None
    low: list[Maybe] | None
    high: list[Maybe] | None
    significant: list[bool] | None
    n_examples: int | None
    removal_order: list[HeadNumber] | None
    group_removal_order: list[list[HeadNumber]] | None


class Verdicts(TypedDict):
    """What removing each head alone costs at most, and which heads are safe then."""

    method: str
    unit: Literal["nats", "points"]
    tolerance: float
    clip: float
    level: float
    n_examples: int
    n_documents: int | None
    n_needed: int
    n_missing: int
    reason: str
    cost: list[Maybe]
    bound: list[Maybe]
    q: list[Maybe]
    safe: list[bool | None]


class Roles(TypedDict):
    """Which role each head has, and the statistics of every tested head and role."""

    names: list[str]
    about: list[str]
    letters: list[str]
    labels: list[list[int]]
    rows: dict[str, list[Any]]
    curves: list[dict[str, Any]]
    swapped: dict[str, Any] | None
    definition: str
    best: list[dict[str, Any]]
    relations: list[Relation]
    n_sentences: int | None
    tau: float
    alpha: float
    skipped: list[str]


class Relation(TypedDict):
    """The best head of a dependency relation against the best fixed offset."""

    role: int
    head: HeadNumber
    accuracy: Maybe
    baseline: Maybe
    baseline_offset: int | None
    difference: Maybe
    low: Maybe
    high: Maybe
    q: Maybe
    n: int
    holds: bool


class Dense(TypedDict):
    """The dense model in the curves."""

    value: float
    loss: float
    n_examples: int
    low: Maybe
    high: Maybe
    parameters: int
    bytes: int
    flops: int
    kv_bytes_per_token: int
    tokens: int


class Point(TypedDict):
    """One pruned model, measured."""

    id: str
    method: str
    is_random: bool
    is_trained: bool
    keep: int
    seed: int
    value: float
    loss: float
    difference: float
    low: Maybe
    high: Maybe
    bound: Maybe
    bound_text: str
    procedure: str
    margin: str
    verdict: str | None
    right_to_wrong: int | None
    wrong_to_right: int | None
    loss_difference: Maybe
    is_repaired: bool
    removed: list[HeadNumber]
    parameters: int
    bytes: int
    flops: int
    kv_bytes_per_token: int
    command: str


class ChosenPoint(TypedDict):
    """The point that the summary is about."""

    point: str
    verdict: str | None


class TestedPoint(TypedDict):
    """One of the sizes that were tested in order, by its point."""

    point: str
    keep: int
    bound_text: str
    verdict: str | None


class Curves(TypedDict):
    """Quality and cost of pruned models by number of heads, against the dense model."""

    metric: str
    higher_is_better: bool
    dense: Dense
    points: list[Point]
    margin: str
    by_size: list[str]
    sizes: list[TestedPoint]
    chosen: ChosenPoint | None
    unit: int
    commands: dict[str, str]


class BenchRow(TypedDict):
    """The time of one forward pass of a model, measured side by side with its dense model."""

    of: str
    point: str | None
    method: str | None
    keep: int | None
    seed: int | None
    name: str
    batch: int
    length: int
    seconds: float
    low: float
    high: float
    speedup: float
    speedup_low: Maybe
    speedup_high: Maybe
    rounds: int
    is_noisy: bool
    is_apart: bool
    is_odd: bool


class Attention(TypedDict):
    """Attention maps of a few sentences."""

    sentences: list[Mapping[str, Any]]
    maps: list[list[str | None]]
    included: list[list[int] | None]


class PageTable(TypedDict):
    """A table that is shown as it is."""

    name: str
    about: str
    columns: list[str]
    rows: Sequence[Sequence[Cell]]


class StudyColumn(TypedDict):
    """A column of a study's table: the unit and the format of its numbers, and the columns with the ends of their intervals."""

    name: str
    unit: str
    format: str
    interval: list[str] | None


class StudyTable(TypedDict):
    """A table of a study, or of a paper as published."""

    name: str
    title: str
    columns: list[StudyColumn]
    rows: Sequence[Sequence[Cell]]
    is_printed: bool


class StudyResultData(TypedDict):
    """What a study measured; figures are those of `headcount.core.figure` as plain data."""

    study: str
    sentence: str
    notes: list[str]
    tables: list[StudyTable]
    figures: list[Mapping[str, Any]]


class StudyPage(TypedDict):
    """A study of the run."""

    name: str
    about: str
    command: str
    conditions: list[str]
    result: StudyResultData


class PaperItem(TypedDict):
    """An experiment of a paper: its result, or why there is none, and what the paper reports."""

    id: str
    title: str
    part: str
    reason: str
    command: str
    result: StudyResultData | None
    published: StudyTable | None


class PaperPage(TypedDict):
    """A paper on the model of the run."""

    name: str
    title: str
    bibtex: str
    command: str
    conditions: list[str]
    items: list[PaperItem]


class RunData(TypedDict):
    """Everything that one run folder holds, by kind of artifact."""

    name: str
    command: str
    task: str | None
    created: str
    updated: str
    seed: int
    model: RunModel
    versions: dict[str, str]
    machine: dict[str, str | float | None]
    config: dict[str, Any]
    data: dict[str, str]
    heads: list[str]
    blocks: list[Block]
    scores: list[Score]
    verdicts: Verdicts | None
    roles: Roles | None
    curves: Curves | None
    bench: list[BenchRow]
    profiles: dict[str, Any] | None
    attention: Attention | None
    attention_left_out: bool
    tables: list[PageTable]
    studies: list[StudyPage]
    papers: list[PaperPage]
    summary: list[str]
    warnings: list[str]


class ScoreDifference(TypedDict):
    """A score that both runs have: B − A of every head, and the rank correlation."""

    name: str
    difference: list[Maybe]
    significant: list[bool] | None
    spearman: Maybe
    low: Maybe
    high: Maybe


class RoleChange(TypedDict):
    """A head whose roles differ between two runs."""

    head: HeadNumber
    a: list[int]
    b: list[int]


class RolesOnly(TypedDict):
    """Roles that were tested in one of two runs only."""

    a: list[str]
    b: list[str]


class Outcomes(TypedDict):
    """The dense models of two runs on the same examples."""

    both: int
    only_a: int
    only_b: int
    neither: int
    p: Maybe
    test: str
    metric: str
    a: float
    b: float


class Setting(TypedDict):
    """An entry of configuration, model or data that differs between two runs."""

    key: str
    a: str
    b: str


class RunComparison(TypedDict):
    """The comparison of two runs: B − A."""

    title: str
    scores: list[ScoreDifference]
    roles: list[RoleChange] | None
    roles_only: RolesOnly
    outcomes: Outcomes | None
    config: list[Setting]
    warnings: list[str]


class LiveRunStatus(TypedDict):
    """Whether the model of a served run is available; if not, the reason."""

    id: str
    can_run: bool
    why_not: str


class Live(TypedDict):
    """The connection of a page to `headcount serve`."""

    token: str
    runs: list[LiveRunStatus]


class Report(TypedDict):
    """The whole page: one run, or two that are compared."""

    schema: int
    runs: list[RunData]
    comparison: RunComparison | None
    left_out: list[str]
    live: Live | None
