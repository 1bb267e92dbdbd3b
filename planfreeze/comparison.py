"""Comparison of stores, packs and frozen plans: what became of each program, and why its key is another one."""

import os
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from planfreeze import errors
from planfreeze.cache.readable import ReadableStore
from planfreeze.disassembly import count_opcodes, disassemble, find_disassemblers
from planfreeze.facts import ProgramFacts, planned_facts
from planfreeze.frozen_plans import FrozenPlan

__all__ = ["STATES", "Comparison", "ProgramChange", "Side", "compare"]

State = Literal["same", "rekeyed", "changed", "added", "removed"]
STATES: tuple[State, ...] = ("same", "rekeyed", "changed", "added", "removed")
Value = int | str | None
UNKNOWN = "unknown"
SHOWN_DIGITS = 12


class Side(Struct, frozen=True, kw_only=True):
    """One of two that are compared: a store or pack, and the plans of it that are looked at."""

    store: ReadableStore
    plans: tuple[FrozenPlan, ...]


class Placed(Struct, frozen=True, kw_only=True):
    """A program with the first plan that holds it."""

    facts: ProgramFacts
    plan: FrozenPlan

    @property
    def identity(self) -> tuple[str, str, str]:
        """What makes it the same program on both sides, whatever its inputs and bytes are."""
        return self.facts.record.arch, self.facts.family_name, self.facts.payload_digest

    @property
    def sources(self) -> dict[str, str]:
        """The modules that the programs of its family were compiled from, with the digests of their text."""
        families = (family for family in self.plan.families if family.reference == self.facts.record.family)
        return {module: digest for family in families for module, digest in family.sources.modules}


class ProgramChange(Struct, frozen=True, kw_only=True):
    """What became of one program.

    Parameters
    ----------
    state : str
        "same": the same inputs and bytes; "rekeyed": the same bytes and launch facts of other inputs; "changed": other
        bytes or launch facts; "added", "removed": on one side alone.
    before, after : ProgramFacts, optional
        The program on either side.
    reasons : tuple of (str, str)
        Parts of the key that differ, and how; ``unknown`` where no note tells.
    measures : mapping of str to (before, after)
        Resources and launch facts that differ.
    opcodes : mapping of str to (before, after), optional
        Numbers of instructions that differ; None where nothing was disassembled.
    """

    state: State
    before: ProgramFacts | None
    after: ProgramFacts | None
    reasons: tuple[tuple[str, str], ...] = ()
    measures: Mapping[str, tuple[Value, Value]]
    opcodes: Mapping[str, tuple[int, int]] | None = None

    @property
    def facts(self) -> ProgramFacts:
        """The program as it is afterwards, or was if it is gone."""
        facts = self.after or self.before
        assert facts is not None
        return facts


class Comparison(Struct, frozen=True, kw_only=True):
    """What became of every program, in the order of the first side's plans; those that were added come last.

    Parameters
    ----------
    is_disassembled : bool
        Whether there was a disassembler to count instructions with.
    """

    before: Side
    after: Side
    programs: tuple[ProgramChange, ...]
    is_disassembled: bool

    def count(self, state: State) -> int:
        """Return how many programs have a state."""
        return sum(change.state == state for change in self.programs)

    @property
    def is_empty(self) -> bool:
        """Whether both sides have the same programs of the same inputs."""
        return self.count("same") == len(self.programs)

    @property
    def causes(self) -> tuple[str, ...]:
        """Parts of keys that differ between programs on both sides, each once."""
        return tuple(dict.fromkeys(label for change in self.programs for label, _ in change.reasons))


def compare(before: Side, after: Side) -> Comparison:
    """Compare the programs of two sides.

    Raises
    ------
    MissingPrograms, DamagedPrograms
        A side lacks programs of a plan.

    Notes
    -----
    Programs are told apart by architecture, family and payload. Where a side has several of one identity, of other
    inputs, those with one key belong together, then those of plans with one name.
    """
    pairs = pair_all(place_programs(before), place_programs(after))
    changes = [describe_pair(old, new) for old, new in pairs]
    is_disassembled = bool(find_disassemblers())
    if is_disassembled:
        # Each waits for a process of its own.
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as threads:
            changes = list(threads.map(lambda change: count_instructions(change, before.store, after.store), changes))
    return Comparison(before=before, after=after, programs=tuple(changes), is_disassembled=is_disassembled)


def place_programs(side: Side) -> tuple[Placed, ...]:
    """Return the programs of a side, each key once."""
    found: dict[str, Placed] = {}
    for plan in side.plans:
        for facts in planned_facts(plan, side.store):
            found.setdefault(facts.key, Placed(facts=facts, plan=plan))
    return tuple(found.values())


def pair_all(before: Iterable[Placed], after: Iterable[Placed]) -> list[tuple[Placed | None, Placed | None]]:
    """Put the programs of two sides together, one or none of each."""
    sides: dict[tuple[str, str, str], tuple[list[Placed], list[Placed]]] = {}
    for number, programs in enumerate((before, after)):
        for program in programs:
            sides.setdefault(program.identity, ([], []))[number].append(program)
    return [pair for old, new in sides.values() for pair in pair_variants(old, new)]


