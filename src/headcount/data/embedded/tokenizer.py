"""The tokenizer of the embedded languages: English words whole, Tavi words as a stem and its suffixes."""

from __future__ import annotations

from collections.abc import Sequence

from transformers import PreTrainedTokenizerFast

from headcount.data.embedded import lexicon

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
FUNCTION_WORDS = ("the", "a", "an", "that", "do", "does", "not", ".")


def vocabulary() -> list[str]:
    """Every token in a fixed order: specials, English words, Tavi stems, Tavi suffixes."""
    english = [*FUNCTION_WORDS, *(word for n in lexicon.NOUNS for word in (n.singular, n.plural))]
    english += [word for v in lexicon.VERBS for word in (v.third, v.plain)]
    english += [m.word for m in lexicon.ADJECTIVES + lexicon.ADVERBS] + [preposition.word for preposition in lexicon.PLACES]
    stems = [lexicon.DEFINITE_STEM, lexicon.INDEFINITE_STEM, *(n.stem for n in lexicon.NOUNS), *(v.stem for v in lexicon.VERBS)]
    stems += [m.stem for m in lexicon.ADJECTIVES + lexicon.ADVERBS]
    return list(dict.fromkeys([*SPECIAL, *english, *stems, *(f"##{suffix}" for suffix in lexicon.SUFFIXES)]))


def build_tokenizer(*, segments: bool = False, tokens: Sequence[str] | None = None) -> PreTrainedTokenizerFast:
    """A fast tokenizer that sets [CLS] before a text and [SEP] after it, and after the second text of a pair.

    `segments` says that the model takes token_type_ids, as the encoders do; `tokens` are those of another vocabulary than the languages'.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    order = {token: number for number, token in enumerate(vocabulary() if tokens is None else tokens)}
    tokenizer = Tokenizer(models.WordPiece(order, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.decoder = decoders.WordPiece(prefix="##", cleanup=False)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", order["[CLS]"]), ("[SEP]", order["[SEP]"])],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
        bos_token="[CLS]",
        eos_token="[SEP]",
        model_max_length=128,
        model_input_names=["input_ids", *(["token_type_ids"] if segments else []), "attention_mask"],
    )
