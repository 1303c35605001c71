"""What tests of the server ask with: a token, addresses, a tiny page."""

from __future__ import annotations

import json
from typing import Any

from headcount.runs.report.page import FrontEnd

TOKEN, HOME = "a-token-of-this-launch", "http://127.0.0.1:8000"
ASKS = {"X-Headcount-Token": TOKEN}
FRONT = FrontEnd("1", "a{}")


def data_of(text: str) -> Any:
    return json.loads(text[text.index('id="headcount-data">') + len('id="headcount-data">') : text.rindex("</script>\n<script>")])
