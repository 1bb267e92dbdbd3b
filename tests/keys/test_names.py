"""Kernels and helpers that share a name: each is its own program, whatever was compiled before it."""

import importlib
from collections.abc import Callable
from itertools import count, permutations
from pathlib import Path
from typing import Any

import pytest

from planfreeze.builds import build_plans
from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.elf import read_cubin
from planfreeze.keyed import KeyedProgram, key_plan
from planfreeze.plans import Plan
from planfreeze.resolve import resolve_plan
from planfreeze.target import target
from planfreeze.workers import Task, Worker

SM_90A = target("sm_90a")
numbers = count()

FAMILIES = """
    from typing import ClassVar
    from planfreeze.family import CuteSource, Definition, LaunchInfo, TritonSource, family, pointer, scalar
    from planfreeze.payload import Payload

    class ProbePayload(Payload):
        family_name: ClassVar[str] = "NAME_probe"
        kernel: str
        dtype: str = "i32"

    @family(ProbePayload, version=1)
    def probe(payload, target):
        kernel = f"NAME.{payload.kernel}"
        if kernel.endswith("Probe"):
            source = CuteSource(kernel=kernel, constants=(), launch=LaunchInfo(block=(32, 1, 1)))
        else:
            source = TritonSource(kernel=kernel, constants=())
        return Definition(
            arguments=(pointer("out", payload.dtype, lambda scalars: 1), scalar("count")),
            source=source,
            grid=lambda scalars, resident_blocks: (1, 1, 1),
        )
    """
TRITON = """
    import triton
    import triton.language as tl

    @triton.jit
    def probe(out, count):
        tl.store(out, BODY)
    """
CUTE = """
    from cutlass import Int32, Int64, cute

    class Probe:
        def __init__(self, *, launch):
            pass

        @cute.jit
        def __call__(self, out: Int64, count: Int32, stream):
            self.probe(out, count).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

        @cute.kernel
        def probe(self, out: Int64, count: Int32):
            pointer = cute.make_ptr(Int32, out, cute.AddressSpace.gmem, assumed_align=4)
            cute.make_tensor(pointer, cute.make_layout(1))[0] = BODY
    """
LARGEST = """
    import triton
    import triton.language as tl

    @triton.jit
    def LARGEST(a, b):
        return a * 2 + b

    @triton.jit
    def probe(out, count):
        values = tl.arange(0, 32) + count
        tl.store(out, tl.max(values, axis=0) + LARGEST(count, 1))
    """
MODULES = {
    "doubling": TRITON.replace("BODY", "count * 2"),
    "adding": TRITON.replace("BODY", "count + 100"),
    "doubling_cute": CUTE.replace("BODY", "count * 2"),
    "adding_cute": CUTE.replace("BODY", "count + 100"),
    "twice": TRITON.replace("BODY", "count * 2") + TRITON.replace("BODY", "count + 100"),
    "shadowing": LARGEST.replace("LARGEST", "max"),
    "plain": LARGEST.replace("LARGEST", "largest"),
    "families": FAMILIES,
}
SAME_NAMED = ("doubling:probe", "adding:probe", "doubling_cute:Probe", "adding_cute:Probe")


@pytest.fixture
def probes(make_package: Callable[..., Path]) -> Callable[..., Any]:
    """The payload class of a package of kernels that are all called ``probe``, one for each test."""
    name = f"probes{next(numbers)}"
    make_package(name, **MODULES)
    payload: Callable[..., Any] = importlib.import_module(f"{name}.families").ProbePayload
    return payload


def key(toolchains: Path, *payloads: Any) -> tuple[KeyedProgram, ...]:
    """Key payloads as a build does."""
    keyed = key_plan(Plan(model="probes", tp=1, target=SM_90A, payloads=payloads), toolchains)
    assert all(isinstance(program, KeyedProgram) for program in keyed)
    return keyed  # type: ignore[return-value]


def compile_in_turn(programs: tuple[KeyedProgram, ...]) -> list[bytes]:
    """Compile programs one after another in one fresh process."""
    with Worker(SM_90A) as worker:
        return [worker.compile(Task(p.family.reference, p.payload, SM_90A, p.sources)).cubin for p in programs]


def test_kernels_of_one_name_are_programs_of_their_own_in_every_order(probes: Any, toolchains: Path) -> None:
    programs = key(toolchains, *(probes(kernel=kernel) for kernel in SAME_NAMED))
    assert len({program.key.digest for program in programs}) == len(programs)
    alone = {program.payload: compile_in_turn((program,))[0] for program in programs}
    assert len({digest_of(cubin) for cubin in alone.values()}) == len(programs)
    orders = [*permutations(programs)]
    # Each program comes first, last, after each other one, and three times: 6 of the 24 orders, one after another.
    chosen = tuple(program for order in orders[::4] for program in order)
    for program, cubin in zip(chosen, compile_in_turn(chosen), strict=True):
        assert digest_of(cubin) == digest_of(alone[program.payload]), program.name
    for again in permutations(programs[:2]):
        keyed = key(toolchains, *(program.payload for program in again))
        assert [program.key.digest for program in keyed] == [program.key.digest for program in again]


def test_a_kernel_that_is_defined_twice_is_what_its_name_means_in_the_end(probes: Any, toolchains: Path) -> None:
    last, twice = compile_in_turn(key(toolchains, probes(kernel="adding:probe"), probes(kernel="twice:probe")))
    assert digest_of(twice) == digest_of(last)


def test_a_helper_called_max_beside_that_of_the_language_is_neither_more_nor_less(
    probes: Any, toolchains: Path
) -> None:
    programs = key(toolchains, probes(kernel="shadowing:probe"), probes(kernel="plain:probe"))
    shadowing, plain = compile_in_turn(programs)
    assert digest_of(shadowing) == digest_of(plain)


def test_two_signatures_of_one_kernel_are_two_programs_of_one_plan(
    probes: Any, toolchains: Path, tmp_path: Path
) -> None:
    payloads = tuple(probes(kernel="doubling:probe", dtype=dtype) for dtype in ("i32", "i64", "f32"))
    plan = Plan(model="probes", tp=1, target=SM_90A, payloads=payloads)
    store = Store.open(tmp_path / "store", writable=True)
    report = build_plans([plan], store, jobs=1, toolchains=toolchains)
    (frozen,) = report.plans
    resolved = resolve_plan(frozen, store).check()
    assert {program.payload for program in resolved} == set(payloads)
    assert len({digest_of(program.cubin) for program in resolved}) == len(payloads)
    for program in resolved:
        assert [kernel.symbol for kernel in read_cubin(program.cubin).kernels] == [program.record.symbol]
