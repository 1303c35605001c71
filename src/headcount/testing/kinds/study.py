"""The laws of studies."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PretrainedConfig, PreTrainedModel

import headcount as hc
from headcount.core.errors import HeadcountError, OptionError
from headcount.core.figure import Figure
from headcount.core.options import Configurable
from headcount.core.registry import STUDIES
from headcount.core.study_result import StudyResult
from headcount.data.embedded.sentences import draw_sentences
from headcount.data.embedded.tokenizer import build_tokenizer
from headcount.data.task import Task, pad
from headcount.studies._base import Study, StudyInfo
from headcount.studies._results import run_study
from headcount.studies._run_study import PythonSources, open_context, read_compared_model_name
from headcount.testing.kinds.declaration import Checks, KindOfMethod, parse_and_check_declaration

MODEL = TASK = "demo/entailment"
TEXT_MODEL = "demo/encoder-english"
N_SENTENCES = 80
N_EXAMPLES = 8
PLACED = ("x", "counts", "edges", "ticks", "limits", "n", "references", "start")
"""Fields of figures whose numbers need not stand in the table: places on an axis, counts and lines for comparison."""


class StudyLaw(StrEnum):
    """The laws of studies beside those of declarations."""

    REFUSES_OTHER_MODELS = "a model without heads is refused before it runs"
    MEASURES = "it measures"
    LEAVES_THE_MODEL = "it leaves the model as it was"
    NAMES_ITSELF = "its result names the study with its options"
    HAS_TABLES = "it has a table with rows"
    HAS_SENTENCE = "its verdict is a sentence"
    IS_FINITE = "every number of a table is finite, and None where it is not defined"
    IS_PLAIN = "the plain data of its result give it back"
    FIGURES_ARE_PLAIN = "the plain data of a figure give it back"
    FIGURES_HAVE_UNITS = "a figure names its axes, and what it counts where it counts"
    FIGURES_SHOW_TABLES = "the numbers of a figure stand in its table"
    SAME_AGAIN = "it measures the same twice"


KIND = KindOfMethod(STUDIES, Study, StudyInfo, Study.parse, StudyLaw)


class _WithoutHeads(PreTrainedModel):
    """A model without attention, which counts its passes."""

    config_class = PretrainedConfig

    def __init__(self) -> None:
        config = PretrainedConfig()
        config.name_or_path = "a model without heads"
        super().__init__(config)
        self.linear = nn.Linear(2, 2)
        self.n_passes = 0

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Returns nothing of interest."""
        self.n_passes += 1
        return self.linear(input_ids.float())


def check_study(
    study: str | Configurable,
    model: str | Path | None = None,
    data: str | None = None,
    *,
    text: Any = None,
    out: str | Path | None = None,
    limit: int | None = N_EXAMPLES,
) -> StudyResult:
    """Raises LawBroken, an AssertionError, unless a study keeps the laws of studies; returns its result.

    The laws: it is a frozen dataclass with a docstring, documented options that refuse wrong values, and a complete `info`; its text gives it back;
    a model without heads is refused before it runs; the result names the study, has a verdict and tables with rows of finite numbers, and figures
    that name their axes and show what stands in their tables; result and figures are given back by their plain data; it measures the same twice,
    the second time from its run folder if it needs one, unless `info.measures_time`; the model is left as it was.

    Args:
        study: The study as an object, or its text, such as "layers(how=mean)".
        model: The folder, hub id or `demo/NAME` of its model; by default demo/entailment, or demo/encoder-english for a study of text alone.
        data: The name of its task; by default demo/entailment for a study of a task.
        text: The text that roles are measured on; by default sentences of the embedded English for a study that needs a text.
        out: The run folder of its first measurement, for a study that needs one, or to look at what it keeps.
        limit: The most examples read of each split.

    Example:
        >>> result = check_study("single-heads")
    """
    method, checks = parse_and_check_declaration(study, KIND)
    needs = method.info.needs
    if model is None and "model" in needs:
        model = TEXT_MODEL if "text" in needs else MODEL
    if data is None and "task" in needs:
        data = TASK
    if text is None and "text" in needs and data is None:
        text = draw_sentences("english", N_SENTENCES, seed=0)
    if model is None and "comparison" in needs and out is not None:
        model = read_compared_model_name(out)
    if "model" in needs:
        _check_refusal(method, checks)
    sources = PythonSources(data, None, text, 0, limit, None)

    def measure(folder: Path | None) -> StudyResult:
        with open_context(sources, model, out=folder, new_head=False, progress=False) as context:
            loaded = context.loaded.model if "model" in needs else nn.Module()
            with (
                checks.require_model_unchanged(loaded, StudyLaw.LEAVES_THE_MODEL, random_numbers=False),
                checks.require_success(StudyLaw.MEASURES),
            ):
                return run_study(method, context)

    keeps_work = bool(needs & {"run", "comparison"})
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(out) if out is not None else Path(scratch) / "run" if keeps_work else None
        result = measure(folder)
        _check_result(method, result, checks)
        if not method.info.measures_time:
            first, second = _to_json(result), _to_json(measure(folder if keeps_work else None))
            differing = [name for name in first if first[name] != second[name]]
            checks.require(not differing, StudyLaw.SAME_AGAIN, f"{', '.join(differing)} differ between two measurements")
    return result


