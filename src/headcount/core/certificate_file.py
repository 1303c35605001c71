"""Certificates as JSON files with a seal over their content."""

from __future__ import annotations

from pathlib import Path

from headcount.core.certificate import Certificate
from headcount.core.errors import ArtifactError
from headcount.core.files import add_seal, is_file, read_json, seal, write_json

NAME = "certificate.json"
SCHEMA = 1


def write_certificate(path: Path, certificate: Certificate) -> None:
    """Writes a certificate with a seal over its content."""
    write_json(path, add_seal({"schema_version": SCHEMA, **certificate.to_dict()}))


def read_certificate(path: Path) -> Certificate:
    """Returns the certificate in a file.

    Raises:
        ArtifactError: the file is missing, damaged, edited or of another version.
    """
    if not is_file(path):
        raise ArtifactError(f"there is no certificate {path}; make one with headcount certify")
    content = read_json(path, unique_names=True)
    if not isinstance(content, dict) or content.get("seal") != seal(content):
        raise ArtifactError(f"{path} is damaged or was edited: its content does not match its seal; make it again with headcount certify")
    if content.get("schema_version") != SCHEMA:
        raise ArtifactError(
            f"{path} has schema version {content.get('schema_version')!r:.20}, this headcount reads {SCHEMA}; install a newer one"
        )
    return Certificate.from_dict({name: value for name, value in content.items() if name not in ("seal", "schema_version")})
