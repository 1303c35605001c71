from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass

from headcount.core.options import option
from headcount.core.study_result import Column, Table
from headcount.studies._base import Study
from headcount.studies._paper import Item, Paper, PaperInfo, PaperSubject
from headcount.studies.finetune_roles import FinetuneRoles
from headcount.studies.role_definitions import RoleDefinitions
from headcount.studies.role_families import RoleFamilies
from headcount.studies.role_map import RoleMap

QUICK_SENTENCES = 120
"""Sentences of the small version."""
TESTED = ("local", "syntax", "delimiter", "sink", "segment:entropy")
"""The roles of the paper, block heads in their published form."""


@dataclass(frozen=True)
class Pande2021Paper(Paper):
    """The heads hypothesis: the functional roles of attention heads by a statistical test of the sieve bias.

    Which heads are local, syntactic, block or delimiter heads, in which layers, which have several functions, what fine-tuning changes, and how much
    the definition matters. Pande et al. 2021.
    """

    _: KW_ONLY
    other_task: tuple[str, ...] = option((), "Further tasks whose texts are read: TASK, or TASK=MODEL for a model fine-tuned on it")
    tuned: str = option("", "The model after fine-tuning: a folder, a hub id, or demo/NAME")
    definition: str = option("pande2021", "When a head has a role; by default as published")
    taus: tuple[float, ...] = option((1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0), "The thresholds of the sweep")
    info = PaperInfo(
        title="The Heads Hypothesis: A Unifying Statistical Approach Towards Understanding Multi-Headed Attention in BERT",
        authors=("Pande, Madhura", "Budhraja, Aakriti", "Nema, Preksha", "Kumar, Pratyush", "Khapra, Mitesh M."),
        year=2021,
        venue="Proceedings of the AAAI Conference on Artificial Intelligence",
        details={"volume": "35", "number": "15", "pages": "13613--13621"},
    )

    def items(self, subject: PaperSubject) -> Sequence[Item]:
        """Returns the thirteen experiments; those on roles need a text, those on fine-tuning the fine-tuned model too."""
        n = QUICK_SENTENCES if self.quick else None
        tasks, rule, taus = self.other_task, self.definition, self.taus

        def make_item(number: int, title: str, part: str, study: Study, published: Table | None = None) -> Item:
            lacks = () if subject.has_text else ("text",)
            if isinstance(study, FinetuneRoles) and not self.tuned:
                lacks = (*lacks, "tuned")
            return Item(f"P{number}", title, part, None if lacks else study, lacks, published=published)

        def finetune_roles_study(show: str) -> FinetuneRoles:
            return FinetuneRoles(self.tuned or "MODEL", only=TESTED, definition=rule, sentences=n, show=show)  # pyright: ignore[reportArgumentType]

        return [
            make_item(1, "Sieve bias of every head for every role", "sieve bias", RoleMap(definition=rule, sentences=n, show="bias")),
            make_item(
                2, "Heads of every role by the test of the sieve bias", "test", RoleMap(definition=rule, sentences=n, show="labels"), TEST
            ),
            make_item(3, "Share of p-values near 0 or 1", "p-values", RoleMap(definition=rule, sentences=n, show="p-values")),
            make_item(4, "Role map, layer × head", "role map", RoleMap(definition=rule, sentences=n, show="map")),
            make_item(
                5,
                "Share of heads of every family, by task",
                "families",
                RoleFamilies(tasks=tasks, definition=rule, sentences=n, show="shares"),
                SHARES,
            ),
            make_item(
                6,
                "Heads with several functions: overlap of families",
                "overlap",
                RoleFamilies(definition=rule, sentences=n, show="overlap"),
                OVERLAP,
            ),
            make_item(7, "Families over layers", "layers", RoleFamilies(definition=rule, sentences=n, show="layers")),
            make_item(8, "Heads with several functions by depth", "depth", RoleFamilies(definition=rule, sentences=n, show="depth")),
            make_item(9, "Change of roles in fine-tuning by layer", "fine-tuning", finetune_roles_study("layers")),
            make_item(10, "From delimiters to other tokens in fine-tuning", "fine-tuning, families", finetune_roles_study("families")),
            make_item(11, "Heads of every family as a function of τ", "τ sweep", RoleDefinitions(taus=taus, sentences=n, show="sweep")),
            make_item(12, "Test, threshold and strongest key", "definitions", RoleDefinitions(taus=taus, sentences=n, show="rules")),
            make_item(
                13, "Block heads: bias times entropy, and nearness", "block heads", RoleDefinitions(taus=taus, sentences=n, show="blocks")
            ),
        ]


TEST = Table(
    "published",
    (Column("quantity"), Column("value", format="g")),
    (("τ, the bias that a head must exceed", 3.0), ("α, the level of the test, not corrected", 0.05)),
    "The test of Pande et al. 2021",
)
SHARES = Table(
    "published",
    (Column("model"), Column("family"), Column("share of heads, mean", format=".0%")),
    (("multilingual BERT", "delimiter", 0.68),),
    "Heads of a family, by the test of Pande et al. 2021",
)
OVERLAP = Table(
    "published",
    (Column("model"), Column("share"), Column("lowest", format=".0%"), Column("highest", format=".0%")),
    (
        ("BERT", "heads that are both local and syntactic", 0.42, 0.88),
        ("multilingual BERT", "syntactic heads that are also local", 0.71, 0.71),
    ),
    "Heads of several families, by the test of Pande et al. 2021",
)
