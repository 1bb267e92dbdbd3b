"""Binding and launching, with a driver that records calls in place of a device."""

import ctypes
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch

from planfreeze.builds import build_plans
from planfreeze.cache.store import Store
from planfreeze.errors import InvalidArgument, LaunchFailed, SessionState, WrongDevice
from planfreeze.kernels.moe.topk_sum import TopkSumPayload
from planfreeze.plans import Plan
from planfreeze.programs import Program
from planfreeze.resolve import ResolvedProgram, resolve_plan
from planfreeze.target import target

from .recording_device import HIDDEN, TOKENS, TOP_K, RecordingDevice, passed_words, rows, status, sums


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory) -> ResolvedProgram:
    folder = tmp_path_factory.mktemp("programs")
    store = Store.open(folder / "store", writable=True)
    payload = TopkSumPayload(hidden=HIDDEN, top_k=TOP_K)
    plan = Plan(model="programs", tp=1, target=target("sm_90a"), payloads=(payload,))
    report = build_plans([plan], store, jobs=1, toolchains=folder)
    return resolve_plan(report.plans[0], store).check()[0]


@pytest.fixture
def program(resolved: ResolvedProgram) -> Program:
    return Program(resolved, RecordingDevice())


def test_loading_sets_shared_memory_and_reads_the_occupancy(program: Program) -> None:
    assert program.resident_blocks == 132 * 4
    assert program.device.driver.named("cuFuncSetAttribute")[0][1:] == ("shared", program.launch_info.shared_bytes)


def test_a_device_of_another_architecture_is_refused(resolved: ResolvedProgram) -> None:
    device = RecordingDevice()
    device.capability = (12, 0)
    with pytest.raises(WrongDevice, match="sm_90a"):
        Program(resolved, device)
    assert device.driver.calls == []


def test_a_launch_is_one_driver_call_on_the_current_stream(program: Program) -> None:
    bound = program.bind(rows(), sums(), TOKENS)
    program.device.driver.calls.clear()
    bound.launch()
    bound.launch(123)
    first, second = program.device.driver.named("cuLaunchKernel")
    assert len(program.device.driver.calls) == 2
    assert first[1:4] == bound.grid
    assert first[4:8] == (*program.launch_info.block, program.launch_info.shared_bytes)
    assert (first[8], second[8]) == (77, 123)


def test_arguments_reach_the_driver_in_order_by_name_or_position(program: Program) -> None:
    source, out = rows(), sums()
    for bound in (program.bind(source, out, TOKENS), program.bind(tokens=TOKENS, out=out, route_output=source)):
        assert passed_words(bound, 3) == [source.data_ptr(), out.data_ptr(), TOKENS]


def test_a_call_without_tokens_launches_nothing(program: Program) -> None:
    program.bind(rows(), sums(), 0).launch()
    assert program.device.driver.named("cuLaunchKernel") == [] and program.launches == 0


def test_every_launch_the_driver_took_is_counted(program: Program) -> None:
    bound = program.bind(rows(), sums(), TOKENS)
    bound.launch()
    program.launch(rows(), sums(), TOKENS)
    program.device.driver.refusals.append("CUDA_ERROR_LAUNCH_FAILED")
    with pytest.raises(LaunchFailed):
        bound.launch()
    assert program.launches == len(program.device.driver.named("cuLaunchKernel")) - 1 == 2


@pytest.mark.parametrize(
    ("values", "named", "argument", "reason"),
    [
        ((rows(), sums()), {}, "tokens", "missing"),
        ((rows(), sums(), TOKENS, 1), {}, "number 4", "one too many"),
        ((rows(), sums(), TOKENS), {"tokens": 1}, "tokens", "twice"),
        ((rows(), sums(), TOKENS), {"routes": 1}, "routes", "unknown"),
        ((rows(dtype=torch.float16), sums(), TOKENS), {}, "route_output", "float16"),
        ((rows().to("meta"), sums(), TOKENS), {}, "route_output", "meta"),
        ((rows().T, sums(), TOKENS), {}, "route_output", "contiguous"),
        ((rows(4).view(-1)[1:-1], sums(), TOKENS), {}, "route_output", "aligned"),
        ((rows(2), sums(), TOKENS), {}, "route_output", "1024 elements, the kernel may touch 1536"),
        ((rows(), sums(2), TOKENS), {}, "out", "elements"),
        ((rows(), sums(), 3.0), {}, "tokens", "float"),
        ((rows(), sums(), True), {}, "tokens", "bool"),
        ((rows(), sums(), 2**31), {}, "tokens", "more than 2147483647"),
        ((rows(), sums(), -1), {}, "tokens", "negative"),
        (("rows", sums(), TOKENS), {}, "route_output", "str"),
    ],
)
def test_a_wrong_argument_is_named_and_nothing_is_launched(
    program: Program, values: tuple[Any, ...], named: dict[str, Any], argument: str, reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=f"argument {argument} .*{reason}"):
        program.launch(*values, **named)
    assert program.device.driver.named("cuLaunchKernel") == []


