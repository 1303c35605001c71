"""The arithmetic of benchmarks/scale.py: floating-point operations and bytes of every stage for a shape, and what a machine makes of them.

    forward   2 operations for each weight and token, and 4 n d for each layer, token and length n: queries · keys, probabilities · values
    scoring   forward, and backward through activations alone: 2 forward passes, 3 with checkpointing
    ablation  for every head or KV group half of the layers, since replay starts where the change is, and the whole output layer
    DSP       forward and backward with gradients of weights: 3 forward passes, 4 with checkpointing

Pure numbers; no model and no torch here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

HALF, FULL = 2, 4
"""Bytes of a number in bfloat16 and in float32."""
LOSS = HALF + FULL + FULL
"""Bytes for each token and word of the vocabulary: logits, logits in float32, their gradient or log-softmax."""
TRAINED = 2 * HALF + 3 * FULL
"""Bytes for each trained weight: weight and gradient in bfloat16, a float32 copy and AdamW's two moments."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A transformer; `ffn_matrices` is 2, or 3 where a gate multiplies the inner layer, `vocabulary` is that of the output layer."""

    layers: int
    heads: int
    kv_heads: int
    width: int
    ffn: int
    ffn_matrices: int
    vocabulary: int

    @property
    def of_attention(self) -> int:
        """Weights of attention in one layer."""
        return 2 * self.width**2 + 2 * self.width * self.width * self.kv_heads // self.heads

    @property
    def of_layer(self) -> int:
        """Weights of one layer; norms are left out."""
        return self.of_attention + self.ffn_matrices * self.width * self.ffn

    @property
    def of_output(self) -> int:
        return self.vocabulary * self.width

    @property
    def parameters(self) -> int:
        return self.layers * self.of_layer + 2 * self.of_output

    def forward(self, tokens: float, length: int) -> float:
        """Operations of a forward pass over so many tokens, in texts of one length."""
        return tokens * (2 * (self.layers * self.of_layer + self.of_output) + 4 * self.layers * self.width * length)

    def ablated(self, tokens: float, length: int, changes: int) -> float:
        """Operations of the unchanged pass and of every change by replay."""
        return self.forward(tokens, length) + changes * (self.forward(tokens, length) + 2 * tokens * self.of_output) / 2


@dataclass(frozen=True, slots=True)
class Machine:
    """What is assumed of the accelerators and the disk."""

    accelerators: int = 64
    gigabytes: int = 80
    peak: float = 990e12
    used: float = 0.4
    room: float = 0.9
    disk: float = 2e9
    hashing: float = 1e9

    def seconds(self, operations: float, idle: int = 1) -> float:
        """With all accelerators at work, or one of every `idle`."""
        return operations * idle / (self.accelerators * self.peak * self.used)

    def group(self, size: float) -> int:
        """The accelerators that hold so many bytes together: a power of two."""
        return 2 ** max(0, math.ceil(math.log2(size / (self.room * self.gigabytes * 1e9))))


@dataclass(frozen=True, slots=True)
class Job:
    """What is assumed of the work."""

    examples: int = 1024
    length: int = 512
    batch: int = 8
    stacked: int = 16384
    roles: int = 43
    steps: int = 1000
    sequences: int = 64

    @property
    def tokens(self) -> int:
        return self.examples * self.length


LLAMA_70B = Shape(layers=80, heads=64, kv_heads=8, width=8192, ffn=28672, ffn_matrices=3, vocabulary=128256)


def assumptions(shape: Shape, machine: Machine, job: Job) -> list[str]:
    return [
        f"Model: {shape.layers} layers, {shape.heads} heads, {shape.kv_heads} KV heads, width {shape.width}, feed-forward {shape.ffn}, "
        f"vocabulary {shape.vocabulary}: {shape.parameters / 1e9:.1f} billion parameters, "
        f"{_gb(HALF * shape.parameters)} in bfloat16, {_share(shape):.0%} of them in attention.",
        f"Machine, assumed: {machine.accelerators} accelerators of {machine.gigabytes} GB, of which {machine.room:.0%} can be filled, and "
        f"{machine.peak / 1e12:.0f} TFLOP/s each (bfloat16), of which {machine.used:.0%} are used; disk "
        f"{machine.disk / 1e9:.0f} GB/s, hashing {machine.hashing / 1e9:.0f} GB/s. Talk between accelerators is taken to cost nothing.",
        f"Work, assumed: {job.examples} examples of {job.length} tokens, {job.batch} in a batch; replay stacks up to {job.stacked} tokens; "
        f"{job.roles} roles; DSP takes {job.steps} steps of {job.sequences} sequences with AdamW; "
        "gradients keep the inputs of layers alone (checkpointing).",
    ]


