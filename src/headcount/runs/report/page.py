"""The report as one HTML file with data, script and style, under a content security policy that lets nothing else run or load.

Texts from models and data sets appear only in a script element of type application/json, in which <, > and & are escaped.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from dataclasses import dataclass
from importlib import resources

from headcount.core.errors import ArtifactError
from headcount.runs.report import contract
from headcount.runs.report.plain import replace_control_characters

DATA = "headcount-data"
ESCAPED = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
BAD = {"script": re.compile(r"</script|<!--", re.IGNORECASE), "style": re.compile(r"</style|<!--", re.IGNORECASE)}


@dataclass(frozen=True, slots=True)
class FrontEnd:
    """The built front end: its script and its style."""

    script: str
    style: str


def load_front_end() -> FrontEnd:
    """Returns the front end that is installed with the package."""
    folder = resources.files("headcount.runs.report") / "bundle"
    texts = {}
    for kind, name in (("script", "app.js"), ("style", "app.css")):
        try:
            text = (folder / name).read_text(encoding="utf-8").replace("\r\n", "\n").replace("\r", "\n")
        except (FileNotFoundError, NotADirectoryError) as error:
            raise ArtifactError(
                f"the front end of the report is not there: src/headcount/runs/report/bundle/{name} is missing. "
                "Install headcount from a wheel, or build it in a checkout: make web"
            ) from error
        if BAD[kind].search(text):
            raise ArtifactError(
                f"{name} of the report's front end holds {BAD[kind].pattern}, which would end its element early; build it again"
            )
        texts[kind] = text
    return FrontEnd(texts["script"], texts["style"])


def report_to_json(report: contract.Report) -> str:
    """Returns the report as ASCII JSON that can neither end a script element nor begin markup; raises ValueError for NaN and infinity."""
    text = json.dumps(report, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return re.sub("[<>&\u2028\u2029]", lambda match: ESCAPED[match[0]], text)


def _csp_hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def content_security_policy(front_end: FrontEnd, *, live: bool = False) -> str:
    """Returns the content security policy: the page may run its script, use its style and show its own images; if `live`, ask its server."""
    parts = [
        "default-src 'none'",
        f"script-src {_csp_hash(front_end.script)}",
        f"style-src {_csp_hash(front_end.style)}",
        "img-src data: blob:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return "; ".join([*parts, "connect-src 'self'"] if live else parts)


def page_title(report: contract.Report) -> str:
    """Returns the title of the page."""
    names = [f"{run['model']['name']}{', ' + run['task'] if run['task'] else ''}" for run in report["runs"]]
    return f"{' against '.join(names[::-1])} – headcount"


def render_page(report: contract.Report, front_end: FrontEnd | None = None) -> str:
    """Returns the HTML file; it opens from a folder, by mail or from an archive, without a network."""
    front_end = front_end or load_front_end()
    policy = content_security_policy(front_end, live=report["live"] is not None)
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            "<head>",
            '<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{html.escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>{html.escape(replace_control_characters(page_title(report)))}</title>",
            f"<style>{front_end.style}</style>",
            "</head>",
            "<body>",
            '<div id="headcount"></div>',
            "<noscript><p>This report is drawn by a script within this file, which loads nothing. Allow scripts to view it, or read the "
            "tables (csv, parquet) in the run folder.</p></noscript>",
            f'<script type="application/json" id="{DATA}">{report_to_json(report)}</script>',
            f"<script>{front_end.script}</script>",
            "</body>",
            "</html>",
            "",
        ]
    )