def test_a_thread_without_the_context_launches_with_it_pushed(program: Program) -> None:
    bound = program.bind(rows(), sums(), TOKENS)
    program.device.driver.calls.clear()
    program.device.driver.refusals.append("CUDA_ERROR_INVALID_CONTEXT")
    bound.launch()
    assert [name for name, _ in program.device.driver.calls] == [
        "cuLaunchKernel",
        "cuCtxPushCurrent",
        "cuLaunchKernel",
        "cuCtxPopCurrent",
    ]


def test_a_programmatic_launch_is_one_with_that_attribute_and_no_other(program: Program) -> None:
    program.bind(rows(), sums(), TOKENS, is_programmatic=True).launch()
    program.bind(rows(), sums(), TOKENS).launch()
    ((config, _, _, _),) = program.device.driver.named("cuLaunchKernelEx")
    (attribute,) = config.attrs
    assert (attribute.id, attribute.value.programmaticStreamSerializationAllowed) == ("programmatic", 1)
    assert (config.hStream, config.blockDimX, config.numAttrs) == (77, program.launch_info.block[0], 1)
    assert len(program.device.driver.named("cuLaunchKernel")) == 1


def test_threads_that_launch_one_bound_program_do_so_on_streams_of_their_own(program: Program) -> None:
    meeting, seen = threading.Barrier(2, timeout=30), {}

    def launch(config: Any, *_: Any) -> tuple[Any]:
        meeting.wait()  # both threads have said their stream
        seen[threading.get_ident()] = config.hStream
        return (status("CUDA_SUCCESS"),)

    program.device.driver.cuLaunchKernelEx = launch
    bound = program.bind(rows(), sums(), TOKENS, is_programmatic=True)
    program.device.stream_handle = lambda stream: stream  # type: ignore[method-assign]
    streams = {}

    def run(stream: int) -> None:
        streams[threading.get_ident()] = stream
        bound.launch(stream)

    threads = [threading.Thread(target=run, args=(stream,)) for stream in (5, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == streams and sorted(seen.values()) == [5, 6]


def test_launch_attributes_are_made_once_for_all_calls_of_a_program(program: Program) -> None:
    made: list[Any] = []
    attribute = program.device.driver.CUlaunchAttribute
    program.device.driver.CUlaunchAttribute = lambda: made.append(attribute()) or made[-1]
    for tokens in (TOKENS, 1, TOKENS):
        program.bind(rows(), sums(), tokens, is_programmatic=True).launch()
        program.launch(rows(), sums(), tokens, is_programmatic=True)
    assert len(made) == 1
    assert len(program.device.driver.named("cuLaunchKernelEx")) == 6


def test_a_launch_inside_a_launch_has_parameters_of_its_own(program: Program) -> None:
    first, second, seen = rows(), rows(), []
    launch = program.device.driver.cuLaunchKernel

    def read(*arguments: Any) -> tuple[Any]:
        if not seen:
            seen.append(None)  # as a signal handler does that launches the same program
            program.launch(second, sums(), TOKENS)
        seen.append(ctypes.c_int64.from_address(ctypes.c_int64.from_address(arguments[9]).value).value)
        return launch(*arguments)

    program._launches.clear()
    program.device.driver.cuLaunchKernel = read
    program.launch(first, sums(), TOKENS)
    assert seen == [None, second.data_ptr(), first.data_ptr()]


def test_a_checked_launch_keeps_no_tensor_alive(program: Program) -> None:
    source = rows()
    alive = weakref.ref(source)
    program.launch(source, sums(), TOKENS)
    del source
    assert alive() is None


def test_a_refused_launch_names_program_and_reason(program: Program) -> None:
    program.device.driver.refusals.append("CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES")
    with pytest.raises(LaunchFailed, match=r"topk_sum\(hidden=256, top_k=2\).*LAUNCH_OUT_OF_RESOURCES"):
        program.launch(rows(), sums(), TOKENS)


def test_an_unloaded_program_raises_and_is_unloaded_once(program: Program) -> None:
    bound = program.bind(rows(), sums(), TOKENS)
    program.unload("the session was closed")
    program.unload("the session was closed")
    with pytest.raises(SessionState, match="closed"):
        bound.launch()
    with pytest.raises(SessionState, match="closed"):
        program.bind(rows(), sums(), TOKENS)
    assert len(program.device.driver.named("cuLibraryUnload")) == 1


def launch_slowly(program: Program, meanwhile: Callable[[], None]) -> threading.Thread:
    """Launch in a thread whose driver call lasts until ``meanwhile`` has returned; return it once it is in there."""
    bound, is_inside = program.bind(rows(), sums(), TOKENS), threading.Event()
    launch = bound._driver_launch

    def wait(*arguments: Any) -> Any:
        is_inside.set()
        meanwhile()
        return launch(*arguments)

    bound._driver_launch = wait
    thread = threading.Thread(target=bound.launch)
    thread.start()
    assert is_inside.wait(timeout=60)
    return thread


def test_a_program_is_unloaded_when_the_launches_of_other_threads_are_over(program: Program) -> None:
    may_end = threading.Event()
    launching = launch_slowly(program, lambda: may_end.wait(timeout=60))
    unloading = threading.Thread(target=program.unload, args=("the session was closed",))
    unloading.start()
    unloading.join(timeout=0.2)
    assert unloading.is_alive() and program.device.driver.named("cuLibraryUnload") == []
    may_end.set()
    for thread in (launching, unloading):
        thread.join(timeout=60)
    names = [call[0] for call in program.device.driver.calls]
    assert names.index("cuLaunchKernel") < names.index("cuLibraryUnload")


def test_a_launch_that_does_not_end_keeps_its_program_loaded(program: Program, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planfreeze.programs.LAUNCH_TIMEOUT_S", 0.05)
    may_end = threading.Event()
    launching = launch_slowly(program, lambda: may_end.wait(timeout=60))
    program.unload("the session was closed")
    assert program.device.driver.named("cuLibraryUnload") == []
    may_end.set()
    launching.join(timeout=60)
    with pytest.raises(SessionState, match="closed"):
        program.bind(rows(), sums(), TOKENS)


def test_a_refused_launch_counts_as_ended(program: Program) -> None:
    bound = program.bind(rows(), sums(), TOKENS)
    bound._driver_launch = lambda *arguments: 1 / 0
    with pytest.raises(ZeroDivisionError):
        bound.launch()
    program.unload("the session was closed")
    assert len(program.device.driver.named("cuLibraryUnload")) == 1


def test_bound_tensors_live_as_long_as_the_bound_program(program: Program) -> None:
    source = rows()
    bound = program.bind(source, sums(), TOKENS)
    address = source.data_ptr()
    del source
    assert bound.kept[0].data_ptr() == address


@pytest.mark.parametrize(("grid", "blocks"), [((5,), (5, 1, 1)), ([2, 3], (2, 3, 1)), ((0, 1, 1), None)])
def test_a_launch_may_bring_its_own_grid(program: Program, grid: Any, blocks: tuple[int, int, int] | None) -> None:
    rows = torch.zeros(TOKENS * TOP_K, HIDDEN, dtype=torch.bfloat16)
    out = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16)
    program.launch(rows, out, TOKENS, grid=grid)
    launched = program.device.driver.named("cuLaunchKernel")
    assert [call[1:4] for call in launched] == ([blocks] if blocks else [])


@pytest.mark.parametrize("grid", [(), (1, 1, 1, 1), (-1,), (2**31,), (True,), (1.0,)])
def test_a_grid_that_is_none_is_refused(program: Program, grid: Any) -> None:
    rows = torch.zeros(TOKENS * TOP_K, HIDDEN, dtype=torch.bfloat16)
    out = torch.zeros(TOKENS, HIDDEN, dtype=torch.bfloat16)
    with pytest.raises(InvalidArgument, match=r"argument grid = .* is not one to three numbers of blocks"):
        program.bind(rows, out, TOKENS, grid=grid)
