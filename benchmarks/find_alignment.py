"""Finds the alignment heads of a small Whisper that is trained here on made-up speech, whose word boundaries are known.

    python benchmarks/find_alignment.py [--steps 800] [--out benchmarks/find_alignment.json]

Every "word" is a chord of two tones with a length of its own (0.06 to 0.38 s); words follow each other with silence of up to 0.36 s between
them. The recordings pass through WhisperFeatureExtractor, so that what is measured is what `headcount find alignment` reads.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

import headcount as hc
from headcount.core.files import write_json
from headcount.core.head_list import HeadList
from headcount.surgery.alignment_heads import set_alignment_heads

RATE, SECONDS, MELS = 16_000, 3, 16
START, END, FIRST_WORD, N_WORDS = 0, 1, 2, 16
TONES = np.geomspace(200, 6000, 12)


def build_extractor() -> WhisperFeatureExtractor:
    """Returns a feature extractor for recordings of three seconds."""
    return WhisperFeatureExtractor(feature_size=MELS, chunk_length=SECONDS)


def build_model(seed: int) -> Any:
    """Returns an untrained Whisper of two encoder and two decoder layers with four heads each."""
    torch.manual_seed(seed)
    config = WhisperConfig(
        vocab_size=FIRST_WORD + N_WORDS,
        num_mel_bins=MELS,
        d_model=64,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128,
        decoder_ffn_dim=128,
        max_source_positions=50 * SECONDS,
        max_target_positions=24,
        decoder_start_token_id=START,
        bos_token_id=START,
        eos_token_id=END,
        pad_token_id=END,
        suppress_tokens=[],
        begin_suppress_tokens=[],
    )
    return WhisperForConditionalGeneration(config)


def draw_utterance(random: np.random.Generator, extractor: WhisperFeatureExtractor) -> dict[str, Any]:
    """Returns an utterance of three to seven words, with their tokens and times."""
    sound, words, times, now = np.zeros(RATE * SECONDS, dtype=np.float32), [], [], random.uniform(0, 0.5)
    for _ in range(random.integers(3, 8)):
        word = int(random.integers(N_WORDS))
        length = 0.06 + 0.34 * (word * 7 % N_WORDS) / N_WORDS
        if now + length > SECONDS - 0.05:
            break
        first, last = int(now * RATE), int((now + length) * RATE)
        seconds = np.arange(last - first) / RATE
        tones = TONES[word % 12], TONES[(word * 5 + 3 + word // 12) % 12]
        sound[first:last] = sum(np.sin(2 * np.pi * tone * seconds) for tone in tones) * 0.2
        words.append(word)
        times.append((now, now + length))
        now += length + random.uniform(0, 0.6) ** 2
    sound += random.normal(0, 0.005, len(sound)).astype(np.float32)
    read = extractor(sound[: int((now + 0.05) * RATE)], sampling_rate=RATE, return_attention_mask=True, return_tensors="pt")
    return {
        "input_features": read["input_features"][0],
        "attention_mask": read["attention_mask"][0],
        "labels": [FIRST_WORD + word for word in words] + [END],
        "word_ids": [*range(len(words)), None],
        "word_times": times,
    }


def train(model: Any, utterances: list[dict[str, Any]], *, steps: int, seed: int) -> float:
    """Trains a model to transcribe; returns the mean loss of the last 50 steps."""
    random = np.random.default_rng(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, total_steps=steps, pct_start=0.1)
    losses = []
    model.train()
    for _ in range(steps):
        batch = [utterances[i] for i in random.choice(len(utterances), 32, replace=False)]
        labels = torch.nn.utils.rnn.pad_sequence([torch.tensor(u["labels"]) for u in batch], batch_first=True, padding_value=-100)
        loss = model(input_features=torch.stack([u["input_features"] for u in batch]), labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        schedule.step()
        losses.append(loss.item())
    model.eval()
    return float(np.mean(losses[-50:]))


def main() -> None:
    """Trains, finds, and writes what was found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    random, extractor = np.random.default_rng(arguments.seed), build_extractor()
    utterances = [draw_utterance(random, extractor) for _ in range(1200)]
    model, start = build_model(arguments.seed), time.process_time()
    untrained = hc.find(model.eval(), "alignment", utterances[1000:], progress=False)
    loss = train(model, utterances[:1000], steps=arguments.steps, seed=arguments.seed)
    trained_in = time.process_time() - start
    start = time.process_time()
    found: HeadList = hc.find(model, "alignment", utterances[1000:], progress=False)
    found_in = time.process_time() - start
    pairs = set_alignment_heads(model, found.heads)
    print(f"trained {arguments.steps} steps in {trained_in:.0f} s of processor time, loss {loss:.4f}; found in {found_in:.1f} s: {pairs}")
    for name, score in {"found": found.tested, **found.compared, "untrained": untrained.tested}.items():
        print(f"{name:22} {score.n_heads:2} heads  {score.score:.3f}  {score.low} … {score.high}")
    print(f"baseline {found.baseline:.3f}; starts of words missed by {1000 * (found.boundary_seconds or 0):.0f} ms on average")
    print("alone:", ", ".join(f"{head} {score:.3f}" for head, score in found.ranking))
    record = {"steps": arguments.steps, "seed": arguments.seed, "loss": loss}
    write_json(arguments.out, {**record, "alignment_heads": pairs, "untrained": untrained.tested.score, "found": found.to_dict()})


if __name__ == "__main__":
    main()
