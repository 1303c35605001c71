"""What studies share with their run folder: its description, the result as an artifact and as files; and the correction of p-values."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Mapping

from headcount.core.errors import MissingExtra
from headcount.core.files import canonical_json
from headcount.core.study_result import StudyResult
from headcount.models.provenance import machine_entries, model_record, rounding_provenance
from headcount.runs.artifacts import ArtifactKey, safe_name
from headcount.runs.describe import describe_run as describe
from headcount.runs.study_files import STUDIES as STUDY_FILES
from headcount.runs.study_files import write_study_files
from headcount.runs.tables import STUDY
from headcount.studies._base import LoadedModel, Study, StudyContext


def describe_study_run(context: StudyContext, loaded: LoadedModel, config: Mapping[str, object]) -> None:
    """Writes the model and the configuration of a study to the run folder of the context, if there is one.

    Raises:
        ArtifactError: the run folder belongs to another model.
    """
    if context.run is None:
        return
    with context.progress("hashing the weights"):
        record = describe(
            model_record(loaded.model, loaded.name),
            command=context.command,
            seed=context.seed,
            task=context.sources.task_name,
            config={**config, "opened": context.sources.record_to_reopen(loaded.name) | ({"new_head": True} if context.new_head else {})},
            machine=machine_entries(loaded.model),
        )
        context.run.stage_records(record, loaded.heads)


def run_study(study: Study, context: StudyContext) -> StudyResult:
    """Runs a study; the run folder, if there is one that this process leads, keeps the result as an artifact, and its tables and figures as files.

    Without matplotlib no figure is drawn, and a warning names the remedy. A study that needs a run folder describes it itself.

    Raises:
        ArtifactError: the run folder belongs to another model.
    """
    run, needs = context.run, study.info.needs
    if run is not None and context.model is not None and not needs & {"run", "comparison"}:
        options = {name: value for name, value in study.to_dict().items() if name != "name"}
        describe_study_run(context, context.loaded, {"study": study.name, **options, "limit": context.limit})
    result = study.measure(context)
    if run is None or not run.leads:
        return result
    request = {"model": context.model_name, "task": context.sources.task_name, "seed": context.seed, "limit": context.limit}
    measurements = hashlib.sha256(canonical_json(result.to_dict())).hexdigest()  # names alone do not tell data and models apart
    key = ArtifactKey(STUDY, study.name, {"study": study.to_dict(), **request, "result": measurements})
    content = {"result": result.to_dict(), "rows": result.rows(), "command": context.command}
    run.register_results(run.commit(key, content, provenance=rounding_provenance()))
    try:
        write_study_files(result, run.folder / STUDY_FILES / safe_name(study.name))
    except MissingExtra as error:
        warnings.warn(f"the figures of study {study.name} are not drawn: {error}", stacklevel=2)
    return result
