"""Refuses what would let a file run code, or a process talk to the network behind the user's back: a check of the sources, run by `make check`.

Reads Python by its syntax tree, so that words in comments and strings do not count, and web sources by their text without these.
What is deliberate stands in ALLOWED with its reason; an entry that allows nothing any more is refused too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PYTHON = ("src", "benchmarks", "tools")
WEB = ("web",)
ENDINGS = (".ts", ".tsx", ".js", ".jsx", ".mjs", ".html")

ALLOWED = {
    ("tools/offline.py", "socket.socket"): "asks the kernel to bring up the loopback; connects to nothing",
    ("src/headcount/surgery/source.py", "transformers.dynamic_module_utils"): "reached only with trust_remote_code (--trust-remote-code)",
}
"""File and rule -> why it is deliberate."""

MODULES = {
    **dict.fromkeys(("pickle", "cPickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"), "runs code when it reads a file"),
    **dict.fromkeys(("requests", "httpx", "aiohttp", "urllib3", "urllib.request", "http.client", "ftplib", "smtplib", "telnetlib"),
                    "goes to the network; only huggingface_hub does, when a hub id is named"),
    "transformers.dynamic_module_utils": "runs code that a model folder brings",
    "pty": "runs commands",
}  # fmt: skip
"""Modules that are not imported, with all below them, and why."""

CALLS = {
    **dict.fromkeys(("eval", "exec", "compile", "__import__", "builtins.eval", "builtins.exec", "builtins.compile"), "runs text as code"),
    **dict.fromkeys(("os.system", "os.popen", "subprocess.getoutput", "subprocess.getstatusoutput"), "runs text in a shell"),
    **dict.fromkeys(
        ("pandas.read_pickle", "torch.save", "torch.jit.load", "numpy.fromregex", "pandas.eval"), "reads or writes a pickle, or code"
    ),
    **dict.fromkeys(
        ("yaml.unsafe_load", "yaml.full_load", "yaml.unsafe_load_all", "yaml.full_load_all"), "makes any object that a file names"
    ),
    **dict.fromkeys(("socket.socket", "socket.create_connection", "urllib.request.urlopen"), "goes to the network"),
    "tempfile.mktemp": "names a file that another process may take first; use mkstemp or mkdtemp",
    "shutil.unpack_archive": "writes where an archive says",
}
"""Calls that are never made, and why."""


class Finding(NamedTuple):
    """Something forbidden: where, which rule, and why."""

    file: str
    line: int
    rule: str
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.rule}: {self.why}"


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _is(value: ast.expr | None, wanted: object) -> bool:
    return isinstance(value, ast.Constant) and value.value is wanted


def _safe_loader(call: ast.Call) -> bool:
    loader = _keyword(call, "Loader") or (call.args[1] if len(call.args) > 1 else None)
    name = loader.attr if isinstance(loader, ast.Attribute) else loader.id if isinstance(loader, ast.Name) else ""
    return name in ("SafeLoader", "CSafeLoader")


def _escapes(call: ast.Call) -> bool:
    value = _keyword(call, "autoescape")
    return value is not None and not _is(value, False)


CONDITIONS: dict[str, tuple[Callable[[ast.Call], bool], str]] = {
    "torch.load": (lambda call: _is(_keyword(call, "weights_only"), True), "runs code when it reads a file, unless weights_only=True"),
    "numpy.load": (lambda call: not _keyword(call, "allow_pickle") or _is(_keyword(call, "allow_pickle"), False), "reads pickles"),
    "yaml.load": (_safe_loader, "makes any object that a file names, unless the loader is SafeLoader"),
    "yaml.load_all": (_safe_loader, "makes any object that a file names, unless the loader is SafeLoader"),
    "jinja2.Environment": (_escapes, "writes text from data as HTML, unless autoescape is on"),
    "jinja2.Template": (_escapes, "writes text from data as HTML, unless autoescape is on"),
}  # fmt: skip
"""Calls that must fulfil something, and why."""

KEYWORDS = {"shell": "runs text in a shell", "trust_remote_code": "runs code that a model folder brings; pass on what the user said"}
"""Arguments that are never a literal True, whatever is called."""


def _imports(tree: ast.AST) -> dict[str, str]:
    """What the names of a module stand for: `np` -> `numpy`, `load` -> `torch.load`."""
    found: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.asname: alias.name for alias in node.names if alias.asname}
            found |= {top: top for alias in node.names if not alias.asname for top in [alias.name.partition(".")[0]]}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _name(node: ast.expr, known: dict[str, str]) -> str:
    """The dotted name of what is called; empty for a method of a value."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    if parts and node.id not in known:
        return ""
    return ".".join([known.get(node.id, node.id), *reversed(parts)])


