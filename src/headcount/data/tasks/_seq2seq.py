"""Source text to target text: what translation and summarisation share, and the text that an encoder–decoder generates."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor, nn

from headcount.core.errors import DataError
from headcount.core.options import option
from headcount.data.checks import n_positions
from headcount.data.metrics import FROM_TEXTS, IGNORED
from headcount.data.readers.tables import ColumnGroup, ColumnLayout, Source, read_rows
from headcount.data.task import SPLITS, Split, Task, Text, Texts
from headcount.data.task_builder import TaskBuilder, TaskInfo, TaskRequest
from headcount.data.tasks._splits import for_each_split, read_splits
from headcount.data.tasks._tokenize import Packed, check_tokenizer, encode, make_task
from headcount.models.modules import Batch, unwrap
from headcount.models.state import preserve

SEQ2SEQ = TaskInfo(
    uses=("train", "eval", "source_column", "target_column", "max_length", "truncate"), model="AutoModelForSeq2SeqLM", metric="BLEU, chrF"
)


@dataclass(frozen=True, slots=True)
class TextPair:
    """A source text, its target text, and their position in the data."""

    source: str
    target: str
    origin: str

    def identity_bytes(self) -> bytes:
        """Returns what makes two pairs equal: their texts."""
        return f"{self.source}\0{self.target}".encode()


@dataclass(frozen=True)
class GeneratedText(TaskBuilder):
    """A task whose metric compares generated text with references."""

    _: KW_ONLY
    metric: Literal["bleu", "chrf"] = option("bleu", "The metric of generated text")
    num_beams: int = option(1, "Beams of the search; 1 is greedy", minimum=1)
    max_new_tokens: int | None = option(
        None, "Tokens generated at most; none is half as many again as the longest reference, plus 8", minimum=1
    )

    def build_from_pairs(
        self, request: TaskRequest, pairs: Mapping[Split, Sequence[TextPair]], examples: Mapping[Split, Packed], texts: Texts
    ) -> Task:
        """Returns the task of text pairs and of the examples made of them."""
        references = {
            _hash_example_tokens(example["input_ids"], example["labels"]): pair.target
            for split in SPLITS
            for example, pair in zip(examples[split], pairs[split], strict=True)
        }
        longest = max(len(example["labels"]) for split in SPLITS for example in examples[split]) * 3 // 2 + 8
        room = n_positions(request.model, decoder=True)
        most_tokens = self.max_new_tokens or (longest if room is None else min(longest, room - 1))
        generated = GeneratedTexts(request.tokenizer, references, max_new_tokens=most_tokens, num_beams=self.num_beams)
        return make_task(request, examples, FROM_TEXTS[self.metric](generated), texts)


@dataclass(frozen=True)
class TextToText(GeneratedText):
    """A task on files of source and target texts. A subclass names their columns."""

    _: KW_ONLY
    prefix: str = option("", "Text set before every source text, such as 'summarize: ' for T5")
    source_names: ClassVar[Sequence[tuple[str, ...]]] = ()
    target_names: ClassVar[Sequence[tuple[str, ...]]] = ()

    def build(self, request: TaskRequest) -> Task:
        """Returns the task."""
        _require_encoder_decoder(request)
        check_tokenizer(request)
        columns = {"source": request.source_column, "target": request.target_column}
        groups = (ColumnGroup({"source": "source_column"}, self.source_names), ColumnGroup({"target": "target_column"}, self.target_names))
        layout = ColumnLayout(groups, {2: ("source", "target")}, {role: name for role, name in columns.items() if name})

        def read_pairs(source: Source) -> Iterator[TextPair]:
            return (TextPair(row.text("source"), row.text("target"), row.origin) for row in read_rows(source, layout, request.max_rows))

        def read_pairs_by_split() -> dict[Split, list[TextPair]]:
            return read_splits(request, read_pairs, TextPair.identity_bytes)

        def read_texts(split: Split) -> Iterator[Text]:
            return (Text(pair.origin, self.prefix + pair.source, target=pair.target) for pair in read_pairs_by_split()[split])

        pairs = read_pairs_by_split()
        examples = for_each_split(lambda split: Packed(self._yield_model_inputs(request, pairs[split])))
        return self.build_from_pairs(request, pairs, examples, Texts(read_texts, request.max_length, request.truncate))

    def _yield_model_inputs(self, request: TaskRequest, pairs: Sequence[TextPair]) -> Iterator[dict[str, Any]]:
        sources = encode(request, ((pair.origin, self.prefix + pair.source) for pair in pairs))
        targets = encode(request, ((pair.origin, pair.target) for pair in pairs), is_target=True)
        for source, target in zip(sources, targets, strict=True):
            yield {**source, "labels": target["input_ids"]}


def _require_encoder_decoder(request: TaskRequest) -> None:
    """Raises DataError for a model that is no encoder–decoder with a language head."""
    inner = unwrap(request.model)
    has_head = any(part in type(inner).__name__ for part in ("Generation", "MTModel", "LM"))
    if not getattr(inner.config, "is_encoder_decoder", False) or not has_head:
        raise DataError(
            f"task '{request.name}' needs an encoder–decoder with a language head, not {type(inner).__name__}; load it as {SEQ2SEQ.model}"
        )


def _hash_example_tokens(source_ids: Iterable[int], target_ids: Iterable[int]) -> bytes:
    """Returns the hash of the tokens of an example, by which it is recognised in a batch."""
    tokens = array("q", [*source_ids, IGNORED, *target_ids])
    return hashlib.blake2b(tokens.tobytes(), digest_size=16).digest()


class GeneratedTexts:
    """(model, batch) -> generated texts and reference texts; the latter as the file has them, because tokens do not give all letters back."""

    def __init__(self, tokenizer: Any, references: Mapping[bytes, str], *, max_new_tokens: int, num_beams: int = 1) -> None:
        self.tokenizer = tokenizer
        self.references = references
        self.options = {"max_new_tokens": max_new_tokens, "num_beams": num_beams, "do_sample": False}

    def __call__(self, model: nn.Module, batch: Batch) -> tuple[list[str], list[str]]:
        """Returns the generated text and the reference of each example."""
        inputs = {name: value for name, value in batch.items() if name not in ("labels", "decoder_input_ids")}
        inner: Any = unwrap(model)
        with torch.no_grad(), preserve(inner):
            generated = inner.generate(**inputs, **self.options)
        mask = batch.get("attention_mask", torch.ones_like(batch["input_ids"])).bool()
        references = []
        for ids, visible, labels in zip(batch["input_ids"], mask, batch["labels"], strict=True):
            target = labels[labels != IGNORED]
            reference = self.references.get(_hash_example_tokens(ids[visible].tolist(), target.tolist()))
            references.append(reference or self._decode(target.unsqueeze(0))[0])
        return self._decode(generated), references

    def _decode(self, ids: Tensor) -> list[str]:
        return [text.strip() for text in self.tokenizer.batch_decode(ids, skip_special_tokens=True)]
