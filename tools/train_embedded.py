"""Trains the embedded models from nothing: `python tools/train_embedded.py NAME… --out DIR [--keep-checkpoints]`.

Everything follows from the seed: text is drawn by the generators of this package, training runs on transformers' Trainer, in one thread, since
the number of threads changes the last bits of every gradient.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from types import ModuleType
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    DataCollatorForLanguageModeling,
    DataCollatorForSeq2Seq,
    DataCollatorForTokenClassification,
    DataCollatorWithPadding,
    LlamaConfig,
    LlamaForCausalLM,
    MarianConfig,
    MarianMTModel,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
    set_seed,
)

from headcount.core.errors import unknown_name_error
from headcount.data.embedded import english, rare_words, tavi
from headcount.data.embedded.entailment import LABELS, EntailmentPair, draw_pair, english_text_of_pair
from headcount.data.embedded.grammar import Clause, draw_clause
from headcount.data.embedded.splits import draw_split
from headcount.data.embedded.stories import draw_story
from headcount.data.embedded.tokenizer import build_tokenizer, vocabulary
from headcount.data.metrics import IGNORED

Rows = list[dict[str, Any]]
RowMaker = Callable[[Random, PreTrainedTokenizerFast, float], Rows]
"""(random, tokenizer, share of the full amount) -> training examples."""
SEED = 20260


@dataclass(frozen=True, slots=True)
class Recipe:
    """How one model is made: what it is built or started from, what it reads, for how long, and the tokens that it knows."""

    build: Callable[[Path], PreTrainedModel]
    rows: RowMaker
    collate: Callable[[PreTrainedTokenizerFast], Any]
    epochs: float
    rate: float
    batch: int = 64
    tokens: Callable[[], list[str]] = vocabulary


def _bert_config(**options: Any) -> BertConfig:
    return BertConfig(
        vocab_size=len(build_tokenizer()),
        hidden_size=128,
        num_hidden_layers=4,
        num_attention_heads=8,
        intermediate_size=256,
        max_position_embeddings=128,
        hidden_dropout_prob=0.1,
        attention_probs_dropout_prob=0.1,
        pad_token_id=0,
        **options,
    )


def _sentences(random: Random, number: int) -> list[Clause]:
    return draw_split(random, "train", number, draw_clause, lambda clause: str(english.say_clause(clause)))


def _said(language: ModuleType, pairs: list[EntailmentPair]) -> list[tuple[str, str]]:
    return [(str(language.say_clause(pair.premise)), str(language.say_clause(pair.hypothesis))) for pair in pairs]


def _text(n_english: int, n_tavi: int, n_translated: int = 0) -> RowMaker:
    """Text of each language, two thirds single sentences and a third pairs about one scene, and sentences beside their translation."""

    def rows(random: Random, tokenizer: PreTrainedTokenizerFast, share: float) -> Rows:
        singles: list[str] = []
        pairs: list[tuple[str, str]] = []
        for language, number in ((english, round(share * n_english)), (tavi, round(share * n_tavi))):
            singles += [str(language.say_clause(clause)) for clause in _sentences(random, number - number // 3)]
            pairs += _said(language, draw_split(random, "train", number // 3, draw_pair, english_text_of_pair))
        both = [
            (str(english.say_clause(clause)), str(tavi.say_clause(clause))) for clause in _sentences(random, round(share * n_translated))
        ]
        pairs += [(a, b) if random.random() < 0.5 else (b, a) for a, b in both]
        made = [tokenizer(text) for text in singles] + [tokenizer(a, b) for a, b in pairs]
        return [{name: one[name] for name in ("input_ids", "token_type_ids")} for one in made]

    return rows


def _pairs(n_english: int, n_tavi: int = 0) -> RowMaker:
    def rows(random: Random, tokenizer: PreTrainedTokenizerFast, share: float) -> Rows:
        found: Rows = []
        for language, number in ((english, n_english), (tavi, n_tavi)):
            pairs = draw_split(random, "train", round(share * number), draw_pair, english_text_of_pair)
            for pair, texts in zip(pairs, _said(language, pairs), strict=True):
                made = tokenizer(*texts)
                found.append({**{name: made[name] for name in ("input_ids", "token_type_ids")}, "labels": LABELS.index(pair.label)})
        return found

    return rows


def _translations(number: int) -> RowMaker:
    def rows(random: Random, tokenizer: PreTrainedTokenizerFast, share: float) -> Rows:
        drawn = _sentences(random, round(share * number))
        sources = tokenizer([str(english.say_clause(c)) for c in drawn], add_special_tokens=False)["input_ids"]
        targets = tokenizer([str(tavi.say_clause(c)) for c in drawn], add_special_tokens=False)["input_ids"]
        end = tokenizer.eos_token_id
        return [{"input_ids": [*s, end], "labels": [*t, end]} for s, t in zip(sources, targets, strict=True)]

    return rows


def _stories(number: int) -> RowMaker:
    def rows(random: Random, tokenizer: PreTrainedTokenizerFast, share: float) -> Rows:
        texts = draw_split(random, "train", round(share * number), lambda r: " ".join(draw_story(r)), str)
        return [{"input_ids": ids} for ids in tokenizer(texts)["input_ids"]]

    return rows


def _rare_words(number: int) -> RowMaker:
    def rows(random: Random, tokenizer: PreTrainedTokenizerFast, share: float) -> Rows:
        made: Rows = []
        for sentence in draw_split(random, "train", round(share * number), rare_words.draw_rare_sentence, str):
            encoded = tokenizer(str(sentence))
            labels = [rare_words.LABELS.index(label) for label in sentence.gender_labels]
            made.append({**{name: encoded[name] for name in ("input_ids", "token_type_ids")}, "labels": [IGNORED, *labels, IGNORED]})
        return made

    return rows


def _word_classifier(_out: Path) -> PreTrainedModel:
    labels = dict(enumerate(rare_words.LABELS))
    return BertForTokenClassification(
        BertConfig(
            vocab_size=len(rare_words.list_full_vocabulary()),
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=128,
            max_position_embeddings=128,
            pad_token_id=0,
            id2label=labels,
            label2id={name: number for number, name in labels.items()},
        )
    )


def _marian(_out: Path) -> PreTrainedModel:
    return MarianMTModel(
        MarianConfig(
            vocab_size=len(build_tokenizer()),
            d_model=96,
            encoder_layers=4,
            decoder_layers=4,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            encoder_ffn_dim=256,
            decoder_ffn_dim=256,
            max_position_embeddings=128,
            pad_token_id=0,
            eos_token_id=3,
            bos_token_id=2,
            decoder_start_token_id=0,
            forced_eos_token_id=3,
            scale_embedding=True,
        )
    )


def _llama(_out: Path) -> PreTrainedModel:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=len(build_tokenizer()),
            hidden_size=128,
            num_hidden_layers=4,
            num_attention_heads=8,
            num_key_value_heads=4,
            intermediate_size=256,
            max_position_embeddings=256,
            pad_token_id=0,
            bos_token_id=2,
            eos_token_id=3,
            tie_word_embeddings=True,
        )
    )


def _masked(tokenizer: PreTrainedTokenizerFast) -> Any:
    return DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.2, seed=SEED)


def _classifier(source: str) -> Callable[[Path], PreTrainedModel]:
    labels = dict(enumerate(LABELS))

    def build(out: Path) -> PreTrainedModel:
        return BertForSequenceClassification.from_pretrained(out / source, id2label=labels, label2id={v: k for k, v in labels.items()})

    return build


RECIPES: dict[str, Recipe] = {
    "encoder": Recipe(lambda _: BertForMaskedLM(_bert_config()), _text(60_000, 15_000, 15_000), _masked, epochs=3, rate=1e-3),
    "encoder-english": Recipe(lambda _: BertForMaskedLM(_bert_config()), _text(90_000, 0), _masked, epochs=3, rate=1e-3),
    "entailment": Recipe(_classifier("encoder"), _pairs(60_000, 20_000), DataCollatorWithPadding, epochs=8, rate=1e-3),
    "entailment-english": Recipe(_classifier("encoder-english"), _pairs(60_000), DataCollatorWithPadding, epochs=8, rate=1e-3),
    "translator": Recipe(_marian, _translations(40_000), DataCollatorForSeq2Seq, epochs=4, rate=2e-3),
    "rare-words": Recipe(
        _word_classifier,
        _rare_words(40_000),
        DataCollatorForTokenClassification,
        epochs=5,
        rate=2e-3,
        tokens=rare_words.list_full_vocabulary,
    ),
    "decoder": Recipe(_llama, _stories(20_000), lambda t: DataCollatorForLanguageModeling(t, mlm=False), epochs=5, rate=2e-3, batch=32),
}
"""The embedded models by name, in the order in which they can be made."""


class SaveAt(TrainerCallback):
    """Saves a checkpoint after each of some steps, beside those of the save strategy."""

    def __init__(self, steps: Sequence[int]) -> None:
        self.steps = frozenset(steps)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Asks for a checkpoint where the step is one of them."""
        control.should_save = control.should_save or state.global_step in self.steps


