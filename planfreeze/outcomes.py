"""Outcomes: one program of a build, found in the store or compiled and published."""

import sys
import time
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from planfreeze import errors
from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import PutResult, Store
from planfreeze.compilers import CompiledProgram
from planfreeze.inspection import inspect_cubin
from planfreeze.key import COMPILE_ENVIRONMENT, dialect_of, spell_labels
from planfreeze.keyed import KeyedProgram, UnkeyedProgram
from planfreeze.notes import Note
from planfreeze.record import ProgramRecord
from planfreeze.workers import Task, Worker

__all__ = ["Outcome", "Place", "compile_program", "find_stored"]


class Place(Struct, frozen=True):
    """Where a program is compiled: a build, by a token of its own, and the slot of that build, counted from 0."""

    build: str
    slot: int


class Outcome(Struct, frozen=True, kw_only=True):
    """What became of one program: its record, or the reason there is none.

    Parameters
    ----------
    program : KeyedProgram or UnkeyedProgram
        The program; without a key when its text cannot be read.
    status : str
        "waiting" comes before another outcome of the same program: another builder is at work on it.
    seconds : float
        Time the compile took, or the wait so far.
    record_digest : str
        Digest of the record; empty where there is none.
    size_bytes : int
        Size of the cubin.
    reason : str
        Why it failed, or who is waited for.
    earlier : str
        How its first compile process ended, where a signal ended that and it was compiled again.
    """

    program: KeyedProgram | UnkeyedProgram
    status: Literal["compiled", "reused", "failed", "waiting"]
    seconds: float = 0.0
    record: ProgramRecord | None = None
    record_digest: str = ""
    size_bytes: int = 0
    reason: str = ""
    earlier: str = ""


def find_stored(program: KeyedProgram, store: Store) -> Outcome | None:
    """Return the outcome of a program whose record and cubin are whole in the store.

    Anything else counts as missing: it is compiled again, and publishing it puts the damaged entry aside. A whole
    record that is none of this program is put aside here, since the store cannot tell.
    """
    try:
        encoded = store.get_record(program.key.digest)
        record = ProgramRecord.decode(encoded)
        if (record.arch, record.payload) != (program.target.arch, program.payload.encode()):
            raise errors.DamagedRecord("it is another program's")
        cubin = store.get_blob(record.blob)
        for _, digest in record.companions:
            store.get_blob(digest)
        inspect_cubin(program.name, cubin, program.definition, record.launch, program.target)
    except (errors.MissingEntry, errors.DamagedEntry):
        return None
    except (errors.DamagedRecord, errors.InvalidCubin, errors.UnexpectedCubin, errors.WrongArch) as error:
        store.quarantine("record", program.key.digest, str(error))
        return None
    return Outcome(
        program=program,
        status="reused",
        record=record,
        record_digest=digest_of(encoded),
        size_bytes=len(cubin),
    )


def compile_program(program: KeyedProgram, store: Store, worker: Worker, place: Place) -> Outcome:
    """Compile one program and publish it: the cubin and its companions first, the record last."""
    task = Task(program.family.reference, program.payload, program.target, program.sources)
    started, started_s = time.monotonic(), time.time()
    try:
        compiled = worker.compile(task)
        record = make_record(program, compiled)
    except (errors.CompileFailed, errors.InvalidCubin, errors.UnexpectedCubin, errors.WrongArch) as error:
        return Outcome(program=program, status="failed", seconds=time.monotonic() - started, reason=str(error))
    seconds = time.monotonic() - started
    published = publish_program(program, compiled, record, store)
    if published.outcome == "different":
        reason = f"record {published.offered} differs from {published.digest}, stored for the same inputs"
        return Outcome(program=program, status="failed", seconds=seconds, reason=f"not reproducible: {reason}")
    note = describe_compile(program, worker, compiled.log, started_s, seconds)
    store.put_note(program.key.digest, replace(note, build=place.build, slot=place.slot).encode())
    return Outcome(
        program=program,
        status="compiled",
        seconds=seconds,
        record=record,
        record_digest=published.digest,
        size_bytes=len(compiled.cubin),
    )


def publish_program(program: KeyedProgram, compiled: CompiledProgram, record: ProgramRecord, store: Store) -> PutResult:
    """Publish the cubin and its companions, then the record.

    Raises
    ------
    StoreUnusable
        The store cannot be written; the error names the program and its key.
    """
    try:
        store.put_blob(compiled.cubin)
        for _, content in compiled.companions:
            store.put_blob(content)
        return store.put_record(program.key.digest, record.encode())
    except errors.StoreUnusable as error:
        reason = f"{program.name} with key {program.key.digest} is not stored: {error.reason}"
        raise errors.StoreUnusable(error.store, reason, error.needed_bytes) from error


def make_record(program: KeyedProgram, compiled: CompiledProgram) -> ProgramRecord:
    """Make the record of a compiled program from its definition and its own bytes."""
    kernel = inspect_cubin(program.name, compiled.cubin, program.definition, compiled.launch, program.target)
    return ProgramRecord(
        family=program.family.reference,
        arch=program.target.arch,
        blob=digest_of(compiled.cubin),
        symbol=kernel.symbol,
        payload=program.payload.encode(),
        launch=compiled.launch,
        parameter_bytes=kernel.parameter_sizes,
        registers=kernel.registers,
        stack_bytes=kernel.stack_bytes,
        static_shared_bytes=kernel.shared_bytes,
        companions=tuple((name, digest_of(content)) for name, content in compiled.companions),
    )


def describe_compile(program: KeyedProgram, worker: Worker, log: str, started_s: float, seconds: float) -> Note:
    """Return where a program came from, for people."""
    labels = spell_labels(program.key)
    dialect = dialect_of(program.definition)
    return Note(
        program=program.name,
        arch=program.target.arch,
        dialect=dialect,
        environment=COMPILE_ENVIRONMENT[dialect],
        toolchain=labels["toolchain"],
        labels=labels,
        started_s=round(started_s, 3),
        seconds=round(seconds, 3),
        worker=worker.pid,
        python=sys.version.split()[0],
        log=log,
    )
