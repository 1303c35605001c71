from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import Any

from headcount.behaviour.definitions.voita2019 import Voita2019
from headcount.core.options import option
from headcount.core.study_result import Column, Table
from headcount.studies._base import Study
from headcount.studies._paper import Item, Paper, PaperInfo, PaperSubject
from headcount.studies.attention_maps import AttentionMaps
from headcount.studies.from_scratch import FromScratch
from headcount.studies.importance_map import ImportanceMap
from headcount.studies.kept import Kept
from headcount.studies.penalty_sweep import PenaltySweep
from headcount.studies.pruning_curve import PruningCurve
from headcount.studies.rare_words import RareWords
from headcount.studies.relation_accuracy import RelationAccuracy
from headcount.studies.remaining_roles import RemainingRoles
from headcount.studies.role_map import RoleMap
from headcount.studies.roles_importance import RolesImportance

ENCODER = "encoder-self"
QUICK_STEPS, QUICK_BATCH, QUICK_SENTENCES = 20, 16, 120
"""Steps and examples per step of a training, and sentences, in the small version."""
QUICK_KEEP, QUICK_PENALTIES = ("50%", "25%"), (0.001, 0.01, 0.1)
"""Numbers of heads and values of λ in the small version."""


@dataclass(frozen=True)
class Voita2019Paper(Paper):
    """Specialized heads do the heavy lifting: confident and important heads have roles, and these go last when L0 gates prune the others.

    Voita, Talbot, Moiseev, Sennrich and Titov 2019: confidence and relevance of every head, their roles, L0 gates in the encoder alone and in all
    kinds of attention, the roles and places of the heads that remain, and the same models trained from scratch.
    """

    _: KW_ONLY
    other_task: tuple[str, ...] = option(
        (), "Further tasks of this model (TASK, or a file for the same task), or of other models (MODEL=TASK)"
    )
    definition: str = option("voita2019", "When a head has a role; by default as published")
    frequent: int = option(500, "Rare words: sentences count whose rarest token is outside so many most frequent tokens", minimum=0)
    keep: tuple[int | float | str, ...] = option(("75%", "50%", "25%", "12%"), "How many heads stay: numbers or shares")
    seeds: int = option(3, "Seeds of every training", minimum=1)
    steps: int | None = option(None, "Optimiser steps of L0 gates; by default those of one epoch, and at least 300", minimum=1)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    penalties: tuple[float, ...] = option((0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1), "The values of λ")
    scratch: float | str = option(10.0, "How long models train from scratch: a number of epochs, or of steps (300steps), or auto")
    scratch_rate: float = option(5e-4, "The learning rate from scratch", minimum=0)
    set_by_quick = ("keep", "seeds", "steps", "train_batch", "penalties", "scratch")
    info = PaperInfo(
        title="Analyzing Multi-Head Self-Attention: Specialized Heads Do the Heavy Lifting, the Rest Can Be Pruned",
        authors=("Voita, Elena", "Talbot, David", "Moiseev, Fedor", "Sennrich, Rico", "Titov, Ivan"),
        year=2019,
        venue="Proceedings of the 57th Annual Meeting of the Association for Computational Linguistics",
        details={"pages": "5797--5808", "doi": "10.18653/v1/P19-1580"},
    )

    def items(self, subject: PaperSubject) -> list[Item]:
        """Returns the experiments; those on roles need a text, those in the encoder a model with one."""
        has_encoder, one_kind = ENCODER in subject.kinds, len(subject.kinds) == 1
        no_encoder = "" if has_encoder else f"the model has no encoder, only {' and '.join(subject.kinds)} attention"
        no_kinds = f"the model has one kind of attention, {subject.kinds[0]}: V14 shows its layers" if one_kind else ""
        is_translator = has_encoder and "cross" in subject.kinds
        n = QUICK_SENTENCES if self.quick else None

        def make_item(number: int, title: str, part: str, study: Study, reason: str = "", published: Table | None = None) -> Item:
            lacks = ("text",) if study.info.uses("text") and not subject.has_text else ()
            return Item(f"V{number}", title, part, None if lacks or reason else study, lacks, reason, published)

        maps: Any = {"definition": self._role_definition, "sentences": n}
        encoder, everywhere = self._pruned_model_options(frozen_decoder=is_translator), self._pruned_model_options()
        encoder |= {} if one_kind else {"kinds": (ENCODER,)}
        curves = PruningCurve(**everywhere, other_tasks=self.other_task)
        several_tasks = make_item(15, "Pruning curves of several tasks or languages", "section 6.2", curves)
        return [
            make_item(1, "Confidence of every head", "Fig. 1b", self._importance_map_study("confidence")),
            make_item(2, "Relevance of every head by LRP", "Fig. 1a", self._importance_map_study("lrp")),
            make_item(
                3,
                "Important and confident heads have roles",
                "section 5",
                RolesImportance(by=("lrp", "confidence"), examples=self._n_examples, **maps),
            ),
            make_item(
                4, "Heads of every role: 90 % of tokens at one offset", "section 5.1", RoleMap(show="labels", **maps), published=RULES
            ),
            make_item(5, "Accuracy of the best head per relation", "Table 1", RelationAccuracy(sentences=n), published=RELATIONS),
            make_item(6, "Rare-word head", "section 5.3", RareWords(frequent=self.frequent, sentences=n), published=RARE_WORDS),
            make_item(7, "Role map, layer × head", "Fig. 1c", RoleMap(show="map", **maps)),
            make_item(8, "Heads left as a function of λ", "section 6.1", self._penalty_sweep_study(is_translator), no_encoder),
            make_item(
                9, "Metric by the encoder heads left", "Fig. 7", PruningCurve(**encoder, keep_models=True), no_encoder, ENCODER_HEADS
            ),
            make_item(10, "Roles of the encoder heads that remain", "Fig. 8", RemainingRoles(**encoder, **maps), no_encoder),
            make_item(11, "Metric by the heads left of each kind", "Table 2", PruningCurve(**everywhere), no_kinds, ALL_HEADS),
            make_item(
                12, "The same heads trained from scratch", "Table 2", self._from_scratch_study(with_same_heads=True), published=SAME_HEADS
            ),
            make_item(13, "Heads that stay by kind of attention", "Fig. 9", Kept(**everywhere), no_kinds),
            make_item(14, "Heads that stay by layer", "Fig. 10", Kept(**everywhere)),
            several_tasks if self.other_task else replace(several_tasks, study=None, lacks=("other_task",)),
            make_item(16, "Attention maps of typical heads", "Fig. 5", AttentionMaps(**maps)),
            make_item(
                17,
                "Gates on the trained model against gates from scratch",
                "section 6.2",
                self._from_scratch_study(with_gates=True),
                published=GATES_FROM_SCRATCH,
            ),
        ]

    @property
    def _role_definition(self) -> str:
        """The definition of roles; the published one with the number of frequent tokens of this text."""
        return str(Voita2019(frequent=self.frequent)) if self.definition == "voita2019" else self.definition

    def _importance_map_study(self, by: str) -> ImportanceMap:
        return ImportanceMap((by,), examples=self._n_examples, show="scores")

    @property
    def _n_examples(self) -> int:
        """The examples that scores are measured on."""
        return 64 if self.quick else 512

    def _training_options(self) -> Any:
        """Returns the options of all studies that train."""
        if self.quick:
            return {"seeds": 1, "steps": QUICK_STEPS, "train_batch": QUICK_BATCH}
        return {"seeds": self.seeds, "steps": self.steps, "train_batch": self.train_batch}

    def _pruned_model_options(self, *, frozen_decoder: bool = False) -> Any:
        """Returns the options of studies of pruned models."""
        method = "l0(frozen=decoder)" if frozen_decoder else "l0"
        return {"methods": (method,), "keep": QUICK_KEEP if self.quick else self.keep, **self._training_options()}

    def _penalty_sweep_study(self, is_translator: bool) -> PenaltySweep:
        penalties, rate = (QUICK_PENALTIES, 1.0) if self.quick else (self.penalties, 0.1)
        frozen = "decoder" if is_translator else "none"
        return PenaltySweep(penalties, kinds=(ENCODER,), frozen=frozen, gate_rate=rate, **self._training_options())

    def _from_scratch_study(self, *, with_same_heads: bool = False, with_gates: bool = False) -> FromScratch:
        keep = QUICK_KEEP[:1] if self.quick else self.keep
        length = f"{QUICK_STEPS}steps" if self.quick else self.scratch
        controls: Any = {"heads": with_same_heads, "gates": with_gates}
        return FromScratch("l0", keep=keep, scratch=length, scratch_rate=self.scratch_rate, **controls, **self._training_options())


