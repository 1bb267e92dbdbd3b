"""Compile workers: spawned, GPU-blind processes, one architecture each, that return bytes and touch no store.

Parent and worker exchange length-prefixed msgpack messages over the worker's standard streams: a task goes in, one
outcome comes back. Whatever compilers print lands in the worker's log.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Self

import msgspec
from msgspec import Struct

from planfreeze import errors
from planfreeze.compilers import CompiledProgram
from planfreeze.compilers.knobs import find_changed
from planfreeze.family import Definition, LaunchInfo, RecordedSource, TritonSource, load_family
from planfreeze.key import COMPILE_ENVIRONMENT
from planfreeze.notes import select_assembler_lines
from planfreeze.payload import Payload
from planfreeze.scratch import ScratchFolder
from planfreeze.sources import Sources, load_exactly
from planfreeze.target import Target, target

if TYPE_CHECKING:
    from planfreeze.compilers.assignments import KeyedText

__all__ = ["Task", "Worker"]

# What a compiler process sees of the caller's environment: what it takes to start one. Compilers look below HOME for
# caches that they are not given, and along PATH for tools that no compile runs.
PASSED_ON = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
LOG_TAIL_BYTES = 8192
# A compiler that hangs must not hang the build. The slowest kernels seen take seconds.
COMPILE_TIMEOUT_S = 900.0
DUMPS = "dumps"
# Unbuffered: what is printed is in the log when a program is done, or the process dead.
COMMAND = (sys.executable, "-u", "-P", "-m", "planfreeze.workers")


class Task(Struct, frozen=True):
    """A program to compile: its family, payload, and the text that was keyed."""

    family: str
    payload: Payload
    target: Target
    sources: Sources


class Worker:
    """A compile process, used by one thread at a time.

    Parameters
    ----------
    target : Target
        What it compiles for; the CuTe DSL latches it when it is imported.
    """

    def __init__(self, target: Target) -> None:
        self.target = target
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the worker
        self._scratch = ScratchFolder()
        (self._scratch.path / DUMPS).mkdir()
        self._process = subprocess.Popen(
            COMMAND,
            env=worker_environment(target, str(self._scratch.path)),
            cwd=self._scratch.path,
            pass_fds=(self._scratch.handle,),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            process_group=0,  # an interrupt at the terminal is the parent's to handle
        )

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def compile(self, task: Task) -> CompiledProgram:
        """Compile one program.

        Raises
        ------
        CompileFailed
            The compiler refused it; the message carries the end of the log.
        WorkerDied
            The process ended, or was ended after 15 minutes; this worker is of no more use.
        """
        assert self._process.stdin is not None and self._process.stdout is not None
        self._log.seek(0, os.SEEK_END)
        started_at = self._log.tell()
        fields = list(task.payload.to_fields().items())
        is_late = threading.Event()

        def end_late() -> None:
            is_late.set()
            self.kill()

        timer = threading.Timer(COMPILE_TIMEOUT_S, end_late)
        timer.start()
        try:
            send(self._process.stdin, [task.family, fields, task.target.arch, task.sources.modules])
            outcome = receive(self._process.stdout)
        except (BrokenPipeError, EOFError):
            self._process.kill()  # it may live on without its streams
            timeout_s = COMPILE_TIMEOUT_S if is_late.is_set() else None
            raise errors.WorkerDied(task.family, self._process.wait(), self._read_log(started_at), timeout_s) from None
        finally:
            timer.cancel()
        if outcome[0] == "failed":
            raise errors.CompileFailed(task.family, outcome[1] + self._read_log(started_at))
        cubin, launch, companions = outcome[1:]
        return CompiledProgram(
            cubin=cubin,
            launch=LaunchInfo.from_fields(launch),
            companions=tuple((name, content) for name, content in companions),
            log=select_assembler_lines(self._read_log(started_at)),
        )

    def kill(self) -> None:
        """End the process, whatever it is doing; safe from another thread."""
        self._process.kill()

    def close(self) -> None:
        """End the process and release what belongs to it."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):  # a task that a dead process never read
            self._process.stdin.close()
        self._process.stdout.close()
        self._log.close()
        self._scratch.close()

    def _read_log(self, start: int) -> str:
        self._log.seek(start)
        tail = self._log.read()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return f"\n{tail}" if tail else ""


