"""Facts of one program: what it is, where it came from, and what it takes of an SM. Needs no family and no compiler."""

from collections.abc import Sequence

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache.digest import digest_of
from planfreeze.cache.readable import ReadableStore
from planfreeze.constants import spell_field
from planfreeze.decoding import decode_msgpack
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.holdings import prove_plan
from planfreeze.inspection import find_tools
from planfreeze.notes import Note, Spills, find_spills, read_note
from planfreeze.occupancy import count_blocks
from planfreeze.payload import Field
from planfreeze.record import ProgramRecord
from planfreeze.target import target

__all__ = ["ProgramFacts", "planned_facts", "stored_facts"]


class ProgramFacts(Struct, frozen=True, kw_only=True):
    """What is known of a program that was built.

    Parameters
    ----------
    key, record_digest : str
        Key of its inputs, and sha256 of its record.
    record : ProgramRecord
        What the store keeps: family, architecture, launch facts, resources read from the cubin.
    family_name : str
        The family as payloads name it.
    fields : tuple of (str, Field)
        Fields of the payload; of a program outside of plans those that have no default value.
    size_bytes : int
        Size of the cubin.
    tools : str, optional
        CUDA tools that made the cubin, such as ``13.4.59``; None where it does not say.
    note : Note
        Provenance; empty for a program of a pack.
    """

    key: str
    record_digest: str
    record: ProgramRecord
    family_name: str
    fields: tuple[tuple[str, Field], ...]
    size_bytes: int
    tools: str | None
    note: Note

    @property
    def variant(self) -> str:
        """The payload's fields as people read them."""
        return ", ".join(f"{name}={spell_field(value)}" for name, value in self.fields)

    @property
    def name(self) -> str:
        """The program as people read it: ``topk_sum(hidden=5120, top_k=6)``."""
        return f"{self.family_name}({self.variant})"

    @property
    def payload_digest(self) -> str:
        """Digest of the payload, as ``planfreeze plan`` shows it."""
        return digest_of(self.record.payload)

    @property
    def threads(self) -> int | None:
        """Threads of one block; None where a compiler's own host code launches."""
        x, y, z = self.record.launch.block
        return x * y * z or None

    @property
    def reserved_shared_bytes(self) -> int:
        """Shared memory of one block that the system keeps, of a program that uses any."""
        return min(self.record.static_shared_bytes, target(self.record.arch).reserved_shared_bytes)

    @property
    def static_shared_bytes(self) -> int:
        """Static shared memory of one block, without what the system keeps."""
        return self.record.static_shared_bytes - self.reserved_shared_bytes

    @property
    def dynamic_shared_bytes(self) -> int:
        """Dynamic shared memory of one block."""
        return self.record.launch.shared_bytes

    @property
    def resident_ctas(self) -> int | None:
        """Blocks that one SM of the target keeps resident at most; None where the block is not known."""
        if self.threads is None:
            return None
        return count_blocks(
            registers=self.record.registers,
            shared_bytes=self.record.static_shared_bytes + self.record.launch.shared_bytes,
            threads=self.threads,
            target=target(self.record.arch),
        )

    @property
    def occupancy(self) -> float | None:
        """Share of an SM's warps that those blocks are; None where the block is not known."""
        if self.threads is None or self.resident_ctas is None:
            return None
        return self.resident_ctas * -(-self.threads // 32) / target(self.record.arch).max_warps

    @property
    def spills(self) -> Spills | None:
        """What it spills by its assembler's log; None where no log says so. Without local memory there is nothing."""
        return find_spills(self.note.log) or (None if self.record.stack_bytes else Spills(0, 0))


def planned_facts(plan: FrozenPlan, store: ReadableStore) -> tuple[ProgramFacts, ...]:
    """Return the facts of every program of a frozen plan, in planned order.

    Raises
    ------
    MissingPrograms, DamagedPrograms
        Lists every program that is not there or not what was built.
    """
    prove_plan(plan, store)
    return tuple(stored_facts(entry.key, store, fields=entry.fields) for entry in plan.entries)


def stored_facts(key: str, store: ReadableStore, *, fields: Sequence[tuple[str, Field]] | None = None) -> ProgramFacts:
    """Return the facts of a program by its key.

    Parameters
    ----------
    fields : sequence of (str, Field), optional
        All fields of its payload, as a plan has them.

    Raises
    ------
    MissingEntry, DamagedEntry, DamagedRecord
        Its record or cubin is not there, or not what was built.
    """
    encoded = store.get_record(key)
    record = ProgramRecord.decode(encoded)
    cubin = store.get_blob(record.blob)
    family_name, stated = read_payload(record)
    return ProgramFacts(
        key=key,
        record_digest=digest_of(encoded),
        record=record,
        family_name=family_name,
        fields=stated if fields is None else tuple(fields),
        size_bytes=len(cubin),
        tools=find_tools(cubin),
        note=read_note(key, store),
    )


def read_payload(record: ProgramRecord) -> tuple[str, tuple[tuple[str, Field], ...]]:
    """Return the family's name and the fields that a record's payload states.

    Raises
    ------
    DamagedRecord
        It holds no payload.
    """
    try:
        family_name, stated = decode_msgpack(record.payload)
        return str(family_name), tuple((str(name), value) for name, value in stated)
    except (ValueError, TypeError) as error:
        raise errors.DamagedRecord(f"its payload cannot be read: {error}") from error
