"""Role: the heads that have a role go first ("prune"), or stay longest ("spare"); the others are chosen at random. Are specialised heads needed?

`roles` names them as `headcount roles` does (offset:-1, syntax:nsubj, …), or "any". They are measured on the texts of the task's calibration split.
Budhraja et al. 2020; Voita et al. 2019 found that specialised heads go last.
"""

from __future__ import annotations

from headcount.behaviour.roles import roles
from headcount.core.errors import PlanError
from headcount.pruning.base import About, Choice, Work
from headcount.surgery.source import local_folder

ABOUT = About(
    source="Budhraja et al. 2020", variants=("prune", "spare"), options={"roles": "any", "limit": 512, "tokenizer": ""}, draws=True
)


def choose(work: Work, variant: str) -> Choice:
    """The plan, and which heads have the role."""
    tokenizer = _tokenizer(work)
    wanted = [name.strip() for name in work.options["roles"].split(",") if name.strip()]
    only = None if wanted == ["any"] else wanted
    limit = work.options["limit"]
    table = work.once(
        ("roles", work.options["tokenizer"], tuple(wanted), limit, work.seed),
        lambda: roles(work.model, work.data, tokenizer, limit=limit, only=only, seed=work.seed),
    )
    having = {head for head, found in table.labels().items() if found}
    if not having:
        raise PlanError(
            f"no head has a role of {', '.join(wanted)} on these texts, so that there is nothing to {variant}; see headcount roles"
        )
    sign = 1.0 if variant == "spare" else -1.0
    values = [share + sign * (head in having) for head, share in zip(work.heads, work.random().random(len(work.heads)), strict=True)]
    scores = work.scores(values, f"role:{variant}")
    return Choice(work.plan(values, scores.method), history=[{"heads with the role": sorted(map(str, having))}], scores=scores)


def _tokenizer(work: Work) -> object:
    from transformers import AutoTokenizer

    place = work.options["tokenizer"] or getattr(work.model.config, "_name_or_path", "")
    if not place:
        raise PlanError("measuring roles needs the tokenizer of the model; name its folder with the option tokenizer")

    return AutoTokenizer.from_pretrained(local_folder(place))
