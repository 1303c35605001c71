"""Runs aligned sentences through a model and hands every block's attention, with the sieves that apply to it, to the numbers of `_bias`."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, field
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from headcount.behaviour.base import About, Corpus, Side, View
from headcount.behaviour.best_heads import half_of
from headcount.behaviour.bias import Sieved, biases, chances, hits
from headcount.core.errors import NonFinite, UnsupportedModel
from headcount.core.heads import AttentionBlock
from headcount.data.checks import check_batch
from headcount.data.losses import accepts
from headcount.data.task import Task, pad
from headcount.data.text.aligned import Aligned
from headcount.data.text.annotated import Annotated
from headcount.models.head_map import HeadMap
from headcount.models.modules import Batch
from headcount.models.observe import Observation, Observer, reads_text


@dataclass(frozen=True, slots=True)
class Role:
    """A role by its file and name; `label` is what people read."""

    label: str
    name: str
    module: ModuleType

    @property
    def about(self) -> About:
        """What its file declares."""
        return self.module.ABOUT

    @property
    def is_legacy(self) -> bool:
        """Whether its bias is multiplied by entropy, and it is no label."""
        return self.name in self.about.legacy


def view_of(model: nn.Module, block: AttentionBlock) -> str:
    """Which tokens meet in a block: `source` (those of an encoder or of a lone decoder), `target` (an encoder–decoder's own), `cross`."""
    if not getattr(model.config, "is_encoder_decoder", False):
        return "source" if block.kind != "cross" else "cross"
    return {"encoder-self": "source", "decoder-self": "target", "cross": "cross"}[block.kind]


def check_input(model: Any, corpus: Corpus) -> None:
    """Raises UnsupportedModel for a model that does not read what the corpus holds."""
    wanted, name = "pixel_values" if corpus.grid else "input_ids", type(model).__name__
    if model.main_input_name != wanted:
        raise UnsupportedModel(f"{name} reads {model.main_input_name}, but roles of {'images' if corpus.grid else 'text'} need {wanted}")
    if hasattr(model, "get_text_features") and hasattr(model, "get_image_features"):
        raise UnsupportedModel(f"{name} compares texts with images and reads neither alone; pass the part of it that reads text or images")


@dataclass(slots=True)
class RoleProbe:
    """Measures the roles of one corpus; `views` maps a kind of view to the blocks and roles that meet in it."""

    model: nn.Module
    heads: HeadMap
    corpus: Corpus
    roles: Sequence[Role]
    pad_id: int
    start_id: int | None = None
    _found: dict[str, dict[str, list[Tensor]]] = field(default_factory=dict)
    _numbers: list[int] = field(default_factory=list)
    _sieves: dict[str, Tensor] = field(default_factory=dict)
    _sieved: dict[str, Sieved] = field(default_factory=dict)
    _chances: dict[str, Tensor] = field(default_factory=dict)
    _sides: dict[str, Side] = field(default_factory=dict)

    def roles_of(self, view: str) -> list[Role]:
        """The roles that apply to a kind of view."""
        where = "cross" if view == "cross" else "image" if self.corpus.grid else "self"
        return [role for role in self.roles if where in role.about.where]

    def blocks_of(self, view: str) -> list[AttentionBlock]:
        """The blocks in which that view meets, if the corpus has its tokens and any role applies."""
        has_tokens = view == "source" or bool(self.corpus.targets)
        blocks = [block for block in self.heads.blocks if block.n_heads and view_of(self.model, block) == view]
        blocks = blocks if self.corpus.grid else [block for block in blocks if reads_text(block)]
        return blocks if has_tokens and self.roles_of(view) else []

    def views(self) -> list[str]:
        """The kinds of views that are measured."""
        return [view for view in ("source", "target", "cross") if self.blocks_of(view)]

    def task(self) -> Task:
        """The sentences as a task, so that they stream like any other data."""
        if self.corpus.grid:
            images = self.corpus.images
            return Task("roles", images, images, images, pad)
        targets = self.corpus.targets or (None,) * len(self.corpus.sentences)
        pairs = zip(self.corpus.sentences, targets, strict=True)
        places = [{"place": i, "input_ids": s.ids, "content": _content(s, target)} for i, (s, target) in enumerate(pairs)]
        return Task("roles", places, places, places, self._collate)

    def _collate(self, examples: list[Mapping[str, Any]]) -> dict[str, Any]:
        chosen = [self.corpus.sentences[example["place"]] for example in examples]
        batch = _padded(chosen, self.pad_id)
        if all(s.type_ids is not None for s in chosen) and accepts(self.model, "token_type_ids"):
            batch["token_type_ids"] = _rows([s.type_ids or () for s in chosen], 0)
        if self.start_id is not None:
            targets = [self.corpus.targets[example["place"]] for example in examples] if self.corpus.targets else None
            batch |= self._decoder(targets, len(examples))
        return batch

    def _decoder(self, targets: Sequence[Aligned] | None, rows: int) -> dict[str, Tensor]:
        """The decoder's inputs: its start token, then the target; the start token alone where there is none."""
        front = torch.full((rows, 1), self.start_id or 0)
        if targets is None:
            return {"decoder_input_ids": front}
        shifted = _padded(targets, self.pad_id)
        return {
            "decoder_input_ids": torch.cat([front, shifted["input_ids"]], 1),
            "decoder_attention_mask": torch.cat([torch.ones_like(front), shifted["attention_mask"]], 1),
        }

    def __call__(self, batch: Batch, numbers: list[int]) -> dict[str, Tensor]:
        """Per sentence, for every view: its half [batch], bias, hits, tokens and maximum [batch, heads, roles], chance and level
        [batch, blocks, roles], and offsets [batch, blocks, offsets, roles].

        A block that runs several times in a pass, as ALBERT's do, counts by the mean of its calls.
        """
        check_batch(self.model, batch, numbers)
        self._found, self._numbers, self._sieves, self._sieved, self._sides = {}, numbers, {}, {}, {}
        blocks = [block for view in self.views() for block in self.blocks_of(view)]
        with Observer(self.model, self._consume, blocks=blocks, outputs=False) as observer:
            observer.run(batch)
        silent = next((block.path for block in blocks if all(block.path not in calls for calls in self._found.values())), None)
        if silent is not None:
            raise UnsupportedModel(f"block '{silent}' did not run on this input, so its attention cannot be seen")
        order = {block.path: place for place, block in enumerate(blocks)}
        halves = torch.tensor([half_of(content) for content in self._contents(batch, numbers)])
        return {f"{view}/half": halves for view in self.views()} | {
            name: torch.cat([_mean(calls[path]) for path in sorted(calls, key=order.__getitem__)], 1) for name, calls in self._found.items()
        }

    def _contents(self, batch: Batch, numbers: list[int]) -> list[Any]:
        """The tokens or pixels of each example, without what is annotated: examples that heads cannot tell apart are equal."""
        if self.corpus.grid:
            return [pixels.detach().float().cpu().numpy().tobytes() for pixels in batch["pixel_values"]]
        return [tuple(side[number].ids for side in (self.corpus.sentences, self.corpus.targets) if side) for number in numbers]

    def _consume(self, seen: Observation) -> None:
        assert seen.attention is not None and seen.visible is not None
        view = view_of(self.model, seen.block)
        if seen.attention.shape[0] != len(self._numbers):
            raise UnsupportedModel(f"block '{seen.block.path}' does not attend sentence by sentence, so roles cannot be told for it")
        sieved = self._ready(view, seen.visible)
        allowed, free = self._allowed(view, seen.visible)
        shape = (-1, seen.block.n_heads, -1)
        found = {
            "bias": biases(seen.attention, sieved),
            "hits": hits(seen.attention, sieved, allowed, free),
            "tokens": sieved.tokens[:, None, :].expand(*shape),
            "maximum": sieved.maximum[:, None, :].expand(*shape),
            "chance": self._chances[view][:, None],
            "level": sieved.level[:, None],
            "offsets": sieved.offsets[:, None],
        }
        if not found["bias"].isfinite().all():
            row = int((~found["bias"].isfinite()).flatten(1).any(1).int().argmax())
            raise NonFinite(f"example {self._numbers[row]}: the attention of block '{seen.block.path}' holds NaN; try float32 or bfloat16")
        for name, value in found.items():
            self._found.setdefault(f"{view}/{name}", {}).setdefault(seen.block.path, []).append(value)

    def _ready(self, view: str, visible: Tensor) -> Sieved:
        """The view's sieves under a block's mask; blocks with the same mask share them."""
        known = self._sieved.get(view)
        if known is not None and torch.equal(known.visible, visible):
            return known
        if view not in self._sieves:
            self._sieves[view] = self._stack(view, visible.shape[1], visible.shape[2]).to(visible.device)
        weighted = torch.tensor([role.is_legacy for role in self.roles_of(view)], device=visible.device)
        self._sieved[view] = Sieved.of(self._sieves[view], visible, weighted)
        self._chances[view] = chances(self._sieved[view], *self._allowed(view, visible))
        return self._sieved[view]

    def _allowed(self, view: str, visible: Tensor) -> tuple[Tensor, Tensor]:
        """The keys that are no delimiters, and the roles whose strongest key is sought among them."""
        free = [not role.about.special_targets for role in self.roles_of(view)]
        return self._sides[view].ordinary.to(visible.device), torch.tensor(free, device=visible.device)

    def _stack(self, view: str, n_queries: int, n_keys: int) -> Tensor:
        if self.corpus.grid:
            rows, columns = self.corpus.grid
            if n_keys < rows * columns:
                raise UnsupportedModel(
                    f"a block has {n_keys} tokens, fewer than the {rows * columns} patches of an image: it has no such grid"
                )
            queries = keys = Side.of_patches(len(self._numbers), n_keys, rows * columns)
            return self._sieved_by(view, queries, keys)
        source = tuple(self.corpus.sentences[i] for i in self._numbers)
        targets = tuple(self.corpus.targets[i] for i in self._numbers) if self.corpus.targets else ()
        if view == "source":
            queries = keys = Side.of(source, n_keys, pad_id=self.pad_id)
        elif view == "target":
            queries = keys = Side.of(targets, n_keys, offset=1, pad_id=self.pad_id)
        else:
            queries, keys = Side.of(targets, n_queries, offset=1, pad_id=self.pad_id), Side.of(source, n_keys, pad_id=self.pad_id)
        return self._sieved_by(view, queries, keys)

    def _sieved_by(self, view: str, queries: Side, keys: Side) -> Tensor:
        self._sides[view] = keys
        seen = View(queries, keys, self.corpus)
        return torch.stack([role.module.sieve(seen, role.name) for role in self.roles_of(view)], dim=-1)


def _content(sentence: Aligned, target: Aligned | None) -> str:
    """A hash of all that sieves see of a sentence and its translation: tokens, words, and what is annotated."""
    sides = [(s.ids, s.words, s.special, s.segments, s.type_ids, s.by_word) for s in (sentence, target) if s is not None]
    return hashlib.sha256(repr((sides, _annotations(sentence.annotated))).encode()).hexdigest()


def _annotations(text: Annotated) -> tuple[Any, ...]:
    target = None if text.target is None else _annotations(text.target)
    return text.text, text.pair_at, [astuple(word) for word in text.words], text.clusters, sorted(text.links), target


def _mean(calls: Sequence[Tensor]) -> Tensor:
    return calls[0] if len(calls) == 1 else torch.stack(tuple(calls)).mean(0)


def _rows(values: Sequence[Sequence[int]], fill: int) -> Tensor:
    length = max(map(len, values))
    return torch.tensor([[*row, *[fill] * (length - len(row))] for row in values])


def _padded(sentences: Sequence[Aligned], pad_id: int) -> dict[str, Tensor]:
    return {"input_ids": _rows([s.ids for s in sentences], pad_id), "attention_mask": _rows([[1] * len(s.ids) for s in sentences], 0)}
