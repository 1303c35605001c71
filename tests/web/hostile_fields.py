"""Strings that would run, load or break something if a page took text from models and data for more than text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

STRINGS = [
    "<script>window.hacked=1</script>",
    "</script><script>window.hacked=1</script>",
    "</SCRIPT ><img src=x onerror=window.hacked=1>",
    "<!--<script>window.hacked=1</script>",
    "--><script>window.hacked=1</script>",
    "<img src=x onerror=window.hacked=1>",
    '"><img src=x onerror=window.hacked=1>',
    "'><svg onload=window.hacked=1>",
    "<svg/onload=window.hacked=1>",
    "<svg><script>window.hacked=1</script></svg>",
    "<svg><animate onbegin=window.hacked=1 attributeName=x dur=1s>",
    "<iframe src=javascript:window.hacked=1>",
    "<iframe srcdoc='<script>parent.hacked=1</script>'>",
    "<object data=javascript:window.hacked=1>",
    "<embed src=https://example.invalid/x>",
    "<link rel=stylesheet href=https://example.invalid/x.css>",
    "<style>*{display:none}</style>",
    "</style><script>window.hacked=1</script>",
    "<base href=https://example.invalid/>",
    "<meta http-equiv=refresh content='0;url=https://example.invalid/'>",
    "<body onload=window.hacked=1>",
    "<input autofocus onfocus=window.hacked=1>",
    "<details open ontoggle=window.hacked=1>",
    "<video><source onerror=window.hacked=1>",
    "<form action=https://example.invalid/><button>",
    "<a href=javascript:window.hacked=1>x</a>",
    "javascript:window.hacked=1",
    "JaVaScRiPt:window.hacked=1",
    "data:text/html,<script>window.hacked=1</script>",
    "vbscript:window.hacked=1",
    "{{constructor.constructor('window.hacked=1')()}}",
    "${window.hacked=1}",
    "`${window.hacked=1}`",
    "'+(window.hacked=1)+'",
    '";window.hacked=1;//',
    "\\u003cscript\\u003ewindow.hacked=1\\u003c/script\\u003e",
    "\\x3cscript\\x3ewindow.hacked=1",
    "&lt;script&gt;window.hacked=1&lt;/script&gt;",
    "&#60;script&#62;window.hacked=1",
    "<scr\0ipt>window.hacked=1</scr\0ipt>",
    "red;background:url(https://example.invalid/x)",
    "}*{display:none}",
    "expression(window.hacked=1)",
    "url(https://example.invalid/x)",
    "@import 'https://example.invalid/x.css';",
    "__proto__",
    "constructor",
    "hasOwnProperty",
    "toString",
    "../../../etc/passwd",
    '=HYPERLINK("https://example.invalid")',
    "@SUM(1+1)*cmd|' /C calc'!A0",
    "\u202eecilam\u202c",
    "\u2066\u2067\u200f\u061c",
    "\u2028\u2029\ufeff",
    "\ud83d\ude00" * 40,
    "Z\u0351\u036b\u0343\u0321\u0317\u0330" * 20,
    "a" * 3000,
    "%s%n%x{0}%00",
    "\n\r\t\v",
]


FIXED = ("heads", "maps", "live")
"""Addresses of heads are checked when a run is written, maps are base64, the token is the server's."""
NAMED = ("versions", "machine", "config", "data")
"""Records whose keys are free too."""
CHOICES = {("scores", "kind"), ("bench", "name"), ("figures", "kind")}
CHOICES |= {("points", "verdict"), ("sizes", "verdict"), ("chosen", "verdict")}
"""Fields of which the contract says what they can be."""


def hostile(value: Any, words: Sequence[str], path: tuple[str, ...] = ()) -> Any:
    """The payload with a string in every field that a model or a data set can write: equal values get the same one."""
    if isinstance(value, dict):
        free = bool(path) and path[-1] in NAMED
        return {
            pick(key, words) if free and at == 0 else key: hostile(one, words, (*path, key)) for at, (key, one) in enumerate(value.items())
        }
    if isinstance(value, list):
        return [hostile(one, words, path) for one in value]
    fixed = not isinstance(value, str) or path[-1] in FIXED or path[-2:] in CHOICES
    return value if fixed else pick(value, words)


def pick(value: str, words: Sequence[str]) -> str:
    """The string in place of a value, by its hash."""
    return words[crc32(value.encode()) % len(words)]
