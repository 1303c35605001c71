"""Certificates beside saved models: the file, and a table in the model card."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from headcount.core.certificate import Certificate, QualityBound
from headcount.core.certificate_file import NAME, write_certificate
from headcount.core.errors import ArtifactError
from headcount.core.folders import new_folder
from headcount.runs.report.certificates import format_bound
from headcount.surgery import manifest
from headcount.surgery.card import inline_code_in_table

HEADING, NEXT_HEADING = "## How much worse, at most", "## How to load it"


def attach_certificate(model_folder: Path, certificate: Certificate) -> Path:
    """Writes a certificate beside a model that headcount saved, and its table into the model card; returns the path of the file.

    The folder is replaced as a whole, with the same weights, so that a stop in between leaves the old one.

    Raises:
        ArtifactError: the folder was not written by headcount, or is damaged.
    """
    listing = manifest.read_manifest(model_folder)
    if listing is None:
        raise ArtifactError(
            f"{model_folder} was not saved by headcount (it has no {manifest.NAME}); write its certificate to a file of its own"
        )
    manifest.check_files_match(model_folder, listing)
    card = model_folder / "README.md"
    before, _, after = (card.read_text(encoding="utf-8") if card.is_file() else "").partition(NEXT_HEADING)
    text = before.partition(HEADING)[0] + "\n".join([*format_certificate_table(certificate), NEXT_HEADING]) + after
    with new_folder(model_folder, overwrite=True, marker_file=manifest.NAME) as fresh:
        for path in sorted(model_folder.iterdir()):
            if path.name not in (NAME, "README.md", manifest.NAME):
                _link_or_copy(path, fresh / path.name)
        (fresh / "README.md").write_text(text, encoding="utf-8")
        write_certificate(fresh / NAME, certificate)
        changed = manifest.hash_files(fresh)
        listing.files = {name: entry for name, entry in changed.items() if name in listing.files or name in (NAME, "README.md")}
        manifest.write_manifest(fresh, listing)
    return model_folder / NAME


def format_certificate_table(certificate: Certificate) -> list[str]:
    """Returns the lines of the table of a certificate in a model card."""
    rows = [
        "| task | measured by | dense model | this model | at most worse by | margin | verdict | examples |",
        "|---|---|---:|---:|---:|---:|---|---:|",
    ]
    for task in certificate.tasks:
        bounds: Sequence[QualityBound] = [task.quality, *([task.by_loss] if task.by_loss is not None else [])]
        name = inline_code_in_table(task.task) if task.task else ""
        for bound in bounds:
            numbers = [f"{bound.dense:.4g}", f"{bound.small:.4g}", format_bound(bound), bound.margin or "–"]
            rows.append(f"| {name} | {bound.quantity} | {' | '.join(numbers)} | {bound.verdict or '–'} | {task.n_examples} |")
    notes = ["Each bound holds for its row alone, at 95 %, one-sided, on examples that nothing was chosen on."]
    if certificate.sizes:
        order = ", ".join(f"{size.n_kept} ({size.verdict})" for size in certificate.sizes)
        notes.append(f"Sizes were tested from large to small, each at 95 %, up to the first that fails: {order} heads.")
    return [HEADING, "", *rows, "", *notes, ""]


def _link_or_copy(file: Path, second_name: Path) -> None:
    """Puts a file under a second name, or copies it where the file system has no hard links."""
    try:
        os.link(file, second_name)
    except OSError:
        shutil.copytree(file, second_name) if file.is_dir() else shutil.copyfile(file, second_name)
