"""`headcount certify`: opens both models and the tasks, makes the certificate, prints and writes it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from textwrap import shorten
from typing import Any, NamedTuple

import typer

from headcount.app.console.inputs import ModelAndTaskOptions, ModelOptions
from headcount.app.console.models import open_model, open_named_task
from headcount.app.console.session import ExitCode, Session
from headcount.core.certificate import Certificate, unconfirmed_statements
from headcount.core.certificate_file import read_certificate, write_certificate
from headcount.core.errors import ArtifactError, DataError
from headcount.core.files import absolute_path_if_exists, is_file, model_path_or_name, path_exists
from headcount.core.margin import Margin
from headcount.data.task import Task
from headcount.runs.report.certificates import describe_certificate
from headcount.runs.store import Run
from headcount.surgery import manifest
from headcount.surgery.certificate_file import attach_certificate
from headcount.workflows.certify import CertificateRequest, certify_models

FLIPS_SHOWN, SHOWN = 10, 160
"""The most examples that are printed, and the most letters of one."""


class Margins(NamedTuple):
    """How much worse a model may be by its metric and by its loss; None where only the bound is shown."""

    quality: Margin | None
    loss: Margin | None


class RunModels(NamedTuple):
    """The model that a run keeps, the options that open its task, and its dense model with how that is loaded."""

    kept_model: Path
    data: ModelAndTaskOptions
    dense_name: str
    dense_loading: ModelOptions


def certify_model(
    session: Session,
    data: ModelAndTaskOptions,
    dense_name: str | None,
    margins: Margins,
    other_tasks: Sequence[str],
    file_to_check: Path | None,
    out_file: Path | None,
) -> ExitCode:
    """Makes a certificate, or makes one again and compares; returns the exit code."""
    recorded = None if file_to_check is None else read_certificate(file_to_check)
    if recorded is not None:
        margins = Margins(*(Margin.parse(text) if text else None for text in (recorded.margin, recorded.loss_margin)))
        other_tasks = recorded.opening.get("other_tasks", ())
        data = _fill_from_opening_record(data, recorded.opening)
        dense_name = dense_name or recorded.opening.get("against")
    run = Run.open(Path(data.model)) if is_file(Path(data.model) / "run.json") else None
    folder = Path(data.model)
    if run is not None:
        kept_and_dense_model = _read_kept_and_dense_model(run, data)
        folder, data, loading = kept_and_dense_model.kept_model, kept_and_dense_model.data, kept_and_dense_model.dense_loading
        dense_name = dense_name or kept_and_dense_model.dense_name
    else:
        loading = data.model_options
    if dense_name is None:
        absent = (
            "" if path_exists(folder) else f"; {folder} is no folder here: if you mean a run, which names its dense model, check the name"
        )
        raise typer.BadParameter(f"certify needs --against, the dense model that MODEL was made from{absent}")
    request = CertificateRequest(*margins, limit=data.limit, seed=data.seed)
    dense, _, dense_folder = open_model(session, dense_name, loading)
    small, _, small_folder = open_model(session, str(folder), data.model_options)
    tasks = [open_named_task(session, task, dense, dense_folder) for task in (data, *(data._replace(task=name) for name in other_tasks))]
    for task in tasks:
        session.write_note(f"{task.name}: both models on {len(task.report):,} examples of the report split")
    with session.progress("evaluating both models") as advance:
        certificate = certify_models(small, dense, tasks, request, names=(data.model, dense_name), watch=lambda work: advance)
    opening = {
        **data.opening_record(),
        "against": absolute_path_if_exists(dense_name),
        "other_tasks": list(other_tasks),
    }
    certificate = replace(certificate, opening={name: value for name, value in opening.items() if name not in ("model", "path")})
    _show_certificate(session, certificate, tasks)
    if recorded is not None:
        return _show_whether_confirmed(session, recorded, certificate)
    path = _write_certificate(certificate, small_folder, out_file, run)
    session.write_json({**certificate.to_dict(), "file": None if path is None else str(path)})
    if path is None:
        session.write_note("the folder was not written by headcount, so the certificate was not kept; name a file with --out")
    else:
        session.write_note(f"written to {path}")
        session.suggest_next("certify", data.model, "--check", path)
    return 0


def _fill_from_opening_record(data: ModelAndTaskOptions, opening_record: Mapping[str, Any]) -> ModelAndTaskOptions:
    """Returns the options of a command line, those it leaves out as a certificate records them."""
    defaults = ModelAndTaskOptions._field_defaults
    recorded = {name: value for name, value in opening_record.items() if name in defaults and getattr(data, name) == defaults[name]}
    paths = {name: [Path(path) for path in recorded[name]] for name in ("train", "eval") if name in recorded}
    return data._replace(**{**recorded, **paths})


def _read_kept_and_dense_model(run: Run, data: ModelAndTaskOptions) -> RunModels:
    models = run.models()
    if not models:
        raise ArtifactError(f"{run.folder} keeps no model; make one with headcount prune, or with headcount compare --keep-models")
    if len(models) > 1:
        raise ArtifactError(
            f"{run.folder} keeps {len(models)} models; name the folder of one: {', '.join(str(path) for path in models)[:400]}"
        )
    record = run.record()
    opening = record.config.get("opened") or {}
    if opening.get("own_task") and data.task is None:
        raise DataError("the task of this run was made in Python; use hc.certify with the task, or name one with --task")
    data = _fill_from_opening_record(data, {"task": record.task or None, **opening})
    dense_loading = data.model_options.fill_from_run_config(record.config)
    return RunModels(models[0], data, model_path_or_name(record.model.name, record.config), dense_loading)


def _show_certificate(session: Session, certificate: Certificate, tasks: Sequence[Task]) -> None:
    """Prints the sentences of a certificate, and the first examples whose answers changed."""
    for sentence in describe_certificate(certificate):
        session.write_line(sentence)
    for certified, task in zip(certificate.tasks, tasks, strict=True):
        if certified.right_to_wrong or certified.wrong_to_right:
            session.write_line(f"Examples of {task.name} whose answers changed, by their number in its report split:")
        for label, positions in (("right → wrong", certified.right_to_wrong), ("wrong → right", certified.wrong_to_right)):
            texts = _read_report_texts(task, (positions or ())[:FLIPS_SHOWN])
            for position, text in texts.items():
                session.write_line(f"  {label}  {position}: {text}")
            if positions and len(positions) > FLIPS_SHOWN:
                session.write_line(f"  {label}  … {len(positions) - FLIPS_SHOWN} more (--json lists all)")


def _read_report_texts(task: Task, positions: Sequence[int]) -> dict[int, str]:
    """Returns the texts of some examples of the report split by position; no text where the task has none."""
    if task.texts is None:
        return dict.fromkeys(positions, "")
    chosen = set(positions)
    return {
        number: shorten(" | ".join(filter(None, (text.text, text.pair))), SHOWN, placeholder=" …")
        for number, text in enumerate(task.texts.read("report"))
        if number in chosen
    }


def _show_whether_confirmed(session: Session, recorded: Certificate, repeated: Certificate) -> ExitCode:
    problems = unconfirmed_statements(recorded, repeated)
    for problem in problems:
        session.write_line(f"Not confirmed: {problem}.")
    if not problems:
        session.write_line("The certificate still holds.")
    session.write_json({"holds": not problems, "problems": problems, "before": recorded.to_dict(), "now": repeated.to_dict()})
    return 1 if problems else 0


def _write_certificate(certificate: Certificate, model_folder: Path, out_file: Path | None, run: Run | None) -> Path | None:
    """Writes a certificate to a file, or beside a model that headcount saved; returns where, None if nowhere."""
    if out_file is not None:
        write_certificate(out_file, certificate)
        return out_file
    if not (model_folder / manifest.NAME).is_file():
        return None
    path = attach_certificate(model_folder, certificate)
    if run is not None:
        with Run.lead(run.folder, command=run.record().command) as leading:
            leading.register_saved_model(model_folder)
    return path
