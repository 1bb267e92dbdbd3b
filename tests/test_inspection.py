"""Inspection: a cubin must be the one kernel its definition and launch facts describe."""

import pytest
from msgspec.structs import replace

from planfreeze.errors import InvalidCubin, UnexpectedCubin, WrongArch
from planfreeze.family import LaunchInfo, pointer, scalar
from planfreeze.inspection import inspect_cubin
from planfreeze.target import target
from planfreeze.workers import Task, Worker

SM_90A = target("sm_90a")


@pytest.fixture
def programs(built):
    """Name, cubin, definition, launch facts and target of the two built programs."""
    return [
        (
            program.name,
            built.store.get_blob(outcome.record.blob),
            program.definition,
            outcome.record.launch,
            program.target,
        )
        for program, outcome in zip(built.keyed, built.report.outcomes, strict=True)
    ]


def test_cubin_that_is_the_described_kernel_passes(programs, built):
    for program, outcome in zip(programs, built.report.outcomes, strict=True):
        kernel = inspect_cubin(*program)
        assert (kernel.symbol, kernel.parameter_sizes) == (outcome.record.symbol, outcome.record.parameter_bytes)


def test_cubin_of_another_arch_is_refused(programs):
    for name, cubin, definition, launch, _ in programs:
        with pytest.raises(WrongArch, match="is made for sm_90a, not for sm_120a"):
            inspect_cubin(name, cubin, definition, launch, target("sm_120a"))


def test_bytes_that_are_no_cubin_are_refused(programs):
    name, cubin, definition, launch, _ = programs[0]
    for data in (b"", b"text", cubin[:100], cubin[:-1000]):
        with pytest.raises(InvalidCubin):
            inspect_cubin(name, data, definition, launch, SM_90A)


def test_cubin_with_other_parameters_is_refused(programs):
    name, cubin, definition, launch, _ = programs[1]
    for arguments in (
        definition.arguments[:2],
        (*definition.arguments, scalar("more")),
        (*definition.arguments[:2], scalar("count", "i64")),
        (definition.arguments[2], *definition.arguments[:2]),
        (*definition.arguments[:2], pointer("count", "i32", len)),
    ):
        with pytest.raises(UnexpectedCubin, match="its parameters have"):
            inspect_cubin(name, cubin, replace(definition, arguments=arguments), launch, SM_90A)


def test_cubin_of_the_other_dialect_is_refused(programs):
    (name, triton, definition, launch, _), (_, cute, *_) = programs
    assert inspect_cubin(name, triton, definition, launch, SM_90A)
    with pytest.raises(UnexpectedCubin, match="its parameters have"):
        inspect_cubin(name, cute, definition, launch, SM_90A)


def test_cubin_compiled_for_another_block_is_refused(programs):
    for name, cubin, definition, launch, _ in programs:
        with pytest.raises(UnexpectedCubin, match=r"it was compiled for blocks of \(32, 1, 1\), not \(64, 1, 1\)"):
            inspect_cubin(name, cubin, definition, replace(launch, block=(64, 1, 1)), SM_90A)


def test_shared_memory_up_to_the_limit_of_a_block_passes(programs, toys, make_package):
    make_package(
        "shared_user",
        add_triton="""
            import triton
            import triton.language as tl

            @triton.jit
            def add_kernel(source, out, count, block: tl.constexpr):
                values = tl.load(source + tl.arange(0, block))
                tl.store(out, tl.sum(values))
            """,
    )
    from shared_user.families import AddPayload, add

    from planfreeze.key import source_roots
    from planfreeze.sources import read_sources

    payload = AddPayload(block=256, warps=4)
    definition = add.define(payload, SM_90A)
    task = Task(add.reference, payload, SM_90A, read_sources(source_roots(add, definition)))
    with Worker(SM_90A) as worker:
        compiled = worker.compile(task)
    assert inspect_cubin("sum", compiled.cubin, definition, compiled.launch, SM_90A).shared_bytes == 1024, (
        "what the system reserves counts as the kernel's own"
    )
    for cubin, described in ((compiled.cubin, definition), programs[0][1:3]):
        block = compiled.launch.block if described is definition else (32, 1, 1)
        most = LaunchInfo(block=block, shared_bytes=SM_90A.max_shared_bytes)
        inspect_cubin("sum", cubin, described, most, SM_90A)
        with pytest.raises(UnexpectedCubin, match="a block needs 232449 of 232448 bytes of shared memory"):
            inspect_cubin("sum", cubin, described, replace(most, shared_bytes=most.shared_bytes + 1), SM_90A)
