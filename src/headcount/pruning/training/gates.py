"""Gates that learn inside anybody's training: a TrainerCallback that puts them on the model, and the protocol of such gates.

One sample of the gates is drawn per optimiser step and shared by all of its batches. Gates have an optimiser of their own, so that the training
around them keeps its schedule; noise is drawn from the seed and the number of the step, so that a training that goes on after a stop draws the same.
"""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from jaxtyping import Float, Float64
from safetensors.torch import load_file, save
from torch import Tensor, nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from headcount.core.errors import ArtifactError, NonFinite, UnsupportedModel
from headcount.core.files import write_atomic
from headcount.models.gates import HeadGates, Replacement
from headcount.models.head_map import HeadMap
from headcount.models.modules import unwrap

FILE = "gates.safetensors"


def uniform_noise(seed: int, step: int, n_values: int) -> Float64[Tensor, " n_values"]:
    """Returns uniform numbers in (0, 1) that depend on seed and step alone, not on the machine."""
    uniform = np.random.Generator(np.random.Philox(key=np.array([seed % 2**64, step], dtype=np.uint64))).random(n_values)
    return torch.from_numpy(uniform).clamp(torch.finfo(torch.float64).tiny, 1 - 1e-16)


class Gating(Protocol):
    """A family of gates with parameters, as `GateCallback` trains it."""

    @property
    def parameters(self) -> dict[str, Tensor]:
        """The trained parameters by name."""
        ...

    def sample(self, step: int, n_steps: int, /) -> Float[Tensor, " heads"]:
        """Returns the gates of one step [heads], differentiable."""
        ...

    def gates_for_evaluation(self) -> Float[Tensor, " heads"]:
        """Returns the gates for evaluation [heads]."""
        ...

    def penalty(self, step: int, n_steps: int, /) -> Tensor | None:
        """Returns what is added to the loss, or None."""
        ...

    def gate_optimiser(self) -> torch.optim.Optimizer:
        """Returns the optimiser of the parameters."""
        ...

    def log_numbers(self) -> dict[str, float]:
        """Returns numbers for the log."""
        ...


