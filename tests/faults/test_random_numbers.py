"""torch's random numbers belong to the process: passes in two threads neither take each other's draws nor leave another state."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from toys import build

import headcount as hc
from headcount.models.dummy_inputs.text import probe_inputs
from headcount.models.randomness import fork_rng, pass_rng
from headcount.models.state import forward_preserving_state
from headcount.surgery.verify import forward_outputs


def in_two_threads(first: Callable[[], Any], second: Callable[[], Any]) -> list[Any]:
    with ThreadPoolExecutor(2) as pool:
        return [work.result(60) for work in (pool.submit(first), pool.submit(second))]


def test_overlapping_passes_leave_the_random_state_as_it_was() -> None:
    """The second pass starts while the first has seeded the generator, and ends after it: it restored the seeded state."""
    models = [build("encoder"), build("encoder")]
    inputs = probe_inputs(models[0])
    for model in models:
        forward_outputs(model, inputs)  # the first pass of a model runs alone
    second_runs, first_ended = threading.Event(), threading.Event()
    models[0].get_input_embeddings().register_forward_hook(lambda *_: second_runs.wait(60) and None)

    def wait_for_first(*_: Any) -> None:
        second_runs.set()
        assert first_ended.wait(60)

    models[1].get_input_embeddings().register_forward_hook(wait_for_first)

    def run_first() -> None:
        forward_outputs(models[0], inputs)
        first_ended.set()

    torch.manual_seed(123)
    state = torch.get_rng_state()
    in_two_threads(run_first, lambda: forward_outputs(models[1], inputs))
    assert torch.equal(torch.get_rng_state(), state)


def test_models_that_draw_numbers_do_not_take_those_of_another_thread() -> None:
    meeting = threading.Barrier(2)

    def add_noise(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        noise = torch.rand_like(output)
        with contextlib.suppress(threading.BrokenBarrierError):  # passes that run one after the other do not meet here
            meeting.wait(0.2)
        return output + noise + torch.rand_like(output)

    models = [build("encoder"), build("encoder")]
    for model in models:
        model.get_input_embeddings().register_forward_hook(add_noise)
    inputs = probe_inputs(models[0])
    expected = [forward_outputs(model, inputs) for model in models]
    meeting.reset()
    outputs = in_two_threads(lambda: forward_outputs(models[0], inputs), lambda: forward_outputs(models[1], inputs))
    for ours, theirs in zip(expected, outputs, strict=True):
        assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_passes_of_models_without_draws_run_side_by_side() -> None:
    """Both are inside at once, or the barrier breaks."""
    meeting = threading.Barrier(2)
    models = [build("encoder"), build("encoder")]
    inputs = probe_inputs(models[0])
    for model in models:
        forward_preserving_state(model, inputs)
        model.get_input_embeddings().register_forward_hook(lambda *_: meeting.wait(60) and None)
    in_two_threads(lambda: forward_preserving_state(models[0], inputs), lambda: forward_outputs(models[1], inputs))


def test_draws_inside_an_inner_section_are_noticed() -> None:
    """A seeded section around `forward` sees no change, since the inner section restores the state."""
    model = build("encoder")
    model.get_input_embeddings().register_forward_hook(lambda _m, _a, output: output + torch.rand_like(output))
    inputs = probe_inputs(model)
    with pass_rng(model, seed=0):
        forward_preserving_state(model, inputs)
    entered = threading.Event()

    def enter() -> None:
        with pass_rng(model):
            entered.set()

    thread = threading.Thread(target=enter)
    with pass_rng(build("encoder")):
        thread.start()
        assert not entered.wait(0.1)
        with pass_rng(model):  # this thread is inside already
            assert not entered.is_set()
    assert entered.wait(60)
    thread.join()


def test_sections_close_in_any_order_and_after_errors() -> None:
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first, second = fork_rng(()), fork_rng(())
    first.__enter__()
    torch.manual_seed(0)
    second.__enter__()
    torch.rand(3)
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(RuntimeError, match="inside"), pass_rng(build("encoder"), seed=0):
        raise RuntimeError("inside")
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_does_not_wait_for_threads_it_does_not_have() -> None:
    model, other = build("encoder"), build("encoder")
    inside, leave = threading.Event(), threading.Event()

    def stay() -> None:
        with pass_rng(model):
            inside.set()
            leave.wait(60)

    thread = threading.Thread(target=stay)
    thread.start()
    assert inside.wait(60)
    child = os.fork()
    if child == 0:  # the child never returns to pytest
        with pass_rng(other):
            os._exit(7)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


def test_cuts_in_two_threads_are_proven_for_models_that_draw() -> None:
    models = [build("encoder"), build("encoder")]  # not in the threads: transformers sets torch's default dtype while it builds
    for model in models:
        model.get_input_embeddings().register_forward_hook(lambda _m, _a, output: output + 0.1 * torch.rand_like(output))
    n_left = len(hc.HeadMap.of(models[0])) - 1

    def cut(model: Any) -> int:
        return len(hc.HeadMap.of(hc.cut(model, hc.Plan.removing(["L0H0"]))))

    assert in_two_threads(lambda: cut(models[0]), lambda: cut(models[1])) == [n_left, n_left]
