"""Random numbers of forward passes where several threads run models of their own.

torch's default generator belongs to the process, and `torch.random.fork_rng` saves and restores it without regard to other threads: a thread
that saves the state while another one has seeded it restores the wrong one, and models that draw numbers in eval mode (Reformer, ViT-MAE) take
each other's. Here the last section to close restores what the first one found. Passes of models that draw no numbers run side by side. Those of
a model that draws wait until no other thread is inside; so does the first pass of each model, which shows whether it draws.

Code that runs outside such sections (training, passes of the caller's own) is not coordinated with them.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

States = dict[str, Tensor]
"""States of generators, by device."""

_LOCK = threading.RLock()
_OPEN: list[States] = []
"""What each open section found, in the order of opening."""


def _read_generator_states(devices: Sequence[torch.device | int] | None) -> States:
    """The state of the CPU's generator and of those of CUDA devices; of all of them by default, as in torch.random.fork_rng."""
    cuda = range(torch.cuda.device_count()) if devices is None else devices
    return {
        "cpu": torch.get_rng_state(),
        **{str(torch.device("cuda", i) if isinstance(i, int) else i): torch.cuda.get_rng_state(i) for i in cuda},
    }


def _restore_generator_states(states: States) -> None:
    for device, state in states.items():
        if device == "cpu":
            torch.set_rng_state(state)
        else:
            torch.cuda.set_rng_state(state, device)


@contextmanager
def fork_rng(devices: Sequence[torch.device | int] | None = None) -> Iterator[States]:
    """Leaves the random state as it was, also if sections of several threads overlap; yields the state found."""
    with _LOCK:
        states = _read_generator_states(devices)
        entry = dict(states)
        _OPEN.append(entry)
    try:
        yield states
    finally:
        with _LOCK:
            position = next(i for i, states_found in enumerate(_OPEN) if states_found is entry)
            del _OPEN[position]
            if position == len(_OPEN):
                _restore_generator_states(entry)
            else:
                _OPEN[position].update(entry)  # the next one was opened later, so it may have found a state that this one had seeded


@dataclass(frozen=True, slots=True)
class _Admission:
    """How a pass was let in: whether it is the outermost of its thread, whether no other thread was inside, and the number of passes so far."""

    is_outermost: bool
    is_only_thread: bool
    number: int


class _PassGate:
    """Lets passes of quiet models in together, and a pass that may draw numbers in alone; a thread that is inside is let in again."""

    def __init__(self) -> None:
        self.condition = threading.Condition()
        self.inside: dict[int, int] = {}  # passes by thread
        self.n_admissions = 0
        self.waiting = 0
        self.is_alone = False

    @contextmanager
    def admit(self, *, alone: bool) -> Iterator[_Admission]:
        """Waits for admission; a thread that is inside does not wait."""
        caller = threading.get_ident()
        with self.condition:
            is_outermost = caller not in self.inside
            if is_outermost:
                self._wait_for_turn(alone)
                self.n_admissions += 1
            self.inside[caller] = self.inside.get(caller, 0) + 1
            admission = _Admission(is_outermost, len(self.inside) == 1, self.n_admissions)
        try:
            yield admission
        finally:
            with self.condition:
                self.inside[caller] -= 1
                if not self.inside[caller]:
                    del self.inside[caller]
                    self.is_alone = False
                    self.condition.notify_all()

    def is_undisturbed(self, admission: _Admission) -> bool:
        """Whether no other thread has been inside since an admission."""
        return admission.is_only_thread and admission.number == self.n_admissions

    def _wait_for_turn(self, alone: bool) -> None:
        if not alone:
            self.condition.wait_for(lambda: not self.is_alone and not self.waiting)
            return
        self.waiting += 1  # quiet passes that come later wait too, so that this one has its turn
        try:
            self.condition.wait_for(lambda: not self.inside)
            self.is_alone = True
        finally:
            self.waiting -= 1
            self.condition.notify_all()


_GATES: dict[int, _PassGate] = {}
"""The gate of each process: a forked one has none of the threads that were inside."""
_DRAWS: WeakKeyDictionary[nn.Module, bool] = WeakKeyDictionary()
"""Whether the passes of a model in eval mode so far drew random numbers."""


@contextmanager
def pass_rng(model: nn.Module, *, seed: int | None = None, devices: Sequence[torch.device | int] | None = None) -> Iterator[None]:
    """For a forward pass: random numbers of `seed`, if one is given, that no pass of another thread takes or resets; the state as it was after."""
    alone = model.training or _DRAWS.get(model, True)
    gate = _GATES.setdefault(os.getpid(), _PassGate())
    with gate.admit(alone=alone) as admission, fork_rng(devices) as outer_states:
        if seed is not None:
            torch.manual_seed(seed)
        states = outer_states if seed is None else _read_generator_states(devices)
        yield
        if model.training or not gate.is_undisturbed(admission):
            return  # the state tells nothing about this model in eval mode
        now = _read_generator_states(devices)
        if any(not torch.equal(state, now[device]) for device, state in states.items()):
            _DRAWS[model] = True
        elif admission.is_outermost:  # a section inside this one restored the state, and has said so if the model draws
            _DRAWS.setdefault(model, False)