def train(name: str, out: Path, *, keep_checkpoints: bool = False, share: float = 1.0, checkpoint_steps: Sequence[int] = ()) -> None:
    """Makes one model and writes it, with its tokenizer, to `out/name`; checkpoints go to `out/checkpoints/name`.

    `share` takes a part of the training text, to try the recipe out; `checkpoint_steps` are steps after which a checkpoint is kept as well.
    """
    recipe = RECIPES[name]
    torch.set_num_threads(1)
    set_seed(SEED)
    model = recipe.build(out)
    tokenizer = build_tokenizer(segments=hasattr(model.config, "type_vocab_size"), tokens=recipe.tokens())
    arguments = TrainingArguments(
        output_dir=str(out / "checkpoints" / name),
        num_train_epochs=recipe.epochs,
        per_device_train_batch_size=recipe.batch,
        learning_rate=recipe.rate,
        warmup_steps=200,
        lr_scheduler_type="linear",
        weight_decay=0.01,
        seed=SEED,
        data_seed=SEED,
        save_strategy="epoch" if keep_checkpoints else "no",
        logging_steps=200,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        remove_unused_columns=False,
        disable_tqdm=True,
    )
    rows: Any = recipe.rows(Random(SEED), tokenizer, share)
    trainer = Trainer(
        model=model, args=arguments, train_dataset=rows, data_collator=recipe.collate(tokenizer), callbacks=[SaveAt(checkpoint_steps)]
    )
    trainer.train()
    if hasattr(model.config, "use_cache"):
        model.config.use_cache = True  # the Trainer turned it off
    model.save_pretrained(out / name)
    tokenizer.save_pretrained(out / name)
    summary = {key: trainer.state.log_history[-1][key] for key in ("train_loss", "epoch", "step")}
    (out / name / "training.json").write_text(json.dumps(summary, indent=2) + "\n", encoding="utf-8")


def _steps(text: str) -> tuple[int, ...]:
    """Numbers of steps, as the command line names them."""
    steps = tuple(map(int, text.split(",")))
    if min(steps) < 1:
        raise ValueError(f"a step is 1 or more, got {text}")
    return steps


def main() -> None:
    """The command line of this module."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which models of {', '.join(RECIPES)}; all by default")
    parser.add_argument("--out", type=Path, required=True, help="the folder that receives one folder per model")
    parser.add_argument("--keep-checkpoints", action="store_true", help="keep a checkpoint of every epoch under out/checkpoints")
    parser.add_argument("--checkpoint-steps", type=_steps, default=(), metavar="N,…", help="keep a checkpoint after these steps as well")
    parser.add_argument("--share", type=float, default=1.0, help="the part of the training text to use, to try things out")
    wanted = parser.parse_args()
    for name in wanted.names:
        if name not in RECIPES:
            parser.error(str(unknown_name_error("embedded model", name, RECIPES)))
    for name in wanted.names or list(RECIPES):
        train(name, wanted.out, keep_checkpoints=wanted.keep_checkpoints, share=wanted.share, checkpoint_steps=wanted.checkpoint_steps)


if __name__ == "__main__":
    main()
