from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Literal

from headcount.core.options import option
from headcount.core.study_result import Column, Table
from headcount.studies._paper import Item, Paper, PaperInfo, PaperSubject
from headcount.studies.all_but_one import AllButOne
from headcount.studies.dynamics import Dynamics
from headcount.studies.importance_map import ImportanceMap
from headcount.studies.pruning_curve import PruningCurve
from headcount.studies.single_heads import SingleHeads
from headcount.studies.speed import Speed
from headcount.studies.task_transfer import TaskTransfer

REMOVED = (14, 28, 43, 57, 72, 86, 100, 115, 129)
BY_GRADIENT = (0.837, 0.836, 0.834, 0.830, 0.815, 0.796, 0.759, 0.458, 0.381)
BY_ABLATION = (0.837, 0.827, 0.812, 0.799, 0.779, 0.720, 0.614, 0.372, 0.363)


@dataclass(frozen=True)
class Michel2019(Paper):
    """Are sixteen heads really better than one? Most heads can go alone, most layers can live on one, and a good share of all heads can go at once.

    Michel, Levy and Neubig 2019: single heads, all heads but one, gradient importance, pruning curves, speed, and when in training heads become
    superfluous.
    """

    _: KW_ONLY
    other_task: tuple[str, ...] = option(
        (), "Further tasks of this model (TASK, or a file for the same task), or of other models (MODEL=TASK)"
    )
    checkpoints: tuple[str, ...] = option((), "Checkpoints of a training, or a folder of them; without any the model is trained anew")
    train_steps: int | None = option(
        None, "Optimiser steps of the training that makes checkpoints; by default 1000, and 60 if quick", minimum=1
    )
    start: Literal["scratch", "model"] = option("scratch", "What that training starts from: weights drawn anew, or those of the model")
    info = PaperInfo(
        title="Are Sixteen Heads Really Better than One?",
        authors=("Michel, Paul", "Levy, Omer", "Neubig, Graham"),
        year=2019,
        venue="Advances in Neural Information Processing Systems 32",
        details={"eprint": "1905.10650", "archiveprefix": "arXiv"},
    )

    def items(self, subject: PaperSubject) -> list[Item]:
        """Returns M1 to M16."""
        kinds, best = subject.kinds, AllButOne(show="layers")
        one_kind = f"the model has one kind of attention, {kinds[0]}" if len(kinds) == 1 else ""
        ranked_once = self._ranking_methods()[0]
        ranked_again = "rank(by=gradient;again=true;limit=64;step=0.25)" if self.quick else "rank(by=gradient;again=true)"
        return [
            Item("M1", "Histogram of the score without one head", "Fig. 1", SingleHeads(show="histogram"), published=SINGLE_HEADS),
            Item(
                "M2",
                "Change of the metric without each head, with its significance",
                "Table 1",
                SingleHeads(show="heads"),
                published=SINGLE_HEADS,
            ),
            Item(
                "M3",
                "Best single head of every layer, by kind of attention",
                "Table 2",
                None if one_kind else best,
                reason=f"{one_kind}: M4 is the table for such models" if one_kind else "",
                published=KEPT_HEADS_OF_WMT,
            ),
            Item(
                "M4",
                "Best single head of every layer",
                "Table 3",
                best if one_kind else None,
                reason="" if one_kind else "the model has several kinds of attention: M3 is the table for such models",
                published=KEPT_HEADS_OF_BERT,
            ),
            Item("M5", "Heads chosen on one set of examples and reported on another", "Appendix A", AllButOne(show="splits")),
            self._transfer_item(),
            Item(
                "M7",
                "Importance of every head by the gradient, divided by the norm of its layer",
                "section 4.1",
                self._importance_map_study("gradient"),
            ),
            Item(
                "M8",
                "Pruning curve by gradient importance and by ablation",
                "Fig. 3",
                self._pruning_curve_study(self._ranking_methods()),
                published=CURVE,
            ),
            self._several_tasks_item(),
            Item(
                "M10",
                "Ranked once against ranked again after every step",
                "section 4",
                self._pruning_curve_study((ranked_once, ranked_again)),
            ),
            Item("M11", "Speed of the cut model by batch size, half of the heads removed", "Table 4", self._speed_study(), published=SPEED),
            Item(
                "M12",
                "Pruning curve of each kind of attention alone",
                "Fig. 4",
                None if one_kind else self._pruning_curve_study(self._ranking_methods()[:1], each_kind=True),
                reason=one_kind,
            ),
            Item("M13", "Pruning curves of checkpoints of one training", "Fig. 5", self._dynamics_study(), published=TRAINING),
            Item("M14", "Parameters of a head in every layer", "section 4.3", ImportanceMap(show="parameters"), published=PARAMETERS),
            Item(
                "M15",
                "Entropy of the attention, and distances between heads",
                "beyond the paper",
                self._importance_map_study("entropy", "distance", distances=True),
            ),
            Item("M16", "One head in every layer at once", "beyond the paper", AllButOne(show="everywhere")),
        ]

    def _transfer_item(self) -> Item:
        tasks = tuple(task for task in self.other_task if "=" not in task.partition("(")[0])  # those of this model
        published = Table(
            "published",
            (Column("correlation", format=".2f"),),
            ((0.56,), (0.68,)),
            "Lowest and highest Pearson correlation between domains",
        )
        study, lacks = (TaskTransfer(tasks), ()) if tasks else (None, ("other_task",))
        return Item("M6", "Correlation of the changes without each head on two tasks", "Fig. 2", study, lacks, published=published)

    def _several_tasks_item(self) -> Item:
        study = self._pruning_curve_study(self._ranking_methods()[:1], other_tasks=self.other_task) if self.other_task else None
        lacks = () if self.other_task else ("other_task",)
        return Item("M9", "Pruning curves of several tasks, absolute and relative", "Appendix B", study, lacks, published=TASKS)

    def _ranking_methods(self) -> tuple[str, ...]:
        return ("rank(by=gradient;limit=64)", "rank(by=ablation;limit=32)") if self.quick else ("gradient", "ablation")

    def _pruning_curve_study(self, methods: tuple[str, ...], *, each_kind: bool = False, other_tasks: tuple[str, ...] = ()) -> PruningCurve:
        quick_sizes = ("50%", "25%") if each_kind else ("75%", "50%", "25%")
        keep, seeds = (quick_sizes, 3) if self.quick else ((), 5)
        return PruningCurve(methods=methods, keep=keep, seeds=seeds, each_kind=each_kind, other_tasks=other_tasks)

    def _importance_map_study(self, *by: str, distances: bool = False) -> ImportanceMap:
        return ImportanceMap(by, examples=64 if self.quick else 512, distances=distances, show="scores")

    def _speed_study(self) -> Speed:
        return Speed(batches=(1, 4), length=16, rounds=15) if self.quick else Speed()

    def _dynamics_study(self) -> Dynamics:
        keep = ("75%", "50%", "25%") if self.quick else ()
        if self.checkpoints:
            return Dynamics(self.checkpoints, keep=keep)
        return Dynamics(keep=keep, train_steps=self.train_steps or (60 if self.quick else 1000), start=self.start)