def table_rows(shape: Shape, machine: Machine, job: Job) -> list[Sequence[str]]:
    """Work, operations, time with all accelerators at work, time layer by layer, memory."""
    once, batch = shape.forward(job.tokens, job.length), job.batch * job.length
    changes = {"KV group": shape.layers * shape.kv_heads, "head": shape.layers * shape.heads}
    trained = shape.forward(job.steps * job.sequences * job.length, job.length)
    return [
        _row(machine, "scoring by gradient", 3 * once, _scoring_bytes(shape, batch)),
        *(
            _row(
                machine, f"exact ablation of every {unit} ({n})", shape.ablated(job.tokens, job.length, n), _replay_bytes(shape, batch, job)
            )
            for unit, n in changes.items()
        ),
        _row(machine, "roles", once, _roles_bytes(shape, job)),
        _dsp_row(shape, machine, job, 4 * trained),
        _cutting_row(shape, machine),
    ]


def _row(machine: Machine, name: str, operations: float, size: float) -> Sequence[str]:
    group = machine.group(size)
    in_copies = f"{_time(machine.seconds(operations, idle=group))} ({machine.accelerators // group} copies on {group} each)"
    return name, f"{operations:.1e}", _time(machine.seconds(operations)), in_copies, f"{_gb(size)} for each copy of the model"


def _scoring_bytes(shape: Shape, tokens: int) -> float:
    """Weights; of each layer its input and what its heads gave; one layer computed again; the loss."""
    again = tokens * (8 * shape.width + 3 * shape.ffn) * HALF
    return HALF * shape.parameters + 2 * shape.layers * tokens * shape.width * HALF + again + tokens * shape.vocabulary * LOSS


def _replay_bytes(shape: Shape, tokens: int, job: Job) -> float:
    """Weights; of each layer four outputs of the unchanged pass; the loss of the stacked copies."""
    stacked = max(tokens, job.stacked)
    return HALF * shape.parameters + 4 * shape.layers * tokens * shape.width * HALF + stacked * shape.vocabulary * LOSS


def _roles_bytes(shape: Shape, job: Job) -> float:
    """Weights; the attention of one block in bfloat16 and about four times in float32; the sieves; logits."""
    maps = job.batch * job.length**2
    return (
        HALF * shape.parameters
        + maps * (shape.heads * (HALF + 4 * FULL) + job.roles * (FULL + 2))
        + job.batch * job.length * shape.vocabulary * HALF
    )


def _dsp_row(shape: Shape, machine: Machine, job: Job, operations: float) -> Sequence[str]:
    tokens = job.sequences * job.length / machine.accelerators
    states = TRAINED * shape.parameters / machine.accelerators
    kept = tokens * (shape.layers * shape.width * HALF + shape.vocabulary * LOSS) + 2 * HALF * shape.of_layer
    memory = f"{_gb(TRAINED * shape.parameters)} of weights and states, so {_gb(states + kept)} on each of {machine.accelerators}, sharded"
    return f"DSP, {job.steps} steps", f"{operations:.1e}", _time(machine.seconds(operations)), "–", memory


def _cutting_row(shape: Shape, machine: Machine) -> Sequence[str]:
    """Half of all KV groups go; the proof in half precision is repeated in float32, on copies of both models."""
    read, gone = HALF * shape.parameters, HALF * shape.layers * shape.of_attention / 2
    proof = 2 * read + 2 * (read - gone)
    seconds = read / machine.disk + (read - gone) * (1 / machine.disk + 1 / machine.hashing)
    sizes = f"{_gb(2 * read + gone + proof)} of the host; {_gb(read + gone + proof)} with in_place=True"
    return (
        "cutting half of the heads",
        f"{_gb(read)} read, {_gb(read - gone)} written",
        _time(seconds),
        "–",
        f"{sizes}; {_gb(proof)} of it is the proof in float32",
    )


def _share(shape: Shape) -> float:
    return shape.layers * shape.of_attention / shape.parameters


def _gb(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size < 1e10 else f"{size / 1e9:,.0f} GB"


def _time(seconds: float) -> str:
    for size, unit in ((3600.0, "h"), (60.0, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"
