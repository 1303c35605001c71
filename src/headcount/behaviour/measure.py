"""Runs the examples of a corpus through a model and measures the attention of every block by the sieves of the roles that apply to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor, nn

from headcount.behaviour.base import Corpus, Role
from headcount.behaviour.best_heads import half_of_example
from headcount.behaviour.bias import Sieved, count_strongest_key_hits, expected_chance_hits, mean_sieve_biases
from headcount.behaviour.pairs import query_and_key_sides
from headcount.behaviour.speech import hide_silent_frames
from headcount.behaviour.twin_pass import SparseSum, TwinPass
from headcount.behaviour.views import VIEWS, ViewName, build_view, corpus_examples, view_name
from headcount.core.errors import NonFinite, OutOfMemory, UnsupportedModel, is_out_of_memory
from headcount.core.heads import AttentionBlock, Head
from headcount.data.checks import check_batch
from headcount.data.stream import Summed
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch, pad_id
from headcount.models.observe import Observation, Observer, reads_text


@dataclass(frozen=True, slots=True, eq=False)
class _BatchSieves:
    """The sieves of one view of a batch: under the mask of the last block seen, and before any mask."""

    unmasked: Tensor
    ordinary_keys: Tensor
    masked: Sieved
    chance: Tensor


@dataclass(slots=True)
class RoleProbe:
    """Measures the roles of one corpus, in each view of it that the model has blocks and roles for.

    With `twins`, sums of attention are returned too, from which heads are compared with their distance twins.
    """

    model: nn.Module
    heads: HeadMap
    corpus: Corpus
    roles: Sequence[Role]
    twins: Mapping[ViewName, TwinPass] = field(default_factory=dict)
    _calls: dict[str, dict[str, list[Tensor]]] = field(default_factory=dict)
    _examples: list[int] = field(default_factory=list)
    _sieves: dict[str, _BatchSieves] = field(default_factory=dict)
    _sums: dict[tuple[str, int], SparseSum] = field(default_factory=dict)

    def prepare_twins(self, *, n_swaps: int, seed: int) -> dict[ViewName, TwinPass]:
        """Returns what compares heads with their distance twins, for each view with content roles.

        The masks of blocks are seen in a pass over the longest sentences.
        """
        views: list[ViewName] = [] if self.corpus.grid else self.measured_views()
        roles = {view: [role for role in self.roles_of_view(view) if role.info.is_content] for view in views}
        blocks: dict[ViewName, list[AttentionBlock]] = {view: self.blocks_of_view(view) for view in views if roles[view]}
        if not blocks:
            return {}
        masks: dict[str, Tensor] = {}

        def store_mask(observation: Observation) -> None:
            if observation.visible is not None:
                masks[observation.block.path] = hide_silent_frames(self.corpus, observation, longest).visible.any(0)  # pyright: ignore[reportOptionalMemberAccess]

        examples = corpus_examples(self.model, self.corpus)
        texts = [side for side in (self.corpus.sentences, self.corpus.targets) if side]
        longest = sorted({max(range(len(text)), key=lambda number: len(text[number].ids)) for text in texts})
        batch = examples.collate([examples.examples[number] for number in longest])
        check_batch(self.model, batch, longest)
        with Observer(
            self.model, store_mask, blocks=[block for of_view in blocks.values() for block in of_view], outputs=False
        ) as observer:
            try:
                observer.run(batch)
            except (RuntimeError, MemoryError) as error:
                if is_out_of_memory(error):
                    raise OutOfMemory(f"memory ran out on the longest sentence: {error}. Shorten the sentences (max_length)") from error
                raise
        twins: dict[ViewName, TwinPass] = {}
        for view, of_view in blocks.items():
            shape = tuple(side.n_tokens_of_longest_sentence for side in query_and_key_sides(self.corpus, view))
            masks_of_view = {
                b.path: masks[b.path].cpu().numpy() for b in of_view if b.path in masks and tuple(masks[b.path].shape) == shape
            }
            if masks_of_view:
                twins[view] = TwinPass.for_content_roles(self.corpus, view, roles[view], masks_of_view, n_swaps=n_swaps, seed=seed)
        return twins

    def roles_of_view(self, view: ViewName) -> list[Role]:
        """Returns the roles that apply to a view."""
        attention = "cross" if view == "cross" else "image" if self.corpus.grid else "self"
        return [role for role in self.roles if attention in role.info.attention]

    def blocks_of_view(self, view: ViewName) -> list[AttentionBlock]:
        """Returns the blocks in which the tokens of a view meet; none if the corpus has no such tokens or no role applies."""
        has_tokens = not self.corpus.audio if view == "source" else bool(self.corpus.targets)
        blocks = [block for block in self.heads.blocks if block.n_heads and view_name(self.model, block) == view]
        blocks = blocks if self.corpus.grid else [block for block in blocks if reads_text(block)]
        return blocks if has_tokens and self.roles_of_view(view) else []

    def heads_of_view(self, view: ViewName) -> list[Head]:
        """Returns the heads of the blocks of a view."""
        return [head for block in self.blocks_of_view(view) for head in block.heads]

    def measured_views(self) -> list[ViewName]:
        """Returns the views that are measured."""
        return [view for view in VIEWS if self.blocks_of_view(view)]

    def __call__(self, batch: Batch, numbers: list[int]) -> dict[str, Tensor | Summed]:
        """Returns, for every view, numbers of each example of a batch, and the sums over them for the comparison with distance twins, by fold.

        These are its half [batch]; bias, hits, tokens and maximum [batch, heads, roles]; chance and level [batch, blocks, roles]; and offsets
        [batch, blocks, offsets, roles]. A block that runs several times in a pass, as ALBERT's do, counts by the mean of its calls.
        """
        check_batch(self.model, batch, numbers)
        self._calls, self._examples, self._sieves, self._sums = {}, numbers, {}, {}
        blocks = [block for view in self.measured_views() for block in self.blocks_of_view(view)]
        with Observer(self.model, self._measure_block, blocks=blocks, outputs=False) as observer:
            observer.run(batch)
        idle = next((block.path for block in blocks if all(block.path not in calls for calls in self._calls.values())), None)
        if idle is not None:
            raise UnsupportedModel(f"block '{idle}' did not run on this input, so its attention cannot be observed")
        if self.corpus.grid:
            contents: list[Any] = [pixels.detach().float().cpu().numpy().tobytes() for pixels in batch["pixel_values"]]
        else:  # without annotations: examples that heads cannot tell apart are in the same half
            contents = [tuple(side[number].ids for side in (self.corpus.sentences, self.corpus.targets) if side) for number in numbers]
        halves = torch.tensor([half_of_example(content) for content in contents])
        order = {block.path: index for index, block in enumerate(blocks)}
        results: dict[str, Tensor | Summed] = {f"{view}/half": halves for view in self.measured_views()}
        results |= {f"{view}/overlap": Summed(sieves.masked.count_pairs_shared_by_sieves()) for view, sieves in self._sieves.items()}
        for name, calls in self._calls.items():
            values = torch.cat([mean_over_calls(calls[path]) for path in sorted(calls, key=order.__getitem__)], 1)
            view, _, kind = name.partition("/")
            if kind == "irregular":
                results[name] = Summed(values)
            elif kind == "sums":
                folds = self.twins[view].folds_of_sentences(numbers)  # pyright: ignore[reportArgumentType]
                results |= {f"{name}/{fold}": Summed(part) for fold, part in zip(folds, values.chunk(len(folds)), strict=True)}
            else:
                results[name] = values
        return results

    def _measure_block(self, observation: Observation) -> None:
        observation = hide_silent_frames(self.corpus, observation, self._examples)
        attention, visible, block = observation.attention, observation.visible, observation.block
        assert attention is not None and visible is not None
        view = view_name(self.model, block)
        if attention.shape[0] != len(self._examples):
            raise UnsupportedModel(f"block '{block.path}' does not attend sentence by sentence, so its roles cannot be measured")
        sieves = self._sieves_under_mask(view, visible)
        shape = (-1, block.n_heads, -1)
        measured = {
            "bias": mean_sieve_biases(attention, sieves.masked),
            "hits": count_strongest_key_hits(
                attention, sieves.masked, sieves.ordinary_keys, self._is_restricted_to_ordinary_keys(view, visible.device)
            ),
            "tokens": sieves.masked.tokens[:, None, :].expand(*shape),
            "maximum": sieves.masked.maximum[:, None, :].expand(*shape),
            "chance": sieves.chance[:, None],
            "level": sieves.masked.level[:, None],
            "offsets": sieves.masked.offsets[:, None],
        }
        check_finite(measured["bias"], self._examples, block)
        measured |= self._sums_for_distance_twins(view, observation)
        for name, values in measured.items():
            self._calls.setdefault(f"{view}/{name}", {}).setdefault(block.path, []).append(values)

    def _sums_for_distance_twins(self, view: ViewName, observation: Observation) -> dict[str, Tensor]:
        """Returns the sums of a block's attention for its distance twins [folds · sums, heads], zeros where its mask is not the expected one."""
        twins, attention, visible = self.twins.get(view), observation.attention, observation.visible
        if twins is None or observation.block.path not in twins.text_of_block:
            return {}
        assert attention is not None and visible is not None
        number = twins.text_of_block[observation.block.path]
        text, examples, shape = twins.texts[number], np.array(self._examples), (attention.shape[2], attention.shape[3])
        is_regular = text.layout.ordinary_queries_match_mask(examples, visible.cpu().numpy())
        if not is_regular:
            sums = attention.new_zeros(len(twins.folds_of_sentences(self._examples)) * twins.n_attention_sums, attention.shape[1])
        else:
            if (view, number) not in self._sums:
                self._sums[view, number] = twins.sum_weights_of_batch(text, self._examples, shape, attention.device)
            sums = self._sums[view, number].sum_attention(attention)
        return {"sums": sums, "irregular": sums.new_full((1, 1), float(not is_regular))}

    def _sieves_under_mask(self, view: ViewName, visible: Tensor) -> _BatchSieves:
        """Returns the sieves of a view under the mask of a block; blocks with the same mask share them."""
        last = self._sieves.get(view)
        if last is not None and torch.equal(last.masked.visible, visible):
            return last
        roles = self.roles_of_view(view)
        if last is None:
            tokens = build_view(self.corpus, view, self._examples, (visible.shape[1], visible.shape[2]), pad_id(self.model))
            twins = self.twins.get(view)
            marked = {} if twins is None else twins.sieves_of_batch(self._examples, (visible.shape[1], visible.shape[2]))
            sieves = [marked[role] if role in marked else role.sieve(tokens) for role in roles]
            unmasked = torch.stack(sieves, dim=-1).to(visible.device)
            ordinary_keys = tokens.keys.ordinary.to(visible.device)
        else:
            unmasked, ordinary_keys = last.unmasked, last.ordinary_keys
        is_entropy_weighted = torch.tensor([role.is_legacy for role in roles], device=visible.device)
        masked = Sieved.from_sieves_and_mask(unmasked, visible, is_entropy_weighted)
        chance = expected_chance_hits(masked, ordinary_keys, self._is_restricted_to_ordinary_keys(view, visible.device))
        self._sieves[view] = _BatchSieves(unmasked, ordinary_keys, masked, chance)
        return self._sieves[view]

    def _is_restricted_to_ordinary_keys(self, view: ViewName, device: torch.device) -> Bool[Tensor, " roles"]:
        """Returns for each role of a view whether its strongest key is sought among ordinary tokens."""
        return torch.tensor([not role.info.special_targets for role in self.roles_of_view(view)], device=device)


def mean_over_calls(results_of_calls: Sequence[Tensor]) -> Tensor:
    """Returns the mean of the results of a block that ran several times in a pass."""
    return results_of_calls[0] if len(results_of_calls) == 1 else torch.stack(tuple(results_of_calls)).mean(0)


def check_finite(values: Tensor, example_numbers: Sequence[int], block: AttentionBlock) -> None:
    """Raises NonFinite, with the first example concerned, if results of a block are not finite."""
    if not values.isfinite().all():
        row = int((~values.isfinite()).flatten(1).any(1).int().argmax())
        raise NonFinite(f"example {example_numbers[row]}: the attention of block '{block.path}' holds NaN; try float32 or bfloat16")
