from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from transformers import AutoTokenizer

from headcount.behaviour.roles import roles
from headcount.core.definition import DEFAULT_DEFINITION
from headcount.core.errors import PlanError
from headcount.core.options import option
from headcount.pruning.base import Choice, PruneContext, Pruner, PrunerInfo
from headcount.surgery.source import local_folder


@dataclass(frozen=True)
class RolePruner(Pruner):
    """Role: the heads that have a role go first, or stay longest; the others are chosen at random.

    Roles are measured on the texts of the task's calibration split. Budhraja et al. 2020; Voita et al. 2019
    found that specialised heads go last.
    """

    order: Literal["prune", "spare"] = option("prune", "Whether heads with the role go first, or stay longest")
    _: KW_ONLY
    roles: str = option("any", "Roles as `headcount roles` names them (offset:-1,syntax:nsubj), or any")
    definition: str = option(DEFAULT_DEFINITION, "When a head has a role, of `headcount ls definitions`")
    limit: int = option(512, "Texts that roles are measured on", minimum=1)
    tokenizer: str = option("", "Folder of the tokenizer; by default that of the model")
    info = PrunerInfo("Budhraja et al. 2020", draws=True)

    def choose(self, context: PruneContext) -> Choice:
        """Returns the plan, and which heads have the role."""
        folder = self.tokenizer or getattr(context.model.config, "_name_or_path", "")
        if not folder:
            raise PlanError("measuring roles needs the tokenizer of the model; name its folder with the option tokenizer")
        tokenizer = AutoTokenizer.from_pretrained(local_folder(folder))
        names = [name.strip() for name in self.roles.split(",") if name.strip()]
        only = None if names == ["any"] else names
        table = context.once(
            ("roles", self.tokenizer, tuple(names), self.definition, self.limit, context.seed),
            lambda: roles(
                context.model, context.data, tokenizer, limit=self.limit, only=only, definition=self.definition, seed=context.seed, swaps=0
            ),
        )
        heads_with_role = {head for head, labels in table.labels().items() if labels}
        if not heads_with_role:
            raise PlanError(
                f"no head has a role of {', '.join(names)} on these texts, so that there is nothing to {self.order}; see headcount roles"
            )
        sign = 1.0 if self.order == "spare" else -1.0
        draws = context.random().random(len(context.heads))
        values = [share + sign * (head in heads_with_role) for head, share in zip(context.heads, draws, strict=True)]
        scores = context.scores(values, f"role:{self.order}")
        return Choice(
            context.plan(values, scores.method), history=[{"heads with the role": sorted(map(str, heads_with_role))}], scores=scores
        )
