from __future__ import annotations

import hashlib
from dataclasses import KW_ONLY, dataclass

from headcount.core.errors import PlanError
from headcount.core.heads import Head, HeadIndex
from headcount.core.options import option
from headcount.core.plan import Plan
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo


@dataclass(frozen=True)
class PlanPruner(Pruner):
    """Plan: heads that were chosen elsewhere go, such as by hand, on another task, or by another program.

    The named heads go, or with `complement` all others. A budget beside them is refused, since they say how many
    stay. Budhraja et al. 2020 compare a choice with its complement.
    """

    _: KW_ONLY
    removed: tuple[str, ...] = option((), "The heads that go, such as L0H3+L2H1; they decide how many stay")
    complement: bool = option(False, "Remove all other heads instead")
    info = PrunerInfo("Budhraja et al. 2020", size_option="removed")

    def __post_init__(self) -> None:
        super().__post_init__()
        plan = Plan.removing(self.removed)
        object.__setattr__(self, "removed", tuple(map(str, plan.removed)))

    @property
    def label(self) -> str:
        """The pruner in tables: how many heads are named, and a hash of their names, which tells plans apart."""
        digest = hashlib.sha256("+".join(self.removed).encode()).hexdigest()[:4]
        return f"{'complement of a plan' if self.complement else 'plan'} of {len(self.removed)} heads ({digest})"

    def plan(self, heads: HeadIndex) -> Plan:
        """Returns the plan for the heads of a model.

        Raises:
            PlanError: no head is named, the model lacks one, or a cut cannot carry the plan out.
        """
        if not self.removed:
            raise PlanError("a plan needs the heads that go; name them with the option removed, such as plan(removed=L0H3+L2H1)")
        plan = Plan.removing(self.removed)
        plan.check(heads)
        if self.complement:
            named = frozenset(map(Head.parse, self.removed))
            plan = Plan.removing([head for head in heads.heads if head not in named])
            plan.check(heads)
        return plan

    def check_heads(self, heads: HeadIndex) -> None:
        """Raises PlanError where a cut of a model cannot carry the plan out."""
        self.plan(heads)

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan."""
        plan = self.plan(context.heads)
        clash = sorted(context.budget.protected.intersection(plan.removed))
        if clash:
            raise PlanError(f"{', '.join(map(str, clash))} is protected and cannot be removed; take it out of one of the two lists")
        return Choice(plan)
