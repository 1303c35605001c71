"""Reads the types of web/src/contract.ts and says where data do not fit them: a field that is missing, unknown, or of another type."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

CONTRACT = Path(__file__).parents[2] / "web" / "src" / "contract.ts"
TOKEN = re.compile(r'\s*("(?:[^"\\]|\\.)*"|[A-Za-z_]\w*|-?\d+|\[\]|[{}\[\]()<>|,;:?=])')
PLAIN = {"string": str, "boolean": bool}


def _tokens(text: str) -> list[str]:
    text = re.sub(r"/\*.*?\*/", " ", text, flags=re.DOTALL)
    text = re.sub(r"//[^\n]*", " ", text)
    words, position = [], 0
    while match := TOKEN.match(text, position):
        words.append(match[1])
        position = match.end()
    assert not text[position:].strip(), f"cannot read the contract at {text[position : position + 40]!r}"
    return words


class Parser:
    """Types as nested tuples, by name."""

    def __init__(self, text: str) -> None:
        self.words, self.at = _tokens(text), 0
        self.types: dict[str, Any] = {}
        while self.at < len(self.words):
            self._declaration()

    def _next(self, wanted: str | None = None) -> str:
        word = self.words[self.at]
        assert wanted is None or word == wanted, f"{word} where {wanted} was expected"
        self.at += 1
        return word

    def _peek(self) -> str:
        return self.words[self.at] if self.at < len(self.words) else ""

    def _declaration(self) -> None:
        self._next("export")
        kind, name = self._next(), self._next()
        if kind == "type":
            self._next("=")
            self.types[name] = self._type()
            self._next(";")
        else:
            self.types[name] = self._object()

    def _object(self) -> Any:
        self._next("{")
        fields = {}
        while self._peek() != "}":
            name = self._next().strip('"')
            optional = self._peek() == "?" and bool(self._next())
            self._next(":")
            fields[name] = (optional, self._type())
            if self._peek() in (";", ","):
                self._next()
        self._next("}")
        return ("object", fields)

    def _type(self) -> Any:
        options = [self._postfix()]
        while self._peek() == "|":
            self._next()
            options.append(self._postfix())
        return options[0] if len(options) == 1 else ("union", options)

    def _postfix(self) -> Any:
        single = self._single()
        while self._peek() == "[]":
            self._next()
            single = ("array", single)
        return single

    def _single(self) -> Any:
        word = self._peek()
        if word == "{":
            return self._object()
        if word in ("(", "["):
            self._next()
            parts = [self._type()]
            while self._peek() == ",":
                self._next()
                parts.append(self._type())
            self._next(")" if word == "(" else "]")
            return parts[0] if word == "(" else ("tuple", parts)
        self._next()
        if word == "Record":
            self._next("<")
            self._type()
            self._next(",")
            value = self._type()
            self._next(">")
            return ("record", value)
        return ("literal", json.loads(word)) if word[0] in '"-0123456789' else ("name", word)


TYPES = Parser(CONTRACT.read_text(encoding="utf-8")).types


def wrong(value: Any, kind: Any, location: str = "") -> list[str]:
    """What does not fit; nothing if all does."""
    if isinstance(kind, str):
        kind = ("name", kind)
    tag, inner = kind
    if tag == "union":
        wrongs = [wrong(value, option, location) for option in inner]
        return min(wrongs, key=len) if all(wrongs) else []
    if tag == "literal":
        return [] if value == inner and type(value) is type(inner) else [f"{location}: {value!r} is not {inner!r}"]
    if tag == "array":
        return _each(value, [inner] * len(value), location) if isinstance(value, list) else [f"{location}: {value!r:.60} is no list"]
    if tag == "tuple":
        fits = isinstance(value, list) and len(value) == len(inner)
        return _each(value, inner, location) if fits else [f"{location}: {value!r:.60} is no tuple of {len(inner)}"]
    if tag == "record":
        fits = isinstance(value, dict)
        return (
            [line for key, each in value.items() for line in wrong(each, inner, f"{location}.{key}")]
            if fits
            else [f"{location} is no record"]
        )
    if tag == "object":
        return _fields(value, inner, location)
    return _named(value, inner, location)


def _each(values: list[Any], kinds: list[Any], location: str) -> list[str]:
    return [line for i, (value, kind) in enumerate(zip(values, kinds, strict=True)) for line in wrong(value, kind, f"{location}[{i}]")]


def _fields(value: Any, fields: dict[str, Any], location: str) -> list[str]:
    if not isinstance(value, dict):
        return [f"{location}: {value!r:.60} is no object"]
    problems = [f"{location}.{name} is missing" for name, (optional, _) in fields.items() if name not in value and not optional]
    problems += [f"{location}.{name} is not in the contract" for name in value if name not in fields]
    return problems + [
        line for name, (_, kind) in fields.items() if name in value for line in wrong(value[name], kind, f"{location}.{name}")
    ]


def _named(value: Any, name: str, location: str) -> list[str]:
    if name == "unknown":
        return []
    if name == "null":
        return [] if value is None else [f"{location}: {value!r:.60} is not null"]
    if name == "number":
        good = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
        return [] if good else [f"{location}: {value!r:.60} is no number"]
    if name in PLAIN:
        return [] if isinstance(value, PLAIN[name]) else [f"{location}: {value!r:.60} is no {name}"]
    return wrong(value, TYPES[name], location)


def check(value: Any, kind: str) -> None:
    """Fails with the first places where a value, as JSON gives it, does not fit a type of the contract."""
    problems = wrong(json.loads(json.dumps(value, allow_nan=False)), kind, kind)
    assert not problems, problems[:10]
