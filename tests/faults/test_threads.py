"""One model in several threads and asyncio tasks, and exceptions wherever a hook runs: right, or refused; and the model as it was."""

from __future__ import annotations

import asyncio
import contextvars
import copy
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from toys import build, task

import headcount as hc
from headcount.core.errors import ModelInUse, OutOfMemory
from headcount.data.evaluate import evaluate
from headcount.models.gates import HeadGates, are_gates_open
from headcount.models.observe import Observer, observe

KINDS = ("encoder", "decoder")
Operation = Callable[[nn.Module, dict[str, Tensor], hc.Task], Tensor]


def logits(model: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    with torch.no_grad():
        return model(**batch).logits


def gated(model: nn.Module, batch: dict[str, Tensor], how: Any) -> Tensor:
    with hc.mask(model, ["L0H1", "L1H0", "L1H1"], how=how):
        return logits(model, batch)


def observed(model: nn.Module, batch: dict[str, Tensor], _: hc.Task) -> Tensor:
    (observation,) = observe(model, [batch])
    return torch.cat([part.flatten() for one in observation for part in (one.attention, one.outputs) if part is not None])


OPERATIONS: dict[str, Operation] = {
    "plain": lambda model, batch, _: logits(model, batch),
    "zero": lambda model, batch, _: gated(model, batch, "zero"),
    "uniform": lambda model, batch, _: gated(model, batch, "uniform"),
    "observe": observed,
    "score": lambda model, _, data: torch.tensor(hc.score(model, data, "gradient").values),
    "ablation": lambda model, _, data: torch.tensor(hc.score(model, data, "ablation").values),
    "relevance": lambda model, _, data: torch.tensor(hc.score(model, data, "lrp").values),
    "evaluate": lambda model, _, data: torch.tensor(evaluate(model, data).losses),
}


class Subject:
    """A model, what every operation gives when it has the model to itself, and how it stands when nobody works on it."""

    def __init__(self, kind: str) -> None:
        self.model, self.data = build(kind), task(kind, 6)
        self.model.train()
        for module in self.model.modules():
            if isinstance(module, nn.Dropout):
                module.p = 0.0
        self.batch = {name: value for name, value in self.data.collate(list(self.data.calibration)).items() if name != "labels"}
        self.expected = {name: self.run(name) for name in OPERATIONS}
        self.standing = self.state()
        self.weights = {name: value.clone() for name, value in self.model.state_dict().items()}

    def run(self, name: str) -> Tensor:
        return OPERATIONS[name](self.model, self.batch, self.data)

    def is_right(self, name: str, found: Tensor) -> bool:
        return found.shape == self.expected[name].shape and torch.allclose(found, self.expected[name], rtol=1e-7, atol=1e-9)

    def state(self) -> dict[str, Any]:
        """Everything that a context may change and has to put back."""
        hooks = ("_forward_pre_hooks", "_forward_hooks", "_backward_hooks")
        modules = list(self.model.modules())
        return {
            "hooks": sum(len(getattr(module, name)) for module in modules for name in hooks),
            "forwards": ["forward" in vars(module) for module in modules],
            "modes": [module.training for module in modules],
            "trained": [parameter.requires_grad for parameter in self.model.parameters()],
            "attention": (type(self.model.config), self.model.config._attn_implementation),
            "functions": torch._C._len_torch_function_stack(),
            "gradients": torch.is_grad_enabled(),
        }

    def check_unharmed(self) -> None:
        assert self.state() == self.standing
        assert all(torch.equal(value, self.weights[name]) for name, value in self.model.state_dict().items())


@pytest.fixture(scope="module", params=KINDS)
def subject(request: pytest.FixtureRequest) -> Subject:
    return Subject(request.param)


# What was wrong, one by one.


@contextmanager
def in_thread(work: Callable[[], Any]) -> Iterator[list[Any]]:
    """Runs something in another thread; yields a list to which its result or its error comes at the end."""
    came: list[Any] = []

    def run() -> None:
        try:
            came.append(work())
        except BaseException as error:
            came.append(error)

    thread = threading.Thread(target=run, name="worker")
    thread.start()
    yield came
    thread.join(60)
    assert not thread.is_alive()


@pytest.mark.parametrize("how", ["zero", "uniform"])
def test_a_copy_of_a_gated_model_has_no_gates(subject: Subject, how: Any) -> None:
    """It took the hooks along and kept them: gated for good, or broken. Another thread's copy, which the error of a model in use asks for, too."""
    expected = subject.run("plain")
    with hc.mask(subject.model, ["L0H0"], how=how):
        with in_thread(lambda: copy.deepcopy(subject.model)) as came:
            pass
        copies = [copy.deepcopy(subject.model), *came]
        with in_thread(lambda: logits(copies[1], subject.batch)) as came:
            pass
        assert torch.equal(came[0], expected) and torch.equal(logits(copies[0], subject.batch), expected)
    for duplicate in copies:
        assert torch.equal(logits(duplicate, subject.batch), expected)
        assert not are_gates_open(duplicate)
        with hc.mask(duplicate, ["L0H0"]):
            assert not torch.equal(logits(duplicate, subject.batch), expected)


def test_another_thread_is_refused_while_gates_are_open(subject: Subject) -> None:
    for name in ("plain", "zero", "uniform", "observe", "score", "ablation", "evaluate"):
        with hc.mask(subject.model, ["L0H0"]), in_thread(lambda name=name: subject.run(name)) as came:
            pass
        assert isinstance(came[0], ModelInUse), (name, came)
        assert "in use for gates on its heads by thread 'MainThread'" in str(came[0]) and "copy.deepcopy" in str(came[0])
    assert all(subject.is_right(name, subject.run(name)) for name in OPERATIONS)
    subject.check_unharmed()


def test_a_newcomer_does_not_stop_what_is_running(subject: Subject) -> None:
    """The second score is refused before it starts; the first goes on and is right."""
    inside, go_on = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        inside.set()
        go_on.wait(30)

    with in_thread(lambda: torch.tensor(hc.score(subject.model, subject.data, "gradient", progress=wait).values)) as came:
        assert inside.wait(60)
        for name in ("score", "zero", "evaluate", "observe"):
            with pytest.raises(ModelInUse, match="in use for scores by thread 'worker'"):
                subject.run(name)
        go_on.set()
    assert subject.is_right("score", came[0])
    subject.check_unharmed()


def test_evaluations_share_a_model(subject: Subject) -> None:
    inside, go_on = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        inside.set()
        go_on.wait(30)

    with in_thread(lambda: torch.tensor(evaluate(subject.model, subject.data, progress=wait).losses)) as came:
        assert inside.wait(60)
        assert subject.is_right("evaluate", subject.run("evaluate"))
        with pytest.raises(ModelInUse, match="in use for an evaluation"):
            subject.run("zero")
        go_on.set()
    assert subject.is_right("evaluate", came[0])
    subject.check_unharmed()


@pytest.mark.parametrize("how", ["zero", "uniform"])
def test_contexts_close_in_any_order(subject: Subject, how: Any) -> None:
    heads = (["L0H1", "L1H0"], ["L1H1"])
    with hc.mask(subject.model, heads[1], how=how):
        second_alone = logits(subject.model, subject.batch)
    first, second = (hc.mask(subject.model, some, how=how) for some in heads)
    first.__enter__()
    second.__enter__()
    both = logits(subject.model, subject.batch)
    first.__exit__()
    assert torch.allclose(logits(subject.model, subject.batch), second_alone)
    second.__exit__()
    assert torch.allclose(both, gated(subject.model, subject.batch, how))
    subject.check_unharmed()


def test_observers_close_in_any_order(subject: Subject) -> None:
    first, second = (Observer(subject.model, lambda _: None, gradient=gradient) for gradient in (True, False))
    first.__enter__()
    second.__enter__()
    first.__exit__()
    assert not subject.model.training, "the second still observes in eval mode"
    second.__exit__()
    subject.check_unharmed()


def test_workers_of_the_owner_are_gated_too(subject: Subject) -> None:
    """In a copy of its context, and as replicas of DataParallel; on a plain thread, which could be anybody's, they are refused."""
    with hc.mask(subject.model, ["L0H1", "L1H0", "L1H1"]):
        context = contextvars.copy_context()
        with in_thread(lambda: context.run(logits, subject.model, subject.batch)) as came:
            pass
        block = hc.HeadMap.of(subject.model).blocks[0]
        projection: Any = subject.model.get_submodule(block.o.path)
        replica = projection._replicate_for_data_parallel()
        replica._parameters = dict(projection._parameters)
        inputs = torch.ones(1, 2, block.n_heads * block.value_dim, dtype=torch.float64)
        with in_thread(lambda: replica(inputs)) as copied:
            pass
        assert torch.allclose(copied[0], projection(inputs))
    assert subject.is_right("zero", came[0])

    async def spread() -> list[Tensor]:
        with hc.mask(subject.model, ["L0H1", "L1H0", "L1H1"]):
            return [await asyncio.to_thread(logits, subject.model, subject.batch), await asyncio.create_task(later())]

    async def later() -> Tensor:
        return logits(subject.model, subject.batch)

    assert all(subject.is_right("zero", actual) for actual in asyncio.run(spread()))
    subject.check_unharmed()


@pytest.mark.parametrize("kind", KINDS)
def test_checkpointed_layers_are_gated_when_they_run_again(kind: str) -> None:
    model: Any = build(kind).train()
    batch = {"input_ids": torch.arange(3, 11).view(2, 4), **({"use_cache": False} if kind == "decoder" else {})}
    gradients = []
    for checkpointing in (False, True):
        gates = torch.full((len(hc.HeadMap.of(model)),), 0.5, dtype=torch.float64, requires_grad=True)
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        with HeadGates(model, gates):
            torch.manual_seed(0)
            output = model(**batch).logits
            gradients.append(torch.autograd.grad(output.square().sum(), gates)[0])
    assert torch.allclose(*gradients)


def test_a_part_of_a_model_is_the_model(subject: Subject) -> None:
    inner = subject.model.base_model
    with hc.mask(inner, ["L0H0"]), in_thread(lambda: subject.run("zero")) as came:
        pass
    assert isinstance(came[0], ModelInUse)
    subject.check_unharmed()


def test_an_interrupted_pass_leaves_nothing_to_the_next_in_the_same_context(subject: Subject) -> None:
    block = hc.HeadMap.of(subject.model).blocks[0]
    with hc.mask(subject.model, ["L0H1", "L1H0", "L1H1"], how="uniform"):
        with raising(subject.model.get_submodule(block.o.path), KeyboardInterrupt(), 1), pytest.raises(KeyboardInterrupt):
            logits(subject.model, subject.batch)
        assert subject.is_right("uniform", logits(subject.model, subject.batch))
    subject.check_unharmed()


# Campaigns.


def act(subject: Subject, random: Random, counts: Counter[str], number: int) -> Iterator[None]:
    """Operations at random, a pause after each and inside gates; whoever drives this decides what happens in the pauses."""
    for _ in range(number):
        name = random.choice([*OPERATIONS, "plain", "zero", "uniform", "held"])
        try:
            if name == "held":
                with hc.mask(subject.model, ["L0H1", "L1H0", "L1H1"]):
                    for _ in range(3):
                        yield
                        counts["right" if subject.is_right("zero", logits(subject.model, subject.batch)) else "wrong"] += 1
            else:
                outcome = subject.run(name)
                counts["right" if subject.is_right(name, outcome) else "wrong"] += 1
        except ModelInUse:
            counts["refused"] += 1
        except BaseException as error:
            counts[f"raw {type(error).__name__}: {error}"] += 1
        yield


def in_threads(subject: Subject, seed: int, number: int) -> Counter[str]:
    counts: Counter[str] = Counter()

    def drive(which: int) -> None:
        random = Random(f"{seed} {which}")
        for _ in act(subject, random, counts, number):
            time.sleep(random.choice((0, 0, 0.0005, 0.002)))

    threads = [threading.Thread(target=drive, args=(which,)) for which in range(2 + seed % 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
        assert not thread.is_alive()
    return counts


def in_tasks(subject: Subject, seed: int, number: int) -> Counter[str]:
    counts: Counter[str] = Counter()

    async def drive(which: int) -> None:
        random = Random(f"{seed} {which}")
        steps = act(subject, random, counts, number)
        for _ in steps:
            await asyncio.sleep(random.choice((0, 0, 0.001)))

    async def all_of_them() -> None:
        await asyncio.gather(*(asyncio.create_task(drive(which)) for which in range(2 + seed % 3)))

    asyncio.run(all_of_them())
    return counts


def campaign(subject: Subject, seeds: range, number: int) -> Counter[str]:
    total: Counter[str] = Counter()
    for seed in seeds:
        for run in (in_threads, in_tasks):
            counts = run(subject, seed, number)
            assert set(counts) <= {"right", "refused"}, (run.__name__, seed, counts)
            subject.check_unharmed()
            total += counts
    assert total["right"] and total["refused"], total
    return total


def test_threads_and_tasks_at_random(subject: Subject) -> None:
    campaign(subject, range(2), 8)


@pytest.mark.faults
def test_many_threads_and_tasks_at_random(subject: Subject, figure: Callable[..., None]) -> None:
    total = campaign(subject, range(100, 130), 20)
    kind = "decoder" if subject.model.config.model_type == "llama" else "encoder"
    figure(f"threads {kind}", operations=sum(total.values()), **{name: total[name] for name in ("right", "refused", "wrong")})


@contextmanager
def raising(module: nn.Module, error: BaseException, call: int) -> Iterator[None]:
    """Raises an error at the n-th call of a module."""
    calls = 0

    def count(*_: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == call:
            raise error

    hook = module.register_forward_pre_hook(count)
    try:
        yield
    finally:
        hook.remove()


def interrupt(subject: Subject, random: Random) -> str:
    """An operation that is interrupted somewhere, and then done in full: how the first ended."""
    name = random.choice(list(OPERATIONS))
    error = random.choice((RuntimeError("injected"), KeyboardInterrupt(), MemoryError(), ValueError("injected"), SystemExit(143)))
    module = random.choice([module for module in subject.model.modules() if not isinstance(module, nn.ModuleList)])
    with raising(module, error, random.choice((1, 1, 2, 5, 11))):
        try:
            end = "right" if subject.is_right(name, subject.run(name)) else "wrong"
        except (OutOfMemory, type(error)):
            end = "stopped"
        except BaseException as other:
            end = f"raw {name} {type(error).__name__}: {type(other).__name__}: {other}"
    subject.check_unharmed()
    assert subject.is_right(name, subject.run(name)), (name, error, module)
    return end


def interrupt_often(subject: Subject, seeds: range) -> Counter[str]:
    ends = Counter(interrupt(subject, Random(seed)) for seed in seeds)
    assert set(ends) == {"right", "stopped"}, ends
    return ends


def test_exceptions_at_random_calls(subject: Subject) -> None:
    interrupt_often(subject, range(40))


@pytest.mark.faults
def test_many_exceptions_at_random_calls(subject: Subject, figure: Callable[..., None]) -> None:
    ends = interrupt_often(subject, range(1000, 1600))
    kind = "decoder" if subject.model.config.model_type == "llama" else "encoder"
    figure(f"exceptions {kind}", stopped=ends["stopped"], right=ends["right"])
