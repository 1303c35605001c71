"""A tokenizer that reports no offsets, as MarianTokenizer does."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerFast


class WithoutOffsets:
    """A fast tokenizer seen as a slow one: pieces and ids, no offsets; of what it does not know, the characters, as SentencePiece gives them."""

    is_fast = False

    def __init__(self, fast: PreTrainedTokenizerFast, *, spells_unknown: bool) -> None:
        self.fast, self.spells_unknown, self.unk_token = fast, spells_unknown, fast.unk_token

    def __call__(self, *texts: str, **options: Any) -> dict[str, list[int]]:
        encoded = self.fast(*texts, **options)
        return {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}

    def tokenize(self, text: str) -> list[str]:
        pieces = self.fast.tokenize(text)
        spans = self.fast(text, add_special_tokens=False, return_offsets_mapping=True)["offset_mapping"]
        is_spelled = [self.spells_unknown and piece == self.unk_token for piece in pieces]
        return [text[a:b] if spelled else piece for piece, (a, b), spelled in zip(pieces, spans, is_spelled, strict=True)]

    def convert_tokens_to_ids(self, pieces: list[str]) -> list[int]:
        return self.fast.convert_tokens_to_ids(pieces)  # pyright: ignore[reportReturnType]

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return self.fast.convert_ids_to_tokens(ids)  # pyright: ignore[reportReturnType]
