"""What is observed more closely, chosen by a seed before anything runs: query tokens whose attention is stored, sentences shown as maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headcount.data.text.aligned import Aligned

STRETCH = 4
"""Where too few sentences are short enough, longer ones are shown, up to that many times the length."""


def make_purpose_generator(seed: int, purpose_number: int) -> np.random.Generator:
    """Returns the random numbers of one purpose under a seed."""
    return np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, purpose_number], dtype=np.uint64)))


def sample_query_tokens(is_ordinary_by_example: Sequence[Sequence[bool]], n_tokens: int, seed: int) -> dict[int, list[int]]:
    """Returns random ordinary tokens by example; examples take turns, in random order.

    Args:
        is_ordinary_by_example: For every example, which of its tokens are ordinary.
        n_tokens: How many tokens are drawn in all.
        seed: Seed of the choice.
    """
    random = make_purpose_generator(seed, 1)
    remaining = {example: random.permutation(np.flatnonzero(row)).tolist() for example, row in enumerate(is_ordinary_by_example)}
    order = random.permutation(len(is_ordinary_by_example)).tolist()
    tokens: dict[int, list[int]] = {}
    n_drawn = 0
    while n_drawn < n_tokens and any(remaining.values()):
        for example in order:
            if remaining[example] and n_drawn < n_tokens:
                tokens.setdefault(example, []).append(remaining[example].pop())
                n_drawn += 1
    return {example: sorted(chosen) for example, chosen in sorted(tokens.items())}


def choose_sentences_to_map(
    sentences: Sequence[Aligned], targets: Sequence[Aligned], n_sentences: int, max_tokens: int, seed: int
) -> list[int]:
    """Returns the sentences whose attention maps are stored, in their order.

    They are drawn from those of at most `max_tokens` tokens, sentences with trees first; where there are too few, the shortest of the others follow.
    """
    lengths = [max(len(s.ids), len(targets[i].ids) + 1 if targets else 0) for i, s in enumerate(sentences)]
    order = make_purpose_generator(seed, 2).permutation(len(sentences)).tolist()
    fitting = [i for i in order if lengths[i] <= max_tokens]
    fitting.sort(key=lambda i: not any(word.head is not None for word in sentences[i].annotated.words))
    longer = sorted((i for i in order if max_tokens < lengths[i] <= STRETCH * max_tokens), key=lambda i: (lengths[i], i))
    return sorted([*fitting, *longer][:n_sentences])
