"""The laws of importances, roles and pruners, ours or a plug-in's. Each check raises LawBroken, an AssertionError, that names the law.

def test_my_importance():
    check_importance("top-share(k=2)")      # by its registered name, or as an object: TopShare(k=2)
"""

from __future__ import annotations

import math
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import MISSING, fields, is_dataclass
from inspect import getdoc
from pathlib import Path
from typing import Any, Literal, get_args
from unittest import mock

import torch
from torch import Tensor, nn

import headcount as hc
from headcount.behaviour.base import View
from headcount.core.errors import HeadcountError
from headcount.core.options import Configurable, options_of
from headcount.core.registry import IMPORTANCES, PRUNERS, ROLES, Registry
from headcount.data.chunks import select_rows
from headcount.data.embedded.sentences import draw_sentences, draw_translations
from headcount.data.task import Task
from headcount.models.tiny.build import tiny_model
from headcount.surgery.source import local_folder
from headcount.testing.calls import join_rows
from headcount.testing.fingerprint import require_unchanged
from headcount.testing.laws import LawBroken, list_heads

N_EXAMPLES = 8
N_SENTENCES = 40
N_IMAGES = 8
RoleAttention = Literal["self", "cross", "image"]
"""The attention that a role is tested on: of a text, between a text and its translation, or of an image."""


class _Checks:
    """Raises LawBroken for the laws that one method breaks."""

    def __init__(self, method: Configurable, kind: str) -> None:
        self.method, self.kind = method, kind

    def require(self, holds: bool, law: str, detail: str) -> None:
        """Raises LawBroken unless the law holds."""
        if not holds:
            raise LawBroken(f"{self.kind} '{self.method}' breaks the law that {law}: {detail}")

    @contextmanager
    def require_success(self, law: str) -> Iterator[None]:
        """Turns any error inside into LawBroken, with the last line of the method's own module that it passed."""
        try:
            yield
        except LawBroken:
            raise
        except Exception as error:  # whatever a method's code raises under a law, the law does not hold
            file = getattr(sys.modules.get(type(self.method).__module__), "__file__", None)
            own_lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
            location = f" ({Path(file).name}, line {own_lines[-1]})" if file and own_lines else ""
            detail = f"{type(error).__name__}: {error}{location}"
            raise LawBroken(f"{self.kind} '{self.method}' breaks the law that {law}: {detail}") from error


def _parse_and_check_declaration(method: str | Configurable, registry: Registry) -> tuple[Configurable, _Checks]:
    """Returns the object of a method; raises LawBroken unless it is declared as a method of its kind is."""
    if isinstance(method, str):
        try:
            method = registry.parse(method, Configurable)
        except (HeadcountError, TypeError) as error:  # TypeError: a field that is no option, or an abstract method
            raise LawBroken(f"{registry.singular} '{method}' breaks the law that its text describes an object: {error}") from error
    cls, checks = type(method), _Checks(method, registry.singular)
    parameters = getattr(cls, "__dataclass_params__", None)
    checks.require(
        isinstance(method, Configurable) and parameters is not None and parameters.frozen and "__dataclass_params__" in vars(cls),
        "it is a frozen dataclass derived from the base class of its kind",
        f"{cls.__qualname__} is not; write @dataclass(frozen=True) above it",
    )
    with checks.require_success("every field is an option"):
        options = options_of(cls)
    for option in options:
        checks.require(bool(option.help.strip()), "every option has a help text", f"{option.name} has none; write option(default, help)")
    text = getdoc(cls) or ""
    own = bool(vars(cls).get("__doc__")) and not text.startswith(f"{cls.__name__}(")
    checks.require(
        own, "its class has a docstring", f"{cls.__qualname__} has none; say in one sentence what it does, then formula and paper"
    )
    info = getattr(cls, "info", None)
    checks.require(is_dataclass(info), "its class declares info", f"info is {info!r}; write info = {registry.singular.title()}Info(…)")
    for field in fields(info) if is_dataclass(info) else ():
        is_required = field.default is MISSING and field.default_factory is MISSING
        checks.require(not is_required or getattr(info, field.name) != "", "its info is complete", f"info.{field.name} is empty")
    with checks.require_success("its text and its plain data give it back"):
        checks.require(cls.from_dict(method.to_dict()) == method, "its plain data give it back", f"{method.to_dict()} does not")
        parsed = registry.parse(str(method), Configurable)
        checks.require(parsed == method and hash(parsed) == hash(method), "its text gives it back", f"'{method}' gives '{parsed}'")
    return method, checks


def _tiny_classifier() -> nn.Module:
    return tiny_model("bert", auto="AutoModelForSequenceClassification").eval()