def pair_variants(old: list[Placed], new: list[Placed]) -> list[tuple[Placed | None, Placed | None]]:
    """Put programs of one identity together: of one key first, then of one plan, then as they come."""
    pairs: list[tuple[Placed | None, Placed | None]] = []
    for is_pair in (
        lambda a, b: a.facts.key == b.facts.key,
        lambda a, b: a.plan.name == b.plan.name,
        lambda a, b: True,
    ):
        for program in tuple(old):
            partner = next((other for other in new if is_pair(program, other)), None)
            if partner is not None:
                pairs.append((program, partner))
                old.remove(program)
                new.remove(partner)
    return [*pairs, *((program, None) for program in old), *((None, program) for program in new)]


def describe_pair(old: Placed | None, new: Placed | None) -> ProgramChange:
    """Say what became of a program."""
    if old is None or new is None:
        state: State = "added" if old is None else "removed"
        was_there, is_there = (None if placed is None else placed.facts for placed in (old, new))
        return ProgramChange(state=state, before=was_there, after=is_there, measures={})
    before, after = old.facts, new.facts
    is_rekeyed = before.key != after.key
    state = "changed" if before.record_digest != after.record_digest else "rekeyed" if is_rekeyed else "same"
    was, is_now = measure(before), measure(after)
    return ProgramChange(
        state=state,
        before=before,
        after=after,
        reasons=find_reasons(old, new) if is_rekeyed else (),
        measures={name: (was.get(name), is_now.get(name)) for name in was | is_now if was.get(name) != is_now.get(name)}
        if state == "changed"
        else {},
    )


def measure(facts: ProgramFacts) -> dict[str, Value]:
    """Return what is compared of two programs besides their machine code, by name."""
    record, spills = facts.record, facts.spills
    launch = {name: value if type(value) is int else str(value) for name, value in record.launch.to_fields()}
    return {
        "registers": record.registers,
        "stack_bytes": record.stack_bytes,
        "spill_store_bytes": None if spills is None else spills.store_bytes,
        "spill_load_bytes": None if spills is None else spills.load_bytes,
        "static_shared_bytes": facts.static_shared_bytes,
        "dynamic_shared_bytes": launch.pop("shared_bytes"),
        "resident_ctas": facts.resident_ctas,
        "bytes": facts.size_bytes,
        "parameters": len(record.parameter_bytes),
        **launch,
        **{f"companion {name}": digest[:SHOWN_DIGITS] for name, digest in record.companions},
    }


def find_reasons(old: Placed, new: Placed) -> tuple[tuple[str, str], ...]:
    """Return each part of the key that differs, and how; without notes, what plans and cubins tell of it."""
    was, is_now = old.facts.note.labels, new.facts.note.labels
    modules = spell_modules(old.sources, new.sources)
    if was and is_now:
        labels = [label for label in dict.fromkeys((*was, *is_now)) if was.get(label) != is_now.get(label)]
        return tuple(
            (label, modules if label == "sources" and modules else spell_change(was.get(label), is_now.get(label)))
            for label in labels
        )
    found = [("sources", modules)] if modules else []
    if old.facts.tools != new.facts.tools:
        tools = f"CUDA tools {old.facts.tools or UNKNOWN} -> {new.facts.tools or UNKNOWN}"
        found.append(("toolchain", tools))
    return tuple(found) or ((UNKNOWN, "a side has no notes of the parts of its keys: a pack, or an older build"),)


def spell_modules(was: Mapping[str, str], is_now: Mapping[str, str]) -> str:
    """Return the modules whose text differs."""
    differing = [name for name in sorted({*was, *is_now}) if was.get(name) != is_now.get(name)]
    marks = {(True, False): " (gone)", (False, True): " (new)"}
    return ", ".join(f"{name}{marks.get((name in was, name in is_now), '')}" for name in differing)


def spell_change(was: str | None, is_now: str | None) -> str:
    """Return two texts of a label, long digests cut short."""
    return f"{shorten(was)} -> {shorten(is_now)}"


def shorten(text: str | None) -> str:
    """Cut the words that are digests."""
    words = (text or "none").split(" ")
    return " ".join(word[:SHOWN_DIGITS] if len(word) == 64 else word for word in words)


def count_instructions(change: ProgramChange, before: ReadableStore, after: ReadableStore) -> ProgramChange:
    """Add the numbers of instructions that differ, where there is machine code of which they can."""
    if change.state != "changed" or change.before is None or change.after is None:
        return change
    if change.before.record.blob == change.after.record.blob:
        return replace(change, opcodes={})
    counts: Sequence[dict[str, int]]
    try:
        counts = [
            count_opcodes(disassemble(facts.name, store.get_blob(facts.record.blob)))
            for facts, store in ((change.before, before), (change.after, after))
        ]
    except errors.DisassemblyFailed:
        return change  # no opcodes are told
    was, is_now = counts
    names = sorted(name for name in was | is_now if was.get(name) != is_now.get(name))
    return replace(change, opcodes={name: (was.get(name, 0), is_now.get(name, 0)) for name in names})