class GateCallback(TrainerCallback):
    """Trains gates together with whatever a Trainer trains: `Trainer(..., callbacks=[GateCallback(model, gating)])`.

    While the model trains, its heads are multiplied by a sample; while it is evaluated, by the hard gates. Checkpoints of the Trainer hold the gates
    too, and a training that is resumed from one takes them up. Gates go when the training ends; as a context (`with GateCallback(…) as gates:`) they
    go too when it fails.
    """

    def __init__(
        self, model: nn.Module, gating: Gating, *, how: Replacement = "zero", means: Any = None, heads: HeadMap | None = None
    ) -> None:
        self.model, self.gating = unwrap(model), gating
        self.history: list[dict[str, Any]] = []
        self._gates = HeadGates(
            self.model, gating.gates_for_evaluation().detach(), how=how, means=means, heads=heads
        )  # now: what is sharded later has other shapes
        self.heads = self._gates.heads
        self._optimiser = gating.gate_optimiser()
        self._stack = ExitStack()
        self._sample: Tensor | None = None
        self._leaf: Tensor | None = None
        self._hard: Tensor | None = None
        self._step_numbers: dict[str, float] = {}

    def __enter__(self) -> GateCallback:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Puts the gates on, from a checkpoint if the training goes on."""
        if args.fp16:
            raise UnsupportedModel("gates learn in bfloat16 or float32; fp16 scales gradients, which gates do not see. Set fp16=False")
        if args.load_best_model_at_end:
            raise UnsupportedModel("load_best_model_at_end takes up the weights of a checkpoint but not its gates; set it to False")
        if state.global_step:
            folder = Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
            resumed = args.resume_from_checkpoint
            self.load(Path(resumed) if isinstance(resumed, str) and Path(resumed).name == folder.name else folder)
        self.history = state.log_history
        self._put_on_model()

    def _put_on_model(self) -> None:
        """Puts the gates on the model: samples while it trains, hard gates while it is evaluated."""
        self.close()
        gates = self._gates

        def set_gates(_module: nn.Module, *_: Any) -> None:
            if self.model.training and self._leaf is not None:
                gates._values = self._leaf  # no check of every pass: the sample was checked when it was drawn
            else:
                self._hard = self.gating.gates_for_evaluation().detach() if self._hard is None else self._hard
                gates._values = self._hard

        with ExitStack() as stack:
            stack.enter_context(gates)
            stack.callback(self.model.register_forward_pre_hook(set_gates).remove)
            self._stack = stack.pop_all()

    def on_step_begin(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Draws the gates of a step."""
        self._sample = self.gating.sample(state.global_step, state.max_steps)
        self._check_finite("the gate", self._sample.detach(), state.global_step)
        self._leaf = self._sample.detach().clone().requires_grad_(True)
        self._hard = None
        self._step_numbers = {}

    def on_pre_optimizer_step(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Moves the gates."""
        if self._sample is None or self._leaf is None or not self._sample.requires_grad:
            return
        gradient = self._leaf.grad if self._leaf.grad is not None else torch.zeros_like(self._leaf)
        gradient = _mean_over_processes(gradient, args.device)
        self._check_finite("the gradient of the gate", gradient, state.global_step)
        self._optimiser.zero_grad(set_to_none=True)
        penalty = self.gating.penalty(state.global_step, state.max_steps)
        torch.autograd.backward(
            [self._sample, *([] if penalty is None else [penalty])], [gradient, *([] if penalty is None else [torch.ones_like(penalty)])]
        )
        self._step_numbers = {"gate rate": float(self._optimiser.param_groups[0]["lr"])}
        if penalty is not None:
            self._step_numbers["penalty"] = float(penalty.detach())
        self._optimiser.step()
        self._leaf.grad = None
        self._sample = None

    def _check_finite(self, quantity: str, values: Tensor, step: int) -> None:
        """Raises NonFinite, naming the first head, where one of the values of the heads is not finite."""
        if not bool(torch.isfinite(values).all()):
            head = self.heads[int((~torch.isfinite(values)).nonzero()[0])]
            raise NonFinite(f"{quantity} of {head} is not finite at step {step}")

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Adds the numbers of the gates, and the gate of every head in this step, to the Trainer's log, which its checkpoints keep."""
        self.history = state.log_history
        if state.log_history and state.log_history[-1].get("step") == state.global_step:
            gates = [] if self._leaf is None else [round(value, 6) for value in self._leaf.detach().tolist()]
            entry: dict[str, Any] = state.log_history[-1]
            entry.update({**self.log_numbers(), "gates": gates})

    def log_numbers(self) -> dict[str, float]:
        """Returns the numbers of the gates and, where gates moved in the last step, their learning rate and what the penalty added to the loss."""
        return {**self.gating.log_numbers(), **self._step_numbers}

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Writes the gates into the Trainer's checkpoint, unless they are there already."""
        folder = Path(str(args.output_dir)) / f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        if state.is_world_process_zero and folder.is_dir() and not (folder / FILE).exists():
            self.save(folder)

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any) -> None:
        """Takes the gates off."""
        self.close()

    def close(self) -> None:
        """Takes the gates off the model."""
        self._stack.close()
        self._sample = self._leaf = self._hard = None

    def save(self, folder: Path) -> None:
        """Writes parameters and optimiser to a folder."""
        tensors = {f"parameter/{name}": value.detach().clone() for name, value in self.gating.parameters.items()}
        for number, values in self._optimiser.state_dict()["state"].items():
            tensors |= {f"optimiser/{number}/{name}": torch.as_tensor(value).clone() for name, value in values.items()}
        write_atomic(folder / FILE, save(tensors))

    def load(self, folder: Path) -> None:
        """Reads parameters and optimiser from a folder that `save` wrote to."""
        if not (folder / FILE).is_file():
            raise ArtifactError(
                f"{folder} holds no gates ({FILE} is missing): it was cut short, or made without gates; remove it and run again"
            )
        tensors = load_file(folder / FILE)
        with torch.no_grad():
            for name, value in self.gating.parameters.items():
                value.copy_(tensors[f"parameter/{name}"])
        state: dict[int, dict[str, Tensor]] = {}
        for path, value in tensors.items():
            if path.startswith("optimiser/"):
                _, number, name = path.split("/", 2)
                state.setdefault(int(number), {})[name] = value
        self._optimiser.load_state_dict({**self._optimiser.state_dict(), "state": state})


def _mean_over_processes(gradient: Tensor, device: torch.device) -> Tensor:
    """Returns the mean of a gradient over all processes of a distributed training."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return gradient
    shared = gradient.to(device)  # a backend of a GPU takes no tensor of the CPU
    torch.distributed.all_reduce(shared)
    return (shared / torch.distributed.get_world_size()).to(gradient)
