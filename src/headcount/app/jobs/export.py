"""`headcount export`: writes a model for other tools, and prints what was compared."""

from __future__ import annotations

from pathlib import Path

import typer

from headcount.app.console.inputs import ModelOptions
from headcount.app.console.models import open_model
from headcount.app.console.session import Session
from headcount.data.open_task import open_task
from headcount.data.readers.processor import tokenizer_or_image_processor
from headcount.surgery.export_base import ExportTarget


def export_model(
    session: Session, model_name: str, target_text: str, out: Path, loading: ModelOptions, *, task_name: str | None, overwrite: bool
) -> None:
    """Writes a model by the export target `target_text`; a task gives the texts on which the outputs are compared."""
    target = ExportTarget.parse(target_text)
    if task_name is not None and not target.info.compares_text:
        raise typer.BadParameter(f"--task has no meaning for {target.name}, which is compared on one batch; leave it out")
    target.check_path(out, overwrite=overwrite)
    model, _, folder = open_model(session, model_name, loading)
    session.begin_work(f"exporting to {target_text}")
    tokenizer = tokenizer_or_image_processor(model, folder, loading.trust_remote_code) if target.info.compares_text else folder
    data = None if task_name is None else open_task(task_name, model, tokenizer)
    exported = target.write(model, out, tokenizer=tokenizer, data=data, command=session.command, overwrite=overwrite)
    for caveat in exported.caveats:
        session.write_note(caveat)
    facts = exported.to_dict()
    for fact, value in facts.items():
        if value not in ("", [], ()):
            session.write_line(f"{fact}: {', '.join(value) if isinstance(value, list | tuple) else value}")
    session.write_json({"model": model_name, "to": target_text, **facts})