def _module(name: str) -> str | None:
    return next((module for module in MODULES if name == module or name.startswith(f"{module}.")), None)


def _of_import(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    base = node.module or "" if isinstance(node, ast.ImportFrom) and not node.level else ""
    names = [base, *(f"{base}.{alias.name}" for alias in node.names)] if base else [alias.name for alias in node.names]
    for module in dict.fromkeys(filter(None, map(_module, names if isinstance(node, ast.Import) or base else []))):
        yield module, MODULES[module]


def _of_call(call: ast.Call, known: dict[str, str]) -> Iterator[tuple[str, str]]:
    name = _name(call.func, known)
    if name in CALLS:
        yield name, CALLS[name]
    if name in CONDITIONS and not CONDITIONS[name][0](call):
        yield name, CONDITIONS[name][1]
    if isinstance(call.func, ast.Attribute) and call.func.attr == "extractall" and not _keyword(call, "filter"):
        yield "extractall", "writes where an archive says, unless a filter is given"
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("to_pickle", "read_pickle"):
        yield call.func.attr, "reads or writes a pickle"
    for word, why in KEYWORDS.items():
        if _is(_keyword(call, word), True):
            yield f"{word}=True", why
    if _is(_keyword(call, "verify"), False):
        yield "verify=False", "talks to anybody who answers"


def check_python(text: str, file: str) -> list[Finding]:
    """What is forbidden in a Python source."""
    tree = ast.parse(text, file)
    known = _imports(tree)
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            found += [Finding(file, node.lineno, rule, why) for rule, why in _of_import(node)]
        elif isinstance(node, ast.Call):
            found += [Finding(file, node.lineno, rule, why) for rule, why in _of_call(node, known)]
    return found


_SKIP = re.compile(r"//[^\n]*|/\*.*?\*/|<!--.*?-->|'(?:\\.|[^'\\\n])*'|\"(?:\\.|[^\"\\\n])*\"", re.DOTALL)
_WEB = re.compile(
    r"\b(innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write(?:ln)?|eval(?=\s*\()|new\s+Function)\b"
)


def check_web(text: str, file: str) -> list[Finding]:
    """What is forbidden in a web source."""
    bare = _SKIP.sub(lambda match: "\n" * match[0].count("\n") + " ", text)
    why = "makes text from data into elements or code; set textContent"
    return [Finding(file, bare.count("\n", 0, match.start()) + 1, match[1], why) for match in _WEB.finditer(bare)]


def check(root: Path, allowed: dict[tuple[str, str], str]) -> list[Finding]:
    """What is forbidden below a folder and not allowed, and what is allowed for nothing."""
    found: list[Finding] = []
    for folder in PYTHON:
        for path in sorted((root / folder).rglob("*.py")):
            found += check_python(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())
    for folder in WEB:
        for path in sorted(path for path in (root / folder).rglob("*") if path.suffix in ENDINGS and "node_modules" not in path.parts):
            found += check_web(path.read_text(encoding="utf-8"), path.relative_to(root).as_posix())
    used = {(finding.file, finding.rule) for finding in found}
    idle = [
        Finding(file, 0, rule, "is allowed, but not there any more; take it out of ALLOWED")
        for file, rule in allowed
        if (file, rule) not in used
    ]
    return [finding for finding in found if (finding.file, finding.rule) not in allowed] + idle


def main() -> int:
    """Prints what is forbidden; 1 if anything is."""
    found = check(ROOT, ALLOWED)
    for finding in found:
        print(finding, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
