"""The heads that stay in pruned models, by kind of attention and by layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from headcount.core.survivors import mean_survivors_by_kind
from headcount.studies._base import StudyContext
from headcount.studies._grid import make_pruning, run_grid
from headcount.studies._measure.pruning_curve import build_study_requests
from headcount.studies._results import describe_study_run
from headcount.workflows.grid import Grid

if TYPE_CHECKING:
    from headcount.studies.kept import Kept


@dataclass(frozen=True, slots=True)
class KeptRow:
    """The survivors of one method at one number of heads: by kind and by layer as means over seeds, the fewest and the most of a seed
    by kind, and their addresses for every seed."""

    method: str
    n_kept: int
    n_removed: int
    seeds: tuple[int, ...]
    by_kind: Mapping[str, float]
    by_layer: Mapping[str, float]
    range_by_kind: Mapping[str, tuple[float, float]]
    survivors: tuple[tuple[str, ...], ...]

    def to_dict(self) -> dict[str, object]:
        """Returns the row as plain data."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class KeptHeads:
    """The heads of the dense model by kind and by layer, and a row for every pruned one."""

    by_kind: dict[str, int]
    by_layer: dict[str, int]
    rows: list[KeptRow]


def prune_and_count_kept_heads(study: Kept, context: StudyContext) -> KeptHeads:
    """Prunes the model of a study by every method to every size, and counts the heads that stay."""
    specs = build_study_requests(study, context)
    describe_study_run(context, context.loaded, {"study": study.name, "methods": list(study.methods), "seeds": study.seeds})
    return count_kept_heads_in_grid(run_grid(context, make_pruning(context), specs))


def count_kept_heads_in_grid(grid: Grid) -> KeptHeads:
    """Returns the heads that stay at every point of a grid."""
    blocks, everything = grid.heads.blocks, [frozenset(grid.heads)]
    rows = []
    for point in grid.points:
        survivors = tuple(tuple(str(head) for head in grid.heads if head in heads) for heads in point.survivors)
        by_kind, by_layer = mean_survivors_by_kind(blocks, point.survivors), mean_survivors_by_kind(blocks, point.survivors, by_layer=True)
        of_seeds = [mean_survivors_by_kind(blocks, [heads]) for heads in point.survivors]
        ranges = {kind: (min(counts[kind] for counts in of_seeds), max(counts[kind] for counts in of_seeds)) for kind in by_kind}
        n_removed = len(grid.heads) - point.n_kept
        rows.append(KeptRow(point.method, point.n_kept, n_removed, point.seeds, by_kind, by_layer, ranges, survivors))
    dense = [
        {key: round(number) for key, number in mean_survivors_by_kind(blocks, everything, by_layer=layers).items()}
        for layers in (False, True)
    ]
    return KeptHeads(dense[0], dense[1], rows)
