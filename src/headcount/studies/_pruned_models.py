"""The options of studies that prune a model by several methods to several sizes. No torch here."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from headcount.core.options import option
from headcount.studies import _measure
from headcount.studies._base import Study, StudyContext


@dataclass(frozen=True)
class PrunedModels(Study):
    """A study of models that were pruned by several methods to several sizes; studies with the same options share these models in a run."""

    _: KW_ONLY
    methods: tuple[str, ...] = option(("gradient",), "Pruners or importances; random is always added")
    keep: tuple[int | float | str, ...] = option((), "How many heads stay: numbers or shares; by default 90%, 80%, …, 10%")
    seeds: int = option(3, "Seeds of methods with chance in them", minimum=1)
    kinds: tuple[str, ...] = option((), "Kinds of attention that lose heads; by default all of them at once")
    repair: bool | None = option(False, "Refit output projections in closed form; none does so unless training follows")
    recover: float | str | None = option(
        None, "How long the pruned model is fine-tuned: a number of epochs, or of steps (300steps), or auto"
    )
    steps: int | None = option(None, "Optimiser steps of methods that train; by default those of one epoch, and at least 300", minimum=1)
    rate: float = option(5e-5, "The learning rate of weights, where they train", minimum=0)
    train_batch: int = option(32, "Examples per training step", minimum=1)
    keep_models: bool = option(False, "Keep the models whose weights were trained in the run, for studies that read their weights")

    @property
    def trains_new_head(self) -> bool:
        """Whether models are fine-tuned after pruning, or every method trains weights; random heads are then fine-tuned as long."""
        return self.recover is not None or _measure.pruning_curve.all_train_weights(self.methods)

    def check_inputs(self, context: StudyContext) -> None:
        """Raises an error where the model cannot be pruned by a method or to a size."""
        _measure.pruning_curve.check_study_requests(self, context)