SINGLE_HEADS = Table(
    "published",
    (Column("model"), Column("heads"), Column("lowest change", "points", "+.3g"), Column("highest change", "points", "+.3g")),
    (("BERT on MNLI, accuracy", 144, -1.5, 0.2), ("WMT en-fr, encoder heads, BLEU", 96, -0.53, 0.24)),
    "Change of the score without one head",
)


KEPT_HEADS_OF_WMT = Table(
    "published",
    (
        Column("layer"),
        Column("encoder-self", "BLEU", "+.2f"),
        Column("cross", "BLEU", "+.2f"),
        Column("decoder-self", "BLEU", "+.2f"),
    ),
    (
        (1, -1.31, 0.24, -0.03),
        (2, -0.16, 0.06, 0.12),
        (3, 0.12, 0.05, 0.18),
        (4, -0.15, -0.24, 0.17),
        (5, 0.02, -1.55, -0.04),
        (6, -0.36, -13.56, 0.24),
    ),
    "Change when the best head of a layer stays alone, WMT en-fr; layers count from 1",
)


KEPT_HEADS_OF_BERT = Table(
    "published",
    (Column("layer"), Column("accuracy", "points", "+.2f")),
    tuple(enumerate((-0.01, 0.10, -0.14, -0.53, -0.29, -0.52, 0.05, -0.72, -0.96, 0.07, -0.19, -0.12), 1)),
    "Change when the best head of a layer stays alone, BERT on MNLI; layers count from 1",
)


TRAINING = Table(
    "published",
    (Column("from epoch"), Column("heads that go, up to", format=".0%"), Column("score that remains")),
    ((10, 0.4, "85 to 90 %"),),
    "Late in training, IWSLT de-en",
)


PARAMETERS = Table(
    "published",
    (Column("model"), Column("share of the parameters of its layer", format=".2%")),
    (("WMT", 0.0625), ("BERT", 0.0834)),
    "Parameters of a head",
)


CURVE = Table(
    "published",
    (Column("heads removed"), Column("of"), Column("by gradient", format=".3f"), Column("by ablation", format=".3f")),
    ((0, 144, 0.837, 0.837), *((n, 144, first, second) for n, first, second in zip(REMOVED, BY_GRADIENT, BY_ABLATION, strict=True))),
    "Accuracy of BERT on MNLI",
)


TASKS = Table(
    "published",
    (Column("task"), Column("heads that go without loss", format=".0%")),
    (("MNLI", 0.4), ("SST-2", 0.6), ("CoLA", 0.5), ("MRPC", 0.5), ("WMT", 0.2)),
    "Share of heads that can go with little loss",
)


SPEED = Table(
    "published",
    (Column("batch"), Column("speed-up", format="+.1%")),
    ((1, 0.019), (4, 0.027), (16, 0.175), (64, 0.175)),
    "BERT with half of its heads removed",
)
