"""Feed the readers of records, plans and packs what nobody meant: python tools/fuzz_readers.py READER --inputs N.

Every input ends in a value or in an error of planfreeze; anything else stops the run and is written to a file, as does
an input that takes more than five seconds or more memory than the limit. atheris steers by coverage; it is installed
for this alone: pip install atheris. tests/test_fuzz_readers.py runs the same readers for a short time without it.
"""

import argparse
import hashlib
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import msgpack

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from planfreeze import errors
from planfreeze.cache.pack import Pack
from planfreeze.cache.pack_index import HEAD_BYTES, HEADER, KEYED, NAMED, PackEntry, PackIndex
from planfreeze.family import LaunchInfo
from planfreeze.frozen_plans import FrozenPlan, PlanEntry, PlanFamily
from planfreeze.record import ProgramRecord
from planfreeze.sources import Sources

TIMEOUT_S = 5
MEMORY_MB = 1024
MAX_INPUT_BYTES = 8192

RECORD = ProgramRecord(
    family="toys.families:add",
    arch="sm_90a",
    blob="ab" * 32,
    symbol="add_kernel",
    payload=b"\x92\xa8toys_add\x91\x92\xa5block@",
    launch=LaunchInfo(block=(128, 1, 1), cluster=(2, 1, 1), shared_bytes=1024, carveout_percent=100),
    parameter_bytes=(8, 8, 4),
    registers=32,
    stack_bytes=0,
    static_shared_bytes=1024,
    companions=(("launcher.so", "cd" * 32),),
)
PLAN = FrozenPlan(
    model="ds41",
    tp=4,
    arch="sm_90a",
    options=("--capacity", "8,64"),
    families=(PlanFamily(reference="toys.families:add", sources=Sources((("toys.families", "aa" * 32),))),),
    entries=(
        PlanEntry(
            family="toys.families:add",
            fields=(("block", 64), ("is_wide", True), ("tiles", (1, (2, "a")))),
            key="0" * 64,
            record="1" * 64,
            blob="2" * 64,
        ),
    ),
)


def make_pack() -> bytes:
    """Return a small pack with one entry of each kind."""

    def entry(data: bytes, key: str = "") -> PackEntry:
        digest = hashlib.sha256(data).hexdigest()
        return PackEntry(name=key or digest, digest=digest, size_bytes=len(data))

    plan, record, blob = PLAN.encode(), RECORD.encode(), b"cubin" * 9
    index = PackIndex(
        refs=((PLAN.name, PLAN.root),), plans=(entry(plan),), records=(entry(record, "0" * 64),), blobs=(entry(blob),)
    )
    return index.start + plan + record + blob


def reseal(data: bytes) -> bytes:
    """Give the bytes before a pack's entries a right seal, as far as its header says where they end."""
    if len(data) < HEAD_BYTES:
        return data
    _, _, _, refs_bytes, plans, records, blobs, signature_bytes = HEADER.unpack_from(data)
    end = HEAD_BYTES + refs_bytes + NAMED.size * (plans + blobs) + KEYED.size * records + signature_bytes
    seal = hashlib.sha256(data[: HEADER.size] + data[HEAD_BYTES:end]).digest()
    return data[: HEADER.size] + seal + data[HEAD_BYTES:]


def vary(value: object, chance: random.Random) -> object:
    """Return a value with one part replaced, doubled, left out or moved, where chance will have it."""
    if not isinstance(value, (tuple, list)) or not value or chance.random() < 0.1:
        return chance.choice(ODDITIES)
    parts = list(value)
    place = chance.randrange(len(parts))
    action = chance.randrange(12)
    if action == 0:
        del parts[place]
    elif action == 1:
        parts.insert(place, parts[chance.randrange(len(parts))])
    elif action == 2:
        chance.shuffle(parts)
    else:
        parts[place] = vary(parts[place], chance)
    return parts


def nest(depth: int) -> list[object]:
    """Return a list in a list and so on."""
    nested: list[object] = []
    for _ in range(depth):
        nested = [nested]
    return nested


ODDITIES = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64 - 1, -(2**63), 0.0, float("nan"), float("inf")),
    *("", "text", "0" * 64, "x" * 5000, "\0", "..", b"", b"bytes", [], [[]], {}, {"a": 1}, {1: [2]}),
    *(nest(15), nest(16), nest(17), nest(400), list(range(50)), msgpack.ExtType(5, b"e"), msgpack.Timestamp(1, 2)),
)


