"""Opening the text that a command line names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from headcount.app.console.inputs import ModelAndTaskOptions
from headcount.app.console.models import open_named_task
from headcount.app.console.session import Session
from headcount.app.console.text import TEXT_COLUMNS
from headcount.behaviour.base import Corpus
from headcount.behaviour.corpus import SENTENCES, read_corpus
from headcount.core.errors import ArtifactError, UnsupportedModel
from headcount.data.embedded.rare_words import draw_rare_sentences
from headcount.data.embedded.sentences import draw_sentences, draw_translations
from headcount.data.readers.processor import tokenizer_or_image_processor
from headcount.data.task import Task
from headcount.data.text.annotated import Annotated
from headcount.data.text.sentences import read_annotated
from headcount.workflows.inputs import corpus_or_reason


class OptionalCorpus(NamedTuple):
    """A corpus, or None and the reason why there is none."""

    corpus: Corpus | None
    why_none: str


def open_corpus(
    session: Session,
    data: ModelAndTaskOptions,
    model: nn.Module,
    model_folder: Path,
    *,
    text_file: Path | None = None,
    embedded_name: str | None = None,
    parser_name: str | None = None,
    task: Task | None = None,
    split: str = "calibration",
) -> Corpus:
    """Returns the corpus of the text that a command line names, for a model and the tokenizer in its folder.

    Where roles are compared with a `task`, that one is read if no other text is named, and column names are the task's.
    """
    tokenizer: Any = tokenizer_or_image_processor(model, model_folder, data.trust_remote_code)
    if text_file is None and embedded_name is None:
        task = task or open_named_task(session, data, model, model_folder)
        return read_corpus(model, task, tokenizer, split=split, limit=data.limit, parser=parser_name)  # pyright: ignore[reportArgumentType]
    if getattr(model, "main_input_name", "input_ids") == "pixel_values":
        raise UnsupportedModel(f"{type(model).__name__} reads images, not text; give some with --task image-classification --train FOLDER")
    if tokenizer is None:
        raise ArtifactError(f"{model_folder} holds no tokenizer, so no text can be read; save the model's tokenizer there (tokenizer.json)")
    sentences: Iterable[Annotated]
    if embedded_name is None:
        sentences = read_annotated(text_file, **({} if task else {name: getattr(data, name) for name in TEXT_COLUMNS}))
    elif embedded_name == "translation":
        sentences = draw_translations(number=data.limit or SENTENCES, seed=data.seed)
    elif embedded_name == "rare-words":
        sentences = draw_rare_sentences(data.limit or SENTENCES, seed=data.seed)
    else:
        sentences = draw_sentences(embedded_name, data.limit or SENTENCES, seed=data.seed)  # pyright: ignore[reportArgumentType]
    has_own_end = embedded_name == "translation"  # the embedded translator was trained without a delimiter in front
    return read_corpus(
        model,
        sentences,
        tokenizer,
        limit=data.limit,
        parser=parser_name,
        max_length=data.max_length,
        truncate=data.truncate,
        add_special_tokens=not has_own_end,
        end=(tokenizer.eos_token_id,) if has_own_end else (),
    )


def open_optional_corpus(
    session: Session,
    data: ModelAndTaskOptions,
    model: nn.Module,
    model_folder: Path,
    task: Task,
    *,
    text_file: Path | None,
    embedded_name: str | None,
    parser_name: str | None,
) -> OptionalCorpus:
    """Returns the text for roles and head profiles, that of the task if none is named; None and the reason where the task has none."""
    data = data._replace(limit=data.limit or SENTENCES)
    has_text = text_file is not None or embedded_name is not None
    named = (
        open_corpus(
            session, data, model, model_folder, text_file=text_file, embedded_name=embedded_name, parser_name=parser_name, task=task
        )
        if has_text
        else None
    )
    tokenizer = tokenizer_or_image_processor(model, model_folder, data.trust_remote_code)
    return OptionalCorpus(*corpus_or_reason(model, task, tokenizer, text=named, limit=data.limit, parser=parser_name))
