from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from headcount.core.options import option
from headcount.studies._paper import Item, Paper, PaperInfo, PaperSubject
from headcount.studies.languages import Languages
from headcount.studies.weight_change import WeightChange


@dataclass(frozen=True)
class Budhraja2021(Paper):
    """Prunability of attention heads in multilingual BERT: what languages lose, against a monolingual model and against each other.

    Heads are chosen on the first language; the other languages are read without training on them (zero-shot transfer).
    """

    _: KW_ONLY
    tasks: tuple[str, ...] = option((), "The task in each language, this one first, such as demo/entailment and demo/entailment-tavi")
    language: tuple[str, ...] = option((), "Instead of tasks: a file of the task in each language, as NAME=FILE, such as en=en.tsv")
    against: str = option("", "A monolingual model for the first language: a folder, hub id or demo/NAME")
    other_task: tuple[str, ...] = option(
        (), "Further tasks to compare both models on: TASK, or MODEL=OTHER=TASK for models fine-tuned on it"
    )
    groups: str = option("", "A csv file with the columns language, family and size (of the pre-training corpus)")
    tuned: str = option("", "The model after fine-tuning: a folder, a hub id, or demo/NAME")
    method: str = option("random", "The pruner that chooses single heads, or an importance to rank by")
    recover: str = option("auto", "How long pruned models are fine-tuned on the first language: epochs, steps (300steps), or auto")
    rate: float = option(5e-5, "The learning rate of the fine-tuning", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    set_by_quick = ("recover", "train_batch")
    info = PaperInfo(
        title="On the Prunability of Attention Heads in Multilingual BERT",
        authors=("Budhraja, Aakriti", "Pande, Madhura", "Kumar, Pratyush", "Khapra, Mitesh M."),
        year=2021,
        venue="arXiv",
        entry="misc",
        details={"eprint": "2109.12683", "archiveprefix": "arXiv"},
    )

    def items(self, subject: PaperSubject) -> Sequence[Item]:
        """Returns X1 to X7."""
        first = {"languages": self.language[:1]} if self.language else {"tasks": (self.tasks or (subject.task.name,))[:1]}
        every = {"languages": self.language} if self.language else {"tasks": self.tasks or (subject.task.name,)}
        sizes, seeds = (("50%",), 2) if self.quick else (("75%", "50%", "25%"), 3)
        training = {
            "recover": "8steps" if self.quick else self.recover,
            "rate": self.rate,
            "train_batch": 8 if self.quick else self.train_batch,
        }
        has_several = len(self.language or self.tasks) > 1

        def item_unless_lacking(id: str, title: str, part: str, study: Languages | None, *lacks: str) -> Item:
            return Item(id, title, part, None if lacks else study, lacks=lacks)

        several = () if has_several else ("language",)
        common = {"method": self.method, "keep": sizes, "seeds": seeds}

        def groups_study(show: Literal["families", "sizes"]) -> Languages | None:
            return Languages(**every, groups=self.groups, show=show, **common) if self.groups else None

        alone = Languages(**first, against=self.against, other_tasks=self.other_task, show="models", **common) if self.against else None
        trained = Languages(**every, show="trained", **common, **training)
        lacks_groups = (*several, *(() if self.groups else ("groups",)))
        tuned = WeightChange(self.tuned) if self.tuned else None
        return [
            item_unless_lacking(
                "X1",
                "Relative drop of the multilingual against a monolingual model, task by task",
                "models",
                alone,
                *(() if self.against else ("against",)),
            ),
            item_unless_lacking(
                "X2", "Zero-shot transfer: what every language loses", "transfer", Languages(**every, show="transfer", **common), *several
            ),
            item_unless_lacking(
                "X3", "Share lost by language and block of layers", "layers", Languages(**every, show="layers", **common), *several
            ),
            item_unless_lacking("X4", "Contrasts between language families", "families", groups_study("families"), *lacks_groups),
            item_unless_lacking(
                "X5", "Rank correlation of the loss with the size of the corpus", "sizes", groups_study("sizes"), *lacks_groups
            ),
            Item("X6", "Change of weights by layer in fine-tuning", "weights", tuned, lacks=() if self.tuned else ("tuned",)),
            item_unless_lacking("X7", "Pruned at random, fine-tuned on the first language, read in all", "trained", trained, *several),
        ]