def _check_refusal(method: Study, checks: Checks) -> None:
    """Checks that a model without heads is refused by an error of headcount that is not about options, before it runs."""
    model, needs = _WithoutHeads(), method.info.needs
    example = {"input_ids": [0, 1], "labels": 0}
    task = Task("any", [example], [example], [example], collate=pad) if "task" in needs else None
    text = ["the dog runs ."] if "text" in needs and task is None else None
    tokenizer = build_tokenizer(segments=True)
    with tempfile.TemporaryDirectory() as scratch:
        try:
            out = Path(scratch) / "run" if "run" in needs else None
            hc.study(method, model, task, tokenizer=tokenizer, text=text, out=out, progress=False)
        except OptionError as error:
            raise checks.broken(StudyLaw.REFUSES_OTHER_MODELS, f"it is refused for another reason: {error}") from error
        except HeadcountError:
            checks.require(not model.n_passes, StudyLaw.REFUSES_OTHER_MODELS, "it ran before it was refused")
        except Exception as error:  # a raw error tells users neither rule nor remedy
            raise checks.broken(StudyLaw.REFUSES_OTHER_MODELS, f"{type(error).__name__}: {error}") from error
        else:
            raise checks.broken(StudyLaw.REFUSES_OTHER_MODELS, "it is taken")


def _check_result(method: Study, result: StudyResult, checks: Checks) -> None:
    """Checks the tables, the verdict and the figures of a result."""
    checks.require(result.study == str(method), StudyLaw.NAMES_ITSELF, f"it names '{result.study}'")
    checks.require(any(table.rows for table in result.tables), StudyLaw.HAS_TABLES, f"{len(result.tables)} tables hold no row")
    for table in result.tables:
        infinite = [cell for row in table.rows for cell in row if isinstance(cell, float) and not math.isfinite(cell)]
        checks.require(not infinite, StudyLaw.IS_FINITE, f"table '{table.name}' holds {infinite[:1]}")
    is_sentence = result.sentence.strip().endswith((".", "?", "!"))
    checks.require(is_sentence, StudyLaw.HAS_SENTENCE, f"it is '{result.sentence}'")
    with checks.require_success(StudyLaw.IS_PLAIN):
        plain = _to_json(result)
        checks.require(_to_json(StudyResult.from_dict(plain)) == plain, StudyLaw.IS_PLAIN, "they give another result")
    for figure in result.figures:
        is_named = bool(figure.x.label and figure.y.label and (figure.n is None or (figure.n > 0 and figure.n_unit)))
        checks.require(is_named, StudyLaw.FIGURES_HAVE_UNITS, f"figure '{figure.name}' does not")
        with checks.require_success(StudyLaw.FIGURES_ARE_PLAIN):
            again = Figure.from_dict(json.loads(json.dumps(figure.to_dict())))
        checks.require(again == figure, StudyLaw.FIGURES_ARE_PLAIN, f"those of figure '{figure.name}' give another one")
        cells = {cell for row in result.table(figure.table).rows for cell in row}
        missing = sorted(set(_drawn_numbers(figure.to_dict())) - cells)
        checks.require(not missing, StudyLaw.FIGURES_SHOW_TABLES, f"{missing[:1]} of figure '{figure.name}' is not in '{figure.table}'")


def _drawn_numbers(value: Any, name: str = "") -> Iterator[float]:
    """Yields the numbers that a figure shows, apart from those of its axes."""
    if name in PLACED:
        return
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _drawn_numbers(entry, key)
    elif isinstance(value, list):
        for entry in value:
            yield from _drawn_numbers(entry)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield value


def _to_json(result: StudyResult) -> Any:
    return json.loads(json.dumps(result.to_dict()))
