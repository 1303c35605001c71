"""The smallest certified model: sizes from large to small, each certified on the report split, up to the first that fails."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch import nn

from headcount.core.certificate import TaskCertificate, certify_task
from headcount.core.errors import DataError, NotCertified, PlanError
from headcount.core.margin import Margin
from headcount.core.plan import nearest_count_of_whole_units
from headcount.core.progress import Progress
from headcount.core.sizes import certify_until_a_size_fails
from headcount.data.evaluate import evaluate
from headcount.data.task import Data, Task
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap
from headcount.pruning.prune import Pruned, check_request, prune_by_spec
from headcount.pruning.spec import PruneSpec

SHARES = (0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1)
"""The shares of the heads, in whole KV groups, that are tested where no size is named."""


def list_kept_counts_to_test(spec: PruneSpec, model: nn.Module, heads: HeadMap) -> list[int]:
    """Returns the numbers of heads, most first, that a request is tested at where it names none.

    Sizes at the small end that protected heads or a floor rule out are left out.

    Raises:
        PlanError: not even the largest size can be carried out.
    """
    blocks = {block.name for block in heads.blocks if not spec.kinds or block.kind in spec.kinds}
    units = [len(unit) for unit in heads.units() if heads.block_of(unit[0]).name in blocks]
    spec.budget_for(heads)
    counts = sorted({nearest_count_of_whole_units(share, units) for share in SHARES} - {sum(units)}, reverse=True)
    sizes: list[int] = []
    for n_kept in counts:
        try:
            check_request(spec.resized(n_kept), model, heads)
        except PlanError:
            if not sizes:
                raise
            break
        sizes.append(n_kept)
    if not sizes:
        raise PlanError(f"this model has no smaller size to test: it has {len(units)} unit of heads that stay or go together")
    return sizes


def prune_to_margin(  # noqa: PLR0913 - four arguments, the rest by name
    model: nn.Module,
    data: Data,
    spec: PruneSpec,
    margin: Margin,
    *,
    heads: HeadMap,
    kept_counts: list[int] | None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> Pruned:
    """Returns the smallest certified model with `kept_counts` heads, or, where that is None, the model of the request, both with their certificate.

    Raises:
        NotCertified: not even the largest size is certified.
        DataError: the data are no Task, whose report split is read.
    """
    if not isinstance(data, Task):
        raise DataError("a margin is certified on the report split of a Task; open one with hc.open_task, or leave margin out")
    inner, total, shared = unwrap(model), data.metric.total if data.metric else None, {}
    dense = evaluate(inner, data)
    certify_task(dense, dense, total, margin, seed=spec.seed)

    def prune_and_certify(request: PruneSpec, progress: Progress | None) -> Pruned:
        name = f"{request.limits.keep}"
        checkpoints = folder / name if folder else None
        pruned = prune_by_spec(inner, data, request, heads=heads, folder=checkpoints, progress=progress, shared=shared)
        return replace(pruned, certificate=certify_task(dense, evaluate(pruned.model, data), total, margin, seed=spec.seed))

    if kept_counts is None:
        return prune_and_certify(spec, progress)
    certified: Pruned | None = None

    def prune_and_certify_size(n_kept: int) -> TaskCertificate:
        nonlocal certified
        pruned = prune_and_certify(spec.resized(n_kept), None)
        assert pruned.certificate is not None
        if pruned.certificate.verdict == "certified":
            certified = pruned
        if progress is not None:
            progress(kept_counts.index(n_kept) + 1, len(kept_counts))
        return pruned.certificate

    tests = certify_until_a_size_fails(kept_counts, prune_and_certify_size)
    if certified is None:
        quality = tests[0].certificate.quality
        raise NotCertified(
            f"no size is certified: with {tests[0].n_kept} heads, the largest size tested, {quality.quantity} may be worse by "
            f"{quality.bound:.3g}, and the margin of {margin} is {quality.margin_size:.3g}; allow a larger margin, or evaluate on more examples"
        )
    return replace(certified, sizes=tuple(test.to_record() for test in tests))