def _random_token_task(model: nn.Module) -> Task:
    """Returns a task of random tokens and labels for a tiny classifier."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(5, int(model.config.vocab_size), (N_EXAMPLES, 7), generator=generator)  # pyright: ignore
    labels = torch.arange(N_EXAMPLES) % 2
    batch = {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels}
    examples = [select_rows(batch, slice(row, row + 1)) for row in range(N_EXAMPLES)]
    return Task("random tokens", examples, examples, examples, join_rows)


def _zero_output_projection(model: nn.Module, head: hc.Head, head_map: hc.HeadMap) -> None:
    block = head_map.block_of(head)
    part = next(part for part in block.slices if part.tensor == f"{block.o.path}.weight")
    entries = torch.tensor(list(part.rows.of(block.position(head))))
    with torch.no_grad():
        model.get_parameter(part.tensor).index_fill_(part.axis, entries, 0.0)


def check_importance(importance: str | Configurable) -> None:
    """Raises LawBroken, an AssertionError, unless an importance keeps the laws of importances on a tiny model.

    The laws: it is a frozen dataclass with a docstring, documented options and a complete `info`; its text gives it back; it scores every head of
    the model with a finite number, the same one again and for every batch size, and leaves the model as it was; a head whose output projection is
    zero scores zero and ranks last, unless `info.sees_projection` is False.

    Args:
        importance: The importance as an object, or its text, such as "top-share(k=2)".

    Example:
        >>> check_importance("gradient:token")
    """
    method, checks = _parse_and_check_declaration(importance, IMPORTANCES)
    model = _tiny_classifier()
    heads, task = hc.HeadMap.of(model), _random_token_task(model)
    with checks.require_success("it scores a model and leaves it as it was"), require_unchanged(model, str(method)):
        scores = hc.score(model, task, method)  # pyright: ignore[reportArgumentType]
    checks.require(
        tuple(scores.heads) == heads.heads and len(scores.values) == len(heads),
        "it scores every head once",
        f"{len(scores.values)} scores for {len(heads)} heads",
    )
    infinite = [str(head) for head, value in zip(heads, scores.values, strict=True) if not math.isfinite(value)]
    checks.require(not infinite, "its scores are finite", f"those of {', '.join(infinite)} are not")
    for options, law in (({}, "the same seed gives the same scores"), ({"batch_size": 3}, "batches do not matter")):
        with checks.require_success(law):
            again = hc.score(model, task, method, **options)  # pyright: ignore[reportArgumentType]
        gap = max(abs(first - second) for first, second in zip(scores.values, again.values, strict=True))
        scale = max(1.0, *map(abs, scores.values))
        checks.require(gap <= 1e-6 * scale, law, f"scores differ by {gap:.3g}")
    if not getattr(type(method).info, "sees_projection", True):  # pyright: ignore[reportAttributeAccessIssue]
        return
    silent = heads[len(heads) // 2]
    _zero_output_projection(model, silent, heads)
    with checks.require_success("it scores a model with a silent head"):
        scores = hc.score(model, task, method, normalise="none")  # pyright: ignore[reportArgumentType]
    law = "a head whose output projection is zero scores zero and ranks last"
    checks.require(abs(scores[silent]) <= 1e-9, law, f"it scores {scores[silent]:.3g}; declare sees_projection=False if that is meant")
    if min(scores.values) >= 0:
        checks.require(scores.ranking()[-1] == silent, law, f"{scores.ranking()[-1]} ranks last; is higher_is_keep right?")


def _open_model_text_and_tokenizer(attention: RoleAttention) -> tuple[nn.Module, Any, Any]:
    """Returns a model, text or images, and a tokenizer on which roles of an attention can be tested."""
    if attention == "image":
        model = tiny_model("vit").eval()
        generator, side = torch.Generator().manual_seed(0), int(model.config.image_size)
        images = [{"pixel_values": torch.randn(3, side, side, generator=generator, dtype=torch.float64)} for _ in range(N_IMAGES)]
        return model, images, None
    from transformers import AutoTokenizer

    name = "demo/encoder" if attention == "self" else "demo/translator"
    text = draw_sentences("english", N_SENTENCES) if attention == "self" else draw_translations(number=N_SENTENCES)
    return hc.load(name).eval(), text, AutoTokenizer.from_pretrained(local_folder(name))


@contextmanager
def _record_sieves(role: Configurable, check_returned_sieve_tensor: Callable[[View, Tensor], None]) -> Iterator[list[Any]]:
    """Calls `check_returned_sieve_tensor` with every view and sieve of a role inside; the list holds the sieves."""
    original: Any = getattr(type(role), "sieve", None)
    sieves: list[Any] = []

    def checked_sieve(self: Any, view: Any) -> Any:
        sieve = original(self, view)
        check_returned_sieve_tensor(view, sieve)
        sieves.append(sieve)
        return sieve

    with mock.patch.object(type(role), "sieve", checked_sieve):
        yield sieves


def check_role(role: str | Configurable, text: Any = None) -> None:
    """Raises LawBroken, an AssertionError, unless a role keeps the laws of roles on a small model.

    The laws: it is a frozen dataclass with a docstring, documented options and a complete `info`; its text gives it back; its sieve is a boolean
    tensor [batch, q, k]; every row of the table is finite; the model is left as it was.

    Args:
        role: The role as an object, or its text, such as "offset:-1".
        text: What the role is tested on, as for `hc.roles`, where sentences of the embedded English (translations, images) do not show it: texts,
            pairs of texts, annotated sentences, a file. demo/encoder reads it (demo/translator for cross-attention).

    Example:
        >>> check_role("offset:-1")
    """
    method, checks = _parse_and_check_declaration(role, ROLES)
    checks.require(callable(getattr(method, "sieve", None)), "it has a sieve", "write sieve(self, view)")
    attentions = getattr(type(method).info, "attention", frozenset({"self"}))  # pyright: ignore[reportAttributeAccessIssue]
    attention: RoleAttention = next(name for name in get_args(RoleAttention) if name in attentions)
    model, embedded_text, tokenizer = _open_model_text_and_tokenizer(attention)

    def check_returned_sieve_tensor(view: View, sieve: Any) -> None:
        law = "its sieve is a boolean tensor [batch, q, k]"
        checks.require(isinstance(sieve, Tensor) and sieve.dtype is torch.bool, law, f"got {getattr(sieve, 'dtype', type(sieve).__name__)}")
        expected = (*view.queries.ids.shape, view.keys.ids.shape[1])
        fits = sieve.ndim == 3 and all(size in (1, full) for size, full in zip(sieve.shape, expected, strict=True))
        checks.require(fits, law, f"got the shape {tuple(sieve.shape)}, expected {expected}")

    with (
        checks.require_success("it is tested on a model and leaves it as it was"),
        require_unchanged(model, str(method)),
        _record_sieves(method, check_returned_sieve_tensor) as sieves,
    ):
        table = hc.roles(model, embedded_text if text is None else text, tokenizer, only=[method])  # pyright: ignore[reportArgumentType]
    rows = [row for row in table.rows if row.role == str(method)]
    reasons = "; ".join(table.untested.values()) or f"the table has rows of {', '.join(table.roles())}"
    checks.require(bool(sieves and rows), "it is tested on a text that shows it", f"{reasons}. Pass such a text: check_role(role, text)")
    infinite = [str(row.head) for row in rows if not all(math.isfinite(value) for value in (row.bias, row.accuracy, row.p))]
    checks.require(not infinite, "its bias and accuracy are finite", f"those of {', '.join(infinite)} are not")


def check_pruner(pruner: str | Configurable) -> None:
    """Raises LawBroken, an AssertionError, unless a pruner keeps the laws of pruners on a tiny model.

    The laws: it is a frozen dataclass with a docstring, documented options and a complete `info`; its text gives it back; it keeps exactly the
    number of heads that is asked for, and never removes a protected one; the same seed gives the same plan; the model is left as it was.

    Args:
        pruner: The pruner as an object, or its text, such as "random:type".

    Example:
        >>> check_pruner("random")
    """
    method, checks = _parse_and_check_declaration(pruner, PRUNERS)
    model = _tiny_classifier()
    heads, task = hc.HeadMap.of(model), _random_token_task(model)
    size = None if getattr(method, "sizing_option_text", "") else len(heads) // 2

    def prune_protecting(*protected: hc.Head) -> Any:
        with (
            checks.require_success("it prunes a model and leaves it as it was"),
            require_unchanged(model, str(method), random_numbers=False),
        ):
            return hc.prune(model, task, method, size, protected=protected, repair=False)  # pyright: ignore

    pruned = prune_protecting()
    n_left = len(list_heads(pruned.model))
    checks.require(n_left == len(heads) - len(pruned.plan.removed), "its plan is carried out", f"{n_left} heads are left")
    checks.require(size in (None, n_left), "it keeps exactly the heads that are asked for", f"{n_left} are left, {size} were asked for")
    again = prune_protecting()
    checks.require(again.plan.removed == pruned.plan.removed, "the same seed gives the same plan", "two runs remove different heads")
    if size is None or not pruned.plan.removed:
        return
    protected = pruned.plan.removed[0]
    safe = prune_protecting(protected)
    checks.require(protected not in safe.plan.removed, "protected heads stay", f"{protected} was removed")
    n_safe = len(list_heads(safe.model))
    checks.require(
        n_safe == size, "it keeps exactly the heads that are asked for", f"{n_safe} with a protected head, {size} were asked for"
    )
