"""Errors: one base class; each child also inherits the builtin exception that callers would expect."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager


class HeadcountError(Exception):
    """Any error that headcount raises on purpose; its text states rule, value and remedy."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else type(self).__name__


class UnknownName(HeadcountError, KeyError):
    """A name that is not registered, with the nearest known ones."""


def unknown_name_error(kind: str, name: str, known: Iterable[str]) -> UnknownName:
    """Returns the error for a name that is not known, with the nearest known name."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f" Did you mean '{close[0]}'?" if close else ""
    return UnknownName(f"no {kind} '{name}'.{hint} Known: {', '.join(names) or 'none'}")


class OptionError(HeadcountError, ValueError):
    """An option of the wrong type or out of range, or text that does not follow the grammar of options."""


class DuplicateName(HeadcountError, ValueError):
    """Two things registered under one name."""


class PluginError(HeadcountError, RuntimeError):
    """A method that cannot be imported, or returns something else than its kind demands."""


class HeadNameError(HeadcountError, ValueError):
    """Text that is not a head address."""


class UnsupportedModel(HeadcountError, ValueError):
    """A model, or a part of it, that cannot be handled, with the reason."""


class ProbeError(HeadcountError, ValueError):
    """No dummy inputs could be made for a model; the caller can pass inputs."""


class GateError(HeadcountError, ValueError):
    """Gate values or an intervention that do not fit the model."""


class ModelInUse(HeadcountError, RuntimeError):
    """A model that another thread or asyncio task gates, observes or measures."""


class PlanError(HeadcountError, ValueError):
    """A plan or a budget that cannot be carried out; nothing was changed."""


class NotCertified(HeadcountError, ValueError):
    """No size of a pruned model is within the margin, as far as the data can show."""


class VerificationError(HeadcountError, RuntimeError):
    """A cut model that does not equal the gated one, or a gate without effect."""


class ArtifactError(HeadcountError, ValueError):
    """A file that is missing, damaged, of another version, or unsafe to load."""


class MissingExtra(HeadcountError, ImportError):
    """An optional dependency that is not installed, with the command that installs it."""


class DataError(HeadcountError, ValueError):
    """Data that cannot be scored: empty, mislabelled, too long, or of another model; names the example."""


class AlignmentError(DataError):
    """A text whose words cannot be matched to the tokens of a tokenizer."""


class UnknownTokens(UserWarning):
    """Warning: many tokens of a text are unknown to the tokenizer."""


class PartlyRead(UserWarning):
    """Warning: a source has more rows than a limited task reads."""


class NonFinite(HeadcountError, ArithmeticError):
    """A weight, loss or score that is not finite; names where it first occurred."""


class RoundingError(HeadcountError, ArithmeticError):
    """Scores that rounding alone moves by more than their standard error."""


class StatisticsError(HeadcountError, ValueError):
    """Numbers for which a statistic is not defined."""


class OutOfMemory(HeadcountError, MemoryError):
    """Memory ran out even for the smallest batch."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error means that memory ran out: torch, its kernels (oneDNN names no other reason) and the system each say it in their words."""
    texts = (
        "out of memory",
        "DefaultCPUAllocator",
        "can't allocate memory",
        "Cannot allocate memory",
        "bad_alloc",
        "ALLOC_FAILED",
        "could not create a primitive",
        "failed to map segment from shared object",
        "cannot map zero-fill pages",
        "can't start new thread",
    )
    return isinstance(error, MemoryError) or any(text in str(error) for text in texts)


@contextmanager
def raising_out_of_memory(purpose: str) -> Iterator[None]:
    """Raises OutOfMemory in place of the errors by which libraries say so."""
    try:
        yield
    except (RuntimeError, MemoryError, ImportError, OSError) as error:
        if isinstance(error, HeadcountError) or not is_out_of_memory(error):
            raise
        reason = f": {error}" if str(error) else ""
        raise OutOfMemory(
            f"memory ran out during {purpose}{reason}. Give fewer or shorter examples, a smaller batch, bfloat16, or a machine with more memory"
        ) from error


def reraise_if_out_of_memory(error: Exception) -> None:
    """Raises an error again if it says that memory ran out, because a smaller batch may fit."""
    if is_out_of_memory(error):
        raise error


class NothingLeft(HeadcountError):
    """Raised in a worker when no work is left; the leading process continues alone."""
