"""What is looked at more closely, chosen by a seed before anything runs: query tokens of which whole rows are kept, and sentences shown as maps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from headcount.data.text.aligned import Aligned

LONGEST = 4
"""Where too few sentences are short enough, longer ones are shown, up to that many times the length wanted."""


def generator(seed: int, what: int) -> np.random.Generator:
    """Random numbers of one purpose under a seed."""
    return np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, what], dtype=np.uint64)))


def sample_tokens(sizes: Sequence[Sequence[bool]], number: int, seed: int) -> dict[int, list[int]]:
    """Some ordinary tokens by example; `sizes` says of every example which of its tokens are ordinary. Examples take turns, in random order."""
    random = generator(seed, 1)
    left = {place: random.permutation(np.flatnonzero(row)).tolist() for place, row in enumerate(sizes)}
    order = random.permutation(len(sizes)).tolist()
    found: dict[int, list[int]] = {}
    taken = 0
    while taken < number and any(left.values()):
        for place in order:
            if left[place] and taken < number:
                found.setdefault(place, []).append(left[place].pop())
                taken += 1
    return {place: sorted(tokens) for place, tokens in sorted(found.items())}


def shown_sentences(sentences: Sequence[Aligned], targets: Sequence[Aligned], number: int, longest: int, seed: int) -> list[int]:
    """Sentences to show whole: a random choice of those of at most `longest` tokens, else the shortest; those with trees first, in their order."""
    lengths = [max(len(s.ids), len(targets[i].ids) + 1 if targets else 0) for i, s in enumerate(sentences)]
    order = generator(seed, 2).permutation(len(sentences)).tolist()
    fitting = [i for i in order if lengths[i] <= longest]
    fitting.sort(key=lambda i: not any(word.head is not None for word in sentences[i].annotated.words))
    longer = sorted((i for i in order if longest < lengths[i] <= LONGEST * longest), key=lambda i: (lengths[i], i))
    return sorted([*fitting, *longer][:number])
