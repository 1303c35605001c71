"""The laws of roles."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from enum import StrEnum
from typing import Any, Literal, get_args
from unittest import mock

import torch
from torch import Tensor, nn

import headcount as hc
from headcount.behaviour.base import ProbeRole, Role, RoleInfo, View
from headcount.core.options import Configurable
from headcount.core.registry import ROLES
from headcount.core.role_table import RoleTable
from headcount.data.embedded.sentences import draw_sentences, draw_translations
from headcount.data.text.annotated import Annotated
from headcount.models.tiny.build import tiny_model
from headcount.surgery.source import local_folder
from headcount.testing.kinds.declaration import KindOfMethod, parse_and_check_declaration

N_SENTENCES = 40
N_IMAGES = 8
RoleAttention = Literal["self", "cross", "image"]
"""The attention that a role is tested on: of a text, between a text and its translation, or of an image."""


class RoleLaw(StrEnum):
    """The laws of roles beside those of declarations."""

    HAS_SIEVE = "it has a sieve"
    IS_TESTED = "it is tested on a model"
    LEAVES_THE_MODEL = "it leaves the model as it was"
    SIEVE_IS_MASK = "its sieve is a boolean tensor"
    SIEVE_FITS = "its sieve has the shape [batch, q, k]"
    IS_SHOWN = "it is tested on a text that shows it"
    IS_FINITE = "its bias and accuracy are finite"
    SAME_AGAIN = "the same text gives the same numbers"
    BATCHES_DO_NOT_MATTER = "batches do not matter"


KIND = KindOfMethod(ROLES, Role, RoleInfo, Role.parse, RoleLaw)


def _open_model_text_and_tokenizer(role: Role, attention: RoleAttention) -> tuple[nn.Module, Any, Any]:
    """Returns a model, text or images, and a tokenizer on which a role of an attention can be tested."""
    if attention == "image":
        model = tiny_model("vit").eval()
        generator, side = torch.Generator().manual_seed(0), int(model.config.image_size)
        images = [{"pixel_values": torch.randn(3, side, side, generator=generator, dtype=torch.float64)} for _ in range(N_IMAGES)]
        return model, images, None
    from transformers import AutoTokenizer

    if attention == "cross":
        name, text = "demo/translator", draw_translations(number=N_SENTENCES)
    else:
        name = "demo/decoder" if isinstance(role, ProbeRole) else "demo/encoder"
        text = _sentences_with_annotations(role)
    return hc.load(name).eval(), text, AutoTokenizer.from_pretrained(local_folder(name))


def _sentences_with_annotations(role: Role) -> list[Annotated] | list[tuple[str, str]]:
    """Returns sentences of the embedded English; pairs of them, or sentences whose first words are one cluster, for a role that needs these."""
    sentences = draw_sentences("english", N_SENTENCES)
    if "pairs" in role.info.needs:
        return [(first.text, second.text) for first, second in zip(sentences[::2], sentences[1::2], strict=True)]
    if "clusters" in role.info.needs:
        return [replace(sentence, clusters=(((0, 1), (2, 3)),)) for sentence in sentences]
    return sentences


@contextmanager
def _record_sieves(role: Role, check_returned_sieve_tensor: Callable[[View, Tensor], None]) -> Iterator[list[Tensor]]:
    """Calls `check_returned_sieve_tensor` with every view and sieve of a role inside; the list holds the sieves."""
    original = type(role).sieve
    sieves: list[Tensor] = []

    def checked_sieve(self: Any, view: View) -> Tensor:
        sieve = original(self, view)
        check_returned_sieve_tensor(view, sieve)
        sieves.append(sieve)
        return sieve

    with mock.patch.object(type(role), "sieve", checked_sieve):
        yield sieves


def check_role(role: str | Configurable, text: Any = None) -> None:
    """Raises LawBroken, an AssertionError, unless a role keeps the laws of roles on a small model.

    The laws: it is a frozen dataclass with a docstring, documented options that refuse wrong values, and a complete `info`; its text gives it back;
    its sieve is a boolean tensor [batch, q, k]; every row of the table is finite, the same again and for every batch size; the model is left as
    it was.

    Args:
        role: The role as an object, or its text, such as "offset:-1".
        text: What the role is tested on, as for `hc.roles`, where sentences of the embedded English (pairs, translations, images) do not show it:
            texts, pairs of texts, annotated sentences, a file. demo/encoder reads it (demo/translator for cross-attention).

    Example:
        >>> check_role("offset:-1")
    """
    method, checks = parse_and_check_declaration(role, KIND)
    checks.require(type(method).sieve is not Role.sieve, RoleLaw.HAS_SIEVE, "write sieve(self, view)")
    attention: RoleAttention = next(name for name in get_args(RoleAttention) if name in method.info.attention)
    model, embedded_text, tokenizer = _open_model_text_and_tokenizer(method, attention)

    def check_returned_sieve_tensor(view: View, sieve: Any) -> None:
        is_mask = isinstance(sieve, Tensor) and sieve.dtype is torch.bool
        checks.require(is_mask, RoleLaw.SIEVE_IS_MASK, f"got {getattr(sieve, 'dtype', type(sieve).__name__)}")
        expected = (*view.queries.ids.shape, view.keys.ids.shape[1])
        fits = sieve.ndim == 3 and all(size in (1, full) for size, full in zip(sieve.shape, expected, strict=True))
        checks.require(fits, RoleLaw.SIEVE_FITS, f"got the shape {tuple(sieve.shape)}, expected {expected}")

    def measure_roles(batch_size: int | None = None) -> RoleTable:
        return hc.roles(model, embedded_text if text is None else text, tokenizer, only=[method], batch_size=batch_size)

    with (
        checks.require_model_unchanged(model, RoleLaw.LEAVES_THE_MODEL),
        checks.require_success(RoleLaw.IS_TESTED),
        _record_sieves(method, check_returned_sieve_tensor) as sieves,
    ):
        table = measure_roles()
    rows = [row for row in table.rows if row.role == str(method)]
    reasons = "; ".join(table.untested.values()) or f"the table has rows of {', '.join(table.roles())}"
    checks.require(bool(sieves and rows), RoleLaw.IS_SHOWN, f"{reasons}. Pass such a text: check_role(role, text)")
    infinite = [str(row.head) for row in rows if not all(math.isfinite(value) for value in (row.bias, row.accuracy, row.p))]
    checks.require(not infinite, RoleLaw.IS_FINITE, f"those of {', '.join(infinite)} are not")
    for batch_size, law in ((None, RoleLaw.SAME_AGAIN), (3, RoleLaw.BATCHES_DO_NOT_MATTER)):
        with checks.require_success(law):
            gaps = [
                abs(row.bias - again.bias) / max(1.0, abs(row.bias)) for row, again in zip(table, measure_roles(batch_size), strict=True)
            ]
        checks.require(max(gaps) <= 1e-4, law, f"a bias differs by {max(gaps):.3g} (relative)")
