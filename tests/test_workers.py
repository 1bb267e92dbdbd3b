"""Compile workers: real compiles in processes of their own, and what they survive."""

import re
import threading
from pathlib import Path

import pytest

from planfreeze.cache.digest import digest_of
from planfreeze.elf import read_cubin
from planfreeze.errors import CompileFailed, WorkerDied
from planfreeze.family import family_of
from planfreeze.key import source_roots
from planfreeze.sources import read_sources
from planfreeze.target import ARCHS, target
from planfreeze.workers import Task, Worker

SM_90A = target("sm_90a")


def make_task(payload, arch="sm_90a"):
    family = family_of(payload)
    roots = source_roots(family, family.define(payload, target(arch)))
    return Task(family.reference, payload, target(arch), read_sources(roots))


@pytest.fixture(scope="module")
def worker(toys):
    """A worker that several tests use, one after another."""
    with Worker(SM_90A) as shared:
        yield shared


@pytest.fixture
def add(toys):
    return make_task(toys.families.AddPayload(block=64))


@pytest.fixture
def copy_in(toys):
    """The task of a CuTe kernel that misbehaves in one way."""
    return lambda mode: make_task(toys.families.CopyPayload(mode=mode))


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """The caller's temporary folder and home, both empty."""
    for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(name, str(tmp_path / name))
    return tmp_path


@pytest.mark.parametrize("arch", ARCHS)
def test_both_dialects_compile_for_the_arch_of_the_worker(add, toys, arch):
    with Worker(target(arch)) as started:
        for payload, symbol in (
            (toys.families.AddPayload(block=64), "add_kernel"),
            (toys.families.CopyPayload(), "Copy"),
        ):
            cubin = read_cubin(started.compile(make_task(payload, arch)).cubin)
            assert cubin.arch == arch
            assert [symbol in kernel.symbol for kernel in cubin.kernels] == [True]


def test_launch_facts_come_with_the_program(worker, toys, copy_in):
    assert worker.compile(make_task(toys.families.AddPayload(block=64, warps=2))).launch.block == (64, 1, 1)
    assert worker.compile(copy_in("plain")).launch.block == (32, 1, 1)


def test_bytes_do_not_depend_on_what_the_worker_compiled_before(worker, toys, add, copy_in, built):
    blobs = [outcome.record.blob for outcome in built.report.outcomes]
    for payload in (toys.families.AddPayload(block=32), toys.families.AddPayload(block=128)):
        worker.compile(make_task(payload))
    for _ in range(2):
        made = [worker.compile(copy_in("plain")).cubin, worker.compile(add).cubin]
        assert [digest_of(data) for data in reversed(made)] == blobs


def test_kernel_that_raises_is_named_with_its_traceback(worker, copy_in, add):
    with pytest.raises(CompileFailed) as raised:
        worker.compile(copy_in("raise"))
    message = str(raised.value)
    assert message.startswith("toys.families:copy did not compile: Traceback")
    assert 'toys/copy_cute.py", line' in message and "in __init__" in message
    assert "ArithmeticError: this kernel has no solution" in message
    assert worker.compile(add).cubin, "the worker goes on"


def test_kernel_the_compiler_refuses_is_named_with_the_compilers_words(make_package):
    make_package(
        "refused",
        add_triton="""
            import triton
            import triton.language as tl

            @triton.jit
            def add_kernel(source, out, count, block: tl.constexpr):
                tl.store(out, tl.no_such_operation(source))
            """,
    )
    from refused.families import AddPayload

    with (
        Worker(SM_90A) as started,
        pytest.raises(CompileFailed, match=r"refused\.families:add did not compile") as raised,
    ):
        started.compile(make_task(AddPayload(block=64)))
    assert "no_such_operation" in str(raised.value)


