"""Source to target text: what translation and summarisation share."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headcount.core.errors import DataError
from headcount.data.metrics import FROM_TEXTS
from headcount.data.open_task import Request
from headcount.data.readers.tables import Group, Layout, Source, read
from headcount.data.task import SPLITS, Split, Task, Text, Texts
from headcount.data.tasks._generate import Translations, key, most_tokens
from headcount.data.tasks._splits import divide, each
from headcount.data.tasks._tokenize import Packed, check_tokenizer, encode, make_task, texts_of
from headcount.models.modules import unwrap

USES = (
    *("train", "eval", "source_column", "target_column", "max_length", "truncate"),
    *("metric", "num_beams", "max_new_tokens", "prefix"),
)
Names = Sequence[tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Pair:
    """A text and what becomes of it."""

    source: str
    target: str
    where: str

    def key(self) -> bytes:
        """Its content."""
        return f"{self.source}\0{self.target}".encode()


def build(request: Request, sources: Names, targets: Names) -> Task:
    """The task, with the usual names of both columns."""
    check_model(request)
    check_tokenizer(request)
    named = {"source": request.source_column, "target": request.target_column}
    groups = (Group({"source": "source_column"}, sources), Group({"target": "target_column"}, targets))
    layout = Layout(groups, {2: ("source", "target")}, {role: name for role, name in named.items() if name})

    def pairs(source: Source) -> Iterator[Pair]:
        return (Pair(row.text("source"), row.text("target"), row.where) for row in read(source, layout, request.most_rows))

    def divided() -> dict[Split, list[Pair]]:
        return divide(request, pairs, Pair.key)

    rows, prefix = divided(), request.options.get("prefix", "")
    texts = texts_of(request, lambda split: (Text(row.where, prefix + row.source, target=row.target) for row in divided()[split]))
    return from_pairs(request, rows, each(lambda split: Packed(_examples(request, rows[split]))), texts)


def check_model(request: Request) -> None:
    """Raises DataError for a model that is no encoder–decoder with a language head."""
    inner = unwrap(request.model)
    if not getattr(inner.config, "is_encoder_decoder", False) or not any(
        p in type(inner).__name__ for p in ("Generation", "MTModel", "LM")
    ):
        auto = "AutoModelForSeq2SeqLM"
        raise DataError(
            f"task '{request.name}' needs an encoder–decoder with a language head, not {type(inner).__name__}; load it as {auto}"
        )


def from_pairs(request: Request, rows: Mapping[Split, Sequence[Pair]], made: Mapping[Split, Packed], texts: Texts) -> Task:
    """The task of pairs and of the examples made of them."""
    metric = FROM_TEXTS[request.choice("metric", tuple(FROM_TEXTS))]
    references = {
        key(example["input_ids"], example["labels"]): row.target
        for split in SPLITS
        for example, row in zip(made[split], rows[split], strict=True)
    }
    longest = most_tokens(request.model, (len(example["labels"]) for split in SPLITS for example in made[split]))
    said = Translations(
        request.tokenizer,
        references,
        max_new_tokens=request.number("max_new_tokens", longest) or longest,
        num_beams=request.number("num_beams", 1) or 1,
    )
    return make_task(request, made, metric(said), texts)


def _examples(request: Request, rows: Sequence[Pair]) -> Iterator[dict[str, Any]]:
    prefix = request.options.get("prefix", "")
    sources = encode(request, ((row.where, prefix + row.source) for row in rows))
    targets = encode(request, ((row.where, row.target) for row in rows), text_target=True)
    for source, target in zip(sources, targets, strict=True):
        yield {**source, "labels": target["input_ids"]}