class VariedReader:
    """Reads bytes as they are, and where they end in an odd number, as the seed of a whole entry's variation."""

    def __init__(self, decode: Callable[[bytes], object], whole: bytes) -> None:
        self._decode = decode
        self._value = msgpack.unpackb(whole)

    def __call__(self, data: bytes) -> None:
        """Decode bytes, or the variation that they choose."""
        if data and data[-1] & 1:
            chance = random.Random(data)
            value = self._value
            for _ in range(chance.randint(1, 3)):
                value = vary(value, chance)
            try:
                data = msgpack.packb(value)
            except ValueError:  # too deep for msgpack to write
                return
        self._decode(data)


class PackReader:
    """Reads bytes as a pack through a file in memory: opens it and reads every entry it lists."""

    def __init__(self) -> None:
        self._handle = os.memfd_create("pack")
        self._path = Path(f"/proc/self/fd/{self._handle}")

    def __call__(self, data: bytes) -> None:
        """Read bytes; those that end in an odd number get a right seal first, to come past it."""
        data = reseal(data) if data and data[-1] & 1 else data
        os.ftruncate(self._handle, 0)
        os.pwrite(self._handle, data, 0)
        pack = Pack.open(self._path)
        for read in (pack.get_plan, pack.get_record, pack.get_blob):
            kind = read.__name__.removeprefix("get_")
            for entry in pack.entries(kind):  # type: ignore[arg-type]
                try:
                    read(entry.name)
                except errors.PlanfreezeError:
                    continue


def readers() -> dict[str, tuple[Callable[[bytes], object], bytes]]:
    """Return every reader by name, with bytes that it reads."""
    return {
        "record": (VariedReader(ProgramRecord.decode, RECORD.encode()), RECORD.encode()),
        "plan": (VariedReader(FrozenPlan.decode, PLAN.encode()), PLAN.encode()),
        "pack": (PackReader(), make_pack()),
    }


def check(read: Callable[[bytes], object], data: bytes) -> bool:
    """Read bytes; tell whether they were taken. Any error but planfreeze's own passes through."""
    try:
        read(data)
    except errors.PlanfreezeError as error:
        assert str(error)
        return False
    return True


def fuzz(name: str, arguments: list[str]) -> None:
    """Fuzz one reader in this process, which ends with it."""
    import atheris

    for module in ("cache.pack", "cache.pack_index", "decoding", "plans", "record"):
        for found in vars(sys.modules[f"planfreeze.{module}"]).values():
            if getattr(found, "__module__", "").startswith("planfreeze."):
                instrument(atheris, found)
    read, _ = readers()[name]
    atheris.Setup([sys.argv[0], *arguments], lambda data: check(read, data))  # type: ignore[arg-type,return-value]
    atheris.Fuzz()


def instrument(atheris: object, found: object) -> None:
    """Let atheris see which branches a function, or the functions of a class, take."""
    functions = [found] if callable(found) and hasattr(found, "__code__") else []
    if isinstance(found, type):
        functions = [getattr(part, "__func__", part) for part in vars(found).values()]
    for function in functions:
        if hasattr(function, "__code__"):
            atheris.instrument_func(function)  # type: ignore[attr-defined]


def run(name: str, inputs: int, seconds: int, artifacts: Path) -> Iterator[str]:
    """Fuzz a reader in a process of its own; yield what the fuzzer says of its end."""
    with tempfile.TemporaryDirectory() as corpus:
        Path(corpus, "seed").write_bytes(readers()[name][1])
        options = {
            "atheris_runs": inputs,
            "max_total_time": seconds,
            "rss_limit_mb": MEMORY_MB,
            "timeout": TIMEOUT_S,
            "max_len": MAX_INPUT_BYTES,
            "artifact_prefix": f"{artifacts}/{name}-",
            "print_final_stats": 1,
        }
        command = [sys.executable, __file__, name, "--inside", *(f"-{key}={value}" for key, value in options.items())]
        done = subprocess.run([*command, corpus], stderr=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            sys.stderr.write(done.stderr[-4000:])
            sys.exit(f"{name}: stopped with status {done.returncode}; the input is in {artifacts}")
        yield from (line for line in done.stderr.splitlines() if line.startswith(("stat::", "Done ", "#")))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", choices=["record", "plan", "pack"])
    parser.add_argument("--inputs", type=int, default=1_000_000)
    parser.add_argument("--seconds", type=int, default=900)
    parser.add_argument("--artifacts", type=Path, default=Path("fuzz"), help="folder for an input that fails")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    chosen, rest = parser.parse_known_args()
    if chosen.inside:
        fuzz(chosen.reader, rest)
    chosen.artifacts.mkdir(exist_ok=True)
    for line in list(run(chosen.reader, chosen.inputs, chosen.seconds, chosen.artifacts))[-8:]:
        sys.stdout.write(f"{chosen.reader}: {line}\n")


if __name__ == "__main__":
    main()