def test_kernel_whose_parameters_are_not_the_familys_arguments_is_refused(make_package):
    make_package(
        "other_parameters",
        add_triton="""
            import triton
            import triton.language as tl

            @triton.jit
            def add_kernel(out, source, count, block: tl.constexpr):
                tl.store(out, tl.load(source))
            """,
    )
    from other_parameters.families import AddPayload

    with Worker(SM_90A) as started, pytest.raises(CompileFailed, match="kernel takes") as raised:
        started.compile(make_task(AddPayload(block=64)))
    assert "('out', 'source', 'count')" in str(raised.value) and "('source', 'out', 'count')" in str(raised.value)


def test_kernel_that_needs_scratch_memory_in_every_launch_is_refused_with_how_much(make_package):
    make_package(
        "scratch_memory",
        add_triton="""
            import triton
            import triton.language as tl

            @triton.jit
            def add_kernel(source, out, count, block: tl.constexpr):
                read = tl.make_tensor_descriptor(source, shape=[count, block], strides=[block, 1], block_shape=[8, 64])
                write = tl.make_tensor_descriptor(out, shape=[count, block], strides=[block, 1], block_shape=[8, 64])
                write.store([0, 0], read.load([0, 0]))
            """,
    )
    from scratch_memory.families import AddPayload

    with Worker(SM_90A) as started, pytest.raises(CompileFailed, match=r"scratch memory.*'global_scratch_size': [1-9]"):
        started.compile(make_task(AddPayload(block=64)))


def test_kernel_module_without_the_kernel_is_refused_by_name(make_package):
    make_package("no_kernel", add_triton="add = 1")
    from no_kernel.families import AddPayload

    with Worker(SM_90A) as started, pytest.raises(CompileFailed, match=r"no_kernel\.add_triton has no add_kernel"):
        started.compile(make_task(AddPayload(block=64)))


def test_kernel_that_prints_does_not_break_the_protocol(worker, copy_in, built):
    printed = worker.compile(copy_in("print"))
    assert read_cubin(printed.cubin).kernels
    assert digest_of(worker.compile(copy_in("plain")).cubin) == built.report.outcomes[1].record.blob


def test_what_a_failing_program_printed_is_in_its_error_and_in_no_later_one(worker, make_package, copy_in):
    make_package(
        "talking",
        copy_cute="""
            class Copy:
                def __init__(self, *, launch, mode):
                    print(f"about to fail in {mode}", flush=True)
                    raise ArithmeticError
            """,
    )
    from talking.families import CopyPayload

    with Worker(SM_90A) as started:
        messages = []
        for mode in ("one", "two"):
            with pytest.raises(CompileFailed) as raised:
                started.compile(make_task(CopyPayload(mode=mode)))
            messages.append(str(raised.value))
    assert "about to fail in one" in messages[0] and "about to fail in one" not in messages[1]
    assert "about to fail in two" in messages[1]


def test_kernel_that_asks_for_input_gets_none(worker, copy_in, add):
    with pytest.raises(CompileFailed, match="EOFError"):
        worker.compile(copy_in("read"))
    assert worker.compile(add).cubin


@pytest.mark.parametrize(("mode", "cause"), [("exit", "status 3"), ("kill", "signal 9"), ("close", "signal 9")])
def test_kernel_that_ends_its_process_is_named_with_the_cause(copy_in, scratch, mode, cause):
    with Worker(SM_90A) as started:
        with pytest.raises(WorkerDied, match=f"compile process of toys.families:copy ended with {cause}"):
            started.compile(copy_in(mode))
        with pytest.raises(WorkerDied):
            started.compile(copy_in("plain"))


def test_worker_is_killed_from_another_thread_while_it_compiles(copy_in, scratch, wait_for):
    with Worker(SM_90A) as started:
        killer = threading.Thread(target=lambda: (wait_for(scratch / "HOME" / "waiting"), started.kill()))
        killer.start()
        with pytest.raises(WorkerDied, match="signal 9"):
            started.compile(copy_in("wait"))
        killer.join()


