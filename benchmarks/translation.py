"""Which heads a translation model can do without: trains an encoder–decoder on Multi30k en–de, then prunes it by L0 gates and by subset pruning.

    python benchmarks/translation.py --data DATA --out RUN                       # trains the dense model (6 + 6 layers, 8 heads, d = 256)
    python benchmarks/translation.py --data DATA --out RUN --kinds encoder-self --methods l0,dsp --keep 10
    python benchmarks/translation.py --data DATA --out RUN --kinds encoder-self,decoder-self,cross --methods l0,dsp --keep 36

Everything is kept in RUN and goes on after a stop. Choices are made on the validation sentences, what is shown is BLEU on the 1,000 test sentences
with a paired bootstrap interval.
"""

from __future__ import annotations

import argparse
import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from curves import Curves
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PegasusConfig, PegasusForConditionalGeneration, PreTrainedTokenizerFast

import headcount as hc
from headcount.data.open_task import open_task
from headcount.data.task import Task
from headcount.pruning.recipe import Recipe
from headcount.pruning.spec import PruneSpec
from headcount.pruning.training.fine_tune import fine_tune

PARTS = {"train": "train", "val": "val", "test": "test_2016_flickr"}
HOW = {"train_sampling_strategy": "group_by_length", "bf16": True}


def unpack(data: Path, out: Path) -> dict[str, list[Path]]:
    """Both sides of every part as text files."""
    made: dict[str, list[Path]] = {}
    out.mkdir(parents=True, exist_ok=True)
    for part, name in PARTS.items():
        made[part] = [out / f"{part}.{side}" for side in ("en", "de")]
        for side, path in zip(("en", "de"), made[part], strict=True):
            if not path.is_file():
                path.write_bytes(gzip.decompress((data / "multi30k" / f"{name}.{side}.gz").read_bytes()))
    return made


def make_tokenizer(files: list[Path], size: int) -> PreTrainedTokenizerFast:
    """Byte-level pieces of both languages together."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    special = ["<pad>", "</s>", "<unk>"]
    made.train(
        [str(path) for path in files],
        trainers.BpeTrainer(vocab_size=size, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
    )
    made.post_processor = processors.TemplateProcessing(single="$A </s>", pair="$A </s> $B </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=128)


def make_model(tokenizer: PreTrainedTokenizerFast) -> PegasusForConditionalGeneration:
    torch.manual_seed(0)
    config: Any = PegasusConfig
    return PegasusForConditionalGeneration(
        config(
            vocab_size=len(tokenizer),
            d_model=256,
            encoder_layers=6,
            decoder_layers=6,
            encoder_attention_heads=8,
            decoder_attention_heads=8,
            encoder_ffn_dim=512,
            decoder_ffn_dim=512,
            max_position_embeddings=128,
            dropout=0.1,
            attention_dropout=0.1,
            pad_token_id=0,
            eos_token_id=1,
            bos_token_id=None,
            decoder_start_token_id=0,
            forced_eos_token_id=None,
            tie_word_embeddings=True,
            scale_embedding=True,  # else positions drown the words at first
            init_std=0.06,
        )
    )


def make_task(model: Any, tokenizer: Any, files: dict[str, list[Path]], part: str) -> Task:
    """The task with all of one part as its report (and as what is chosen by)."""
    made = open_task(
        "translation(max_new_tokens=60)", model, tokenizer, train=files["train"], eval=files[part], max_length=120, truncate=True
    )
    both = [*made.selection, *made.report]
    return replace(made, name=f"multi30k/{part}", selection=both, report=both)


def trained(options: argparse.Namespace, files: dict[str, list[Path]]) -> tuple[Any, Any]:
    """The dense model, made once."""
    folder = options.out / "dense"
    if not (folder / "config.json").is_file():
        tokenizer = make_tokenizer(files["train"], options.pieces)
        model = make_model(tokenizer)
        recipe = Recipe(epochs=options.epochs, rate=1e-3, train_batch=64, warmup=0.1, training_arguments=HOW)
        task = make_task(model, tokenizer, files, "val")
        trained = fine_tune(model, task, recipe, folder=options.out / "training", progress=Said(20))
        print(trained.history[-1], flush=True)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
    return hc.load(folder), PreTrainedTokenizerFast.from_pretrained(folder)


class Said:
    """One line in every so many steps."""

    def __init__(self, every: int) -> None:
        self.every, self.calls = every, 0

    def __call__(self, done: int, total: int | None) -> None:
        self.calls += 1
        if self.calls % self.every == 0:
            print(f"{done} of {total}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=float, default=10.0, help="of the dense model")
    parser.add_argument("--pieces", type=int, default=6000)
    parser.add_argument("--part", choices=("val", "test"), default="test")
    parser.add_argument("--kinds", default="", help="attention types that may lose heads; nothing prunes nothing")
    parser.add_argument("--methods", default="l0,dsp")
    parser.add_argument("--keep", default="10")
    parser.add_argument("--more", type=float, default=2.0, help="epochs of pruning")
    options = parser.parse_args()
    torch.set_num_threads(1)
    files = unpack(options.data, options.out / "files")
    model, tokenizer = trained(options, files)
    task = make_task(model, tokenizer, files, options.part)
    kinds = tuple(name for name in options.kinds.split(",") if name)
    recipe = Recipe(epochs=options.more, rate=2e-4, train_batch=64, training_arguments=HOW)
    keeps = [int(keep) for keep in options.keep.split(",")]
    specs = [PruneSpec.of(method, keep, kinds=kinds, recipe=recipe) for method in options.methods.split(",") for keep in keeps]
    made = Curves(options.out / "run", "multi30k", model, task, specs if kinds else [], "python benchmarks/translation.py")
    print(f"\n{made.describe_dense()}\n")
    if made.artifacts:
        print(made.table(1.0, 2))
        for artifact in (artifact for artifacts in made.artifacts.values() for artifact in artifacts):
            gone = Counter(made.heads.block_of(hc.Head.parse(head)).kind for head in artifact.content["removed"])
            print(f"\n{artifact.key.name}: removed {dict(gone)}")
    print(made.failed)


if __name__ == "__main__":
    main()