RULES = Table(
    "published",
    (Column("role"), Column("rule")),
    (
        ("positional", "at least 90 % of tokens attend to one offset"),
        ("syntactic", "accuracy at least 10 points above the most frequent offset of the relation"),
        ("rare words", "the strongest key is the least frequent token of the sentence"),
    ),
    "The roles of Voita et al. 2019",
)
ENCODER_HEADS = Table(
    "published",
    (Column("data"), Column("heads removed"), Column("of"), Column("change", "BLEU", "+.2f")),
    (("WMT en-ru", 38, 48, -0.15), ("OpenSubtitles en-ru", 44, 48, -0.25)),
    "Encoder heads that go, and the change of BLEU",
)
ALL_HEADS = Table(
    "published",
    (Column("encoder heads"), Column("decoder heads"), Column("cross heads"), Column("BLEU", format=".2f")),
    ((48, 48, 48, 29.6), (14, 31, 30, 29.62), (12, 21, 25, 29.36), (8, 13, 15, 29.06), (5, 9, 12, 28.90)),
    "BLEU by the heads left of each kind, WMT en-ru",
)
SAME_HEADS = Table(
    "published",
    (
        Column("encoder heads"),
        Column("decoder heads"),
        Column("cross heads"),
        Column("pruned", "BLEU", ".2f"),
        Column("from scratch", "BLEU", ".2f"),
    ),
    ((14, 31, 30, 29.62, 29.47), (12, 21, 25, 29.36, 28.95), (8, 13, 15, 29.06, 28.56), (5, 9, 12, 28.90, 28.41)),
    "The pruned model and the same configuration trained from scratch, WMT en-ru",
)
GATES_FROM_SCRATCH = Table(
    "published",
    (Column("on the trained model minus from scratch"), Column("BLEU", format="+.1f")),
    (("smallest", 0.2), ("largest", 0.6)),
    "Gates of the encoder on the trained model against gates, or the same number of heads, from scratch",
)
RARE_WORDS = Table(
    "published",
    (Column("data"), Column("strongest key is the rarest token", format=".0%"), Column("one of the two rarest", format=".0%")),
    (("OpenSubtitles en-ru", 0.66, 0.83), ("WMT en-ru, at least", None, 0.5)),
    "The rare-word head, where the rarest token is outside the 500 most frequent",
)
RELATIONS = Table(
    "published",
    (Column("relation"), Column("attention"), Column("best head", "%"), Column("best offset", "%")),
    (
        ("nsubj", "verb to subject", 45, 35),
        ("nsubj", "subject to verb", 52, 35),
        ("dobj", "verb to object", 78, 41),
        ("dobj", "object to verb", 73, 41),
        ("amod", "noun to adjective", 74, 72),
        ("amod", "adjective to noun", 82, 72),
        ("advmod", "verb to adverb", 48, 46),
        ("advmod", "adverb to verb", 52, 46),
    ),
    "Accuracy on WMT en-ru",
)