def show_environment(task):
    with Worker(SM_90A) as started, pytest.raises(CompileFailed) as raised:
        started.compile(task)
    return dict(re.findall(r"<(\w+)=([^>]*)>", str(raised.value)))


def test_worker_sees_no_gpu_and_no_compiler_setting_of_the_caller(copy_in, scratch, monkeypatch):
    for name in ("TRITON_DEFAULT_FP_FUSION", "TRITON_PTXAS_PATH", "CUTE_DSL_KEEP_IR", "CUTE_DSL_ARCH", "PTXAS_OPTIONS"):
        monkeypatch.setenv(name, "callers")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    monkeypatch.setenv("PYTHONHASHSEED", "77")
    first, second = show_environment(copy_in("show")), show_environment(copy_in("show"))
    assert "callers" not in first.values()
    folder = first.pop("TMPDIR")
    assert first.pop("CUTE_DSL_DUMP_DIR") == f"{folder}/dumps"
    assert second.pop("TMPDIR") != folder, "every worker has a folder of its own"
    assert second.pop("CUTE_DSL_DUMP_DIR") != f"{folder}/dumps"
    assert first == second, "nothing else differs between workers, hash seed included"
    assert {name: value for name, value in first.items() if name.startswith(("TRITON", "CUTE", "CUDA", "PTXAS"))} == {
        "CUDA_VISIBLE_DEVICES": "",
        "CUTE_DSL_ARCH": "sm_90a",
        "CUTE_DSL_KEEP": "ir",
        "TRITON_DEFAULT_FP_FUSION": "1",
        "TRITON_DISABLE_LINE_INFO": "1",
        "TRITON_DUMP_PTXAS_LOG": "1",
    }


def test_bytes_do_not_depend_on_the_callers_environment(toys, add, copy_in, built, scratch, monkeypatch):
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "0")
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "0")
    monkeypatch.setenv("CUTE_DSL_ENABLE_ASSERTIONS", "1")
    with Worker(SM_90A) as started:
        made = [digest_of(started.compile(task).cubin) for task in (add, copy_in("plain"))]
    assert made == [outcome.record.blob for outcome in built.report.outcomes]


def test_compiling_leaves_no_file_behind(add, copy_in, scratch):
    with Worker(SM_90A) as started:
        started.compile(add)
        started.compile(copy_in("plain"))
    assert [path for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME") for path in (scratch / name).rglob("*")] == []


def test_no_path_of_the_sources_is_in_the_bytes(worker, add, copy_in, toys):
    for task in (add, copy_in("plain")):
        cubin = worker.compile(task).cubin
        assert str(toys.folder).encode() not in cubin and str(Path.cwd()).encode() not in cubin


def test_text_edited_after_it_was_keyed_is_refused_by_module(make_package):
    package = make_package("edited")
    from edited.families import AddPayload

    task = make_task(AddPayload(block=64))
    (package / "shared.py").write_text("AMOUNT = 8\n")
    with Worker(SM_90A) as started, pytest.raises(CompileFailed) as raised:
        started.compile(task)
    assert "module edited.shared" in str(raised.value) and "no longer the text" in str(raised.value)


def test_worker_of_another_arch_refuses_a_cute_program(toys, worker):
    with pytest.raises(CompileFailed, match="this process compiles for sm_90a, not sm_120a"):
        worker.compile(make_task(toys.families.CopyPayload(), "sm_120a"))


def test_task_for_a_family_that_is_not_there_is_refused(worker, add):
    task = Task("toys.families:subtract", add.payload, add.target, add.sources)
    with pytest.raises(CompileFailed, match=r"toys\.families:subtract is not a kernel family here"):
        worker.compile(task)


def test_worker_that_died_between_two_tasks_is_noticed_and_closed(add):
    with Worker(SM_90A) as started:
        assert started.compile(add).cubin
        started.kill()
        with pytest.raises(WorkerDied, match="signal 9"):
            started.compile(add)