def worker_environment(target: Target, folder: str) -> dict[str, str]:
    """Return the whole environment of a worker: pinned, GPU-blind, and with the parent's module search path.

    Its temporary files are in ``folder``. The CuTe DSL keeps what it knows of modules under a fixed name among the
    temporary files, where others could have written it.
    """
    return {
        **{name: os.environ[name] for name in PASSED_ON if name in os.environ},
        **COMPILE_ENVIRONMENT["triton"],
        **COMPILE_ENVIRONMENT["cute"],
        "TRITON_DUMP_PTXAS_LOG": "1",
        "CUTE_DSL_ARCH": target.arch,
        "CUTE_DSL_KEEP": "ir",
        "CUTE_DSL_DUMP_DIR": str(Path(folder, DUMPS)),
        "TMPDIR": folder,
        "CUDA_VISIBLE_DEVICES": "",
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(os.path.abspath(entry) for entry in sys.path),  # noqa: PTH100
    }


def send(stream: IO[bytes], message: object) -> None:
    """Write one message."""
    data = msgspec.msgpack.encode(message)
    stream.write(len(data).to_bytes(8, "little") + data)
    stream.flush()


def receive(stream: IO[bytes]) -> Any:
    """Read one message; EOFError when the other side is gone."""
    head = stream.read(8)
    size_bytes = int.from_bytes(head, "little")
    data = stream.read(size_bytes) if len(head) == 8 else b""
    if not data or len(data) < size_bytes:
        raise EOFError
    return msgspec.msgpack.decode(data)


def compile_task(message: Any) -> CompiledProgram:
    """Compile what a message asks for, from exactly the text that was keyed."""
    reference, fields, arch, modules = message
    sources = Sources(tuple((name, digest) for name, digest in modules))
    load_exactly(sources)
    family = load_family(reference)
    payload = family.payload.from_fields(dict(fields))
    definition = family.define(payload, target(arch))
    return compile_definition(definition, target(arch), sources)


def compile_definition(definition: Definition, target: Target, sources: Sources) -> CompiledProgram:
    """Hand a definition to the compiler of its dialect, imported at the first program that needs it."""
    from planfreeze.compilers.assignments import keyed_text

    text = keyed_text(sources)
    if isinstance(definition.source, RecordedSource):
        return load_recorded_compiler(definition.source.dialect)(definition.source, target, text)
    if isinstance(definition.source, TritonSource):
        from planfreeze.compilers import triton

        return triton.compile_program(definition.source, definition.arguments, target, text)
    from planfreeze.compilers import cute

    return cute.compile_program(definition.source, definition.arguments, target, text)


def load_recorded_compiler(dialect: str) -> Callable[[RecordedSource, Target, "KeyedText"], CompiledProgram]:
    """Import what compiles recorded programs of a dialect."""
    module = import_module(f"planfreeze.compilers.recorded_{dialect}")
    compile_recorded: Callable[[RecordedSource, Target, KeyedText], CompiledProgram] = module.compile_program
    return compile_recorded


def main() -> None:
    """Serve tasks until the parent closes the stream."""
    started = dict(os.environ)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tasks = os.fdopen(os.dup(0), "rb")
    outcomes = os.fdopen(os.dup(1), "wb")
    # Kernels and compilers may print and read; the protocol's streams are not theirs.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    while True:
        try:
            message = receive(tasks)
        except EOFError:
            return
        try:
            compiled = compile_task(message)
            outcome: list[object] = ["compiled", compiled.cubin, compiled.launch.to_fields(), compiled.companions]
        except errors.PlanfreezeError as error:
            outcome = ["failed", str(error)]
        except Exception:  # noqa: BLE001 - a compiler may raise anything; the parent reports it by program
            outcome = ["failed", traceback.format_exc()]
        changed = next(find_changed(os.environ, started), None)
        if changed is not None and outcome[0] == "compiled":
            outcome = ["failed", str(errors.KnobChanged(message[0], *changed))]
        send(outcomes, outcome)
        if changed is not None:
            start_again(tasks, outcomes, started)


def start_again(tasks: IO[bytes], outcomes: IO[bytes], environment: dict[str, str]) -> None:
    """Replace this process, which a module has changed, by a fresh one with the same streams and number."""
    os.dup2(tasks.fileno(), 0)
    os.dup2(outcomes.fileno(), 1)
    os.execve(sys.executable, COMMAND, environment)


if __name__ == "__main__":
    main()
