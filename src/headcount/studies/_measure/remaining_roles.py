"""The roles of the heads of pruned models of a study, measured again on each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headcount.studies._base import StudyContext
from headcount.studies._grid import make_pruning
from headcount.studies._measure.pruning_curve import build_study_requests
from headcount.studies._measure.role_tables import open_study_corpus
from headcount.studies._results import describe_study_run
from headcount.studies._tuning import announce_training
from headcount.workflows.remaining_roles import FamilyTest, RemainingFamilies, measure_remaining_roles
from headcount.workflows.roles import roles_into

if TYPE_CHECKING:
    from headcount.studies.remaining_roles import RemainingRoles


def measure_roles_of_pruned_models(study: RemainingRoles, context: StudyContext) -> RemainingFamilies:
    """Makes all models of a study, and tests the roles of the heads of each of them on the same text.

    Raises:
        DataError: there is no text to measure roles on.
    """
    specs, loaded = build_study_requests(study, context), context.loaded
    describe_study_run(context, loaded, {"study": study.name, "methods": list(study.methods), "definition": study.definition})
    corpus = open_study_corpus(context, loaded, context.task, study.sentences)
    test = FamilyTest.by_definition(corpus, study.definition, seed=context.seed, batch_size=context.batch_size)
    with context.progress("testing roles") as advance:
        dense = roles_into(context.run, loaded.model, corpus, test.spec, progress=advance)
    pruning = make_pruning(context)
    announce_training(context, pruning, specs)
    with context.progress("pruned models", "models") as advance:
        return measure_remaining_roles(pruning, specs, test, dense, attention_kinds=study.kinds, progress=advance)
