from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import TypedDict

from headcount.core.options import option
from headcount.core.study_result import Column, Table
from headcount.studies._base import Study
from headcount.studies._paper import Item, Paper, PaperInfo, PaperSubject
from headcount.studies.compensation import Compensation
from headcount.studies.importance_or_random import ImportanceOrRandom
from headcount.studies.interventions import Interventions
from headcount.studies.plan_transfer import PlanTransfer
from headcount.studies.role_pruning import RolePruning
from headcount.studies.strategies import Strategies

CLASSIFIED = ("accuracy", "f1", "matthews correlation")
"""The metrics of tasks that classify, in small letters."""
DEFINITION = "pande2021(correct=bh)"
"""Roles of the paper are those of a bias, whatever the distance."""
FAMILIES = ("local=local", "positional=offset", "block=segment", "delimiter=delimiter", "syntactic=syntax")
"""The roles that are pruned and spared, as groups; the study leaves out those that no head or every head has."""
BY_IMPORTANCE = Table(
    "published",
    (Column("heads"), Column("choice"), Column("as it is", "accuracy", ".3f"), Column("recovered", "accuracy", ".3f")),
    (("all", "dense model", 0.845, None), ("half", "importance", 0.78, 0.83), ("half", "random", 0.741, 0.828)),
    "An independent study of BERT on MNLI, 5 seeds: half of the heads by importance and at random, without and with retraining",
)


class FineTuning(TypedDict):
    """How the models of all experiments are fine-tuned, and by how many seeds."""

    recover: str
    rate: float
    train_batch: int
    seeds: int


@dataclass(frozen=True)
class Budhraja2020(Paper):
    """On the weak link between importance and prunability of attention heads: where heads are pruned matters little once the model is fine-tuned.

    Every experiment prunes first and then fine-tunes with the mask fixed; the dense model is trained by the same recipe.
    """

    _: KW_ONLY
    pretrained: str = option("", "The pre-trained model that is pruned before it is fine-tuned on the task: a folder, hub id or demo/NAME")
    other_task: str = option("", "Another task, or a file with other data for the same one, whose heads are used on this one")
    other_model: str = option("", "A model with a head for the other task; by default the model itself")
    by: str = option("gradient", "The importance that is compared with chance")
    recover: str = option("auto", "How long models are fine-tuned: a number of epochs, or of steps (300steps), or auto")
    rate: float = option(5e-5, "The learning rate of the fine-tuning", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    keep: tuple[int | float | str, ...] = option((), "How many heads stay: numbers or shares; by default 75%, 50%, 25%")
    seeds: int = option(3, "Draws of the heads and trainings of every strategy", minimum=1)
    set_by_quick = ("recover", "train_batch", "keep", "seeds")
    info = PaperInfo(
        title="On the weak link between importance and prunability of attention heads",
        authors=("Budhraja, Aakriti", "Pande, Madhura", "Nema, Preksha", "Kumar, Pratyush", "Khapra, Mitesh M."),
        year=2020,
        venue="Proceedings of the 2020 Conference on Empirical Methods in Natural Language Processing (EMNLP)",
        details={"pages": "3230--3235", "doi": "10.18653/v1/2020.emnlp-main.260"},
    )

    @property
    def training(self) -> FineTuning:
        """How the models of all experiments are fine-tuned, and by how many seeds."""
        if self.quick:
            return {"recover": "10steps", "rate": self.rate, "train_batch": 8, "seeds": 2}
        return {"recover": self.recover, "rate": self.rate, "train_batch": self.train_batch, "seeds": self.seeds}

    def items(self, subject: PaperSubject) -> Sequence[Item]:
        """Returns B1 to B10."""
        training, sizes = self.training, ("50%",) if self.quick else self.keep or ("75%", "50%", "25%")
        half = {"keep": "50%", "rate": self.rate, "train_batch": training["train_batch"], "seeds": training["seeds"]}
        recover = training["recover"]
        compensation_steps = int(recover.removesuffix("steps")) if recover.endswith("steps") else None  # None: the recipe decides
        layer_choices = ("layers:top", "layers:middle", "layers:bottom")

        def strategies_study(*strategies: str, by_kind: bool = False, pretrained: str = "") -> Study:
            return Strategies(strategies=strategies, keep=sizes, by_kind=by_kind, pretrained=pretrained, **training)

        roles = RolePruning(
            groups=FAMILIES[:3] if self.quick else FAMILIES, definition=DEFINITION, keep=sizes if self.quick else self.keep, **training
        )
        return [
            Item(
                "B1",
                "Random heads of the model and of each attention type, fine-tuned",
                "random",
                strategies_study("random:type", by_kind=True),
            ),
            self._item_of_pretrained(subject, strategies_study(pretrained=self.pretrained)),
            Item("B3", "Top, middle and bottom layers, fine-tuned", "layers", strategies_study(*layer_choices)),
            self._item_by_type(subject, strategies_study(*layer_choices, by_kind=True)),
            Item(
                "B5",
                "Consecutive against spread-out layers, fine-tuned",
                "consecutive",
                strategies_study("layers:consecutive", "layers:spread"),
            ),
            Item("B6", "Heads of a role pruned first or spared longest, fine-tuned", "roles", roles),
            Item(
                "B7",
                "How the heads that stay change in the fine-tuning",
                "compensation",
                Compensation(method=self.by, steps=compensation_steps, **half),
            ),
            Item(
                "B8",
                "Importance, random and complement, as they are, repaired and recovered",
                "importance",
                ImportanceOrRandom(by=self.by, **training),
                published=BY_IMPORTANCE,
            ),
            self._item_of_other_task(sizes),
            Item(
                "B10",
                "Zero, mean and uniform attention in place of removed heads",
                "interventions",
                Interventions(keep=("75%", "50%", "25%") if self.quick else (), seeds=training["seeds"]),
            ),
        ]

    def _item_of_pretrained(self, subject: PaperSubject, study: Study) -> Item:
        metric = subject.task.metric
        title, part = "The pre-trained model pruned at random, then fine-tuned on the task", "pre-trained"
        if metric is None or metric.name.lower() not in CLASSIFIED:
            return Item("B2", title, part, reason="a new head is made for tasks that classify texts")
        if not self.pretrained and not subject.has_new_head:  # a model with a new head is pre-trained itself
            return Item("B2", title, part, lacks=("pretrained",))
        return Item("B2", title, part, study)

    def _item_by_type(self, subject: PaperSubject, study: Study) -> Item:
        title, part = "Top, middle and bottom layers of each attention type, fine-tuned", "layers by type"
        if len(subject.kinds) == 1:
            return Item("B4", title, part, reason=f"the model has one type of attention, {subject.kinds[0]}; B3 has the same strategies")
        return Item("B4", title, part, study)

    def _item_of_other_task(self, sizes: tuple[int | float | str, ...]) -> Item:
        title, part = "Heads chosen on another task, used on this one", "transfer"
        if not self.other_task:
            return Item("B9", title, part, lacks=("other_task",))
        study = PlanTransfer(self.other_task, other_model=self.other_model, method=self.by, keep=sizes, seeds=self.training["seeds"])
        return Item("B9", title, part, study)
