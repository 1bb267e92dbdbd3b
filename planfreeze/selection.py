"""Selection: the programs of plans and stores that a person names."""

import contextlib
import re
from collections.abc import Sequence

from planfreeze import errors
from planfreeze.cache.readable import ReadableStore
from planfreeze.constants import spell_field
from planfreeze.facts import ProgramFacts, planned_facts, stored_facts
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.payload import Field
from planfreeze.spellings import nearest_spelling

__all__ = ["plan_programs", "select_programs", "unplanned_programs"]

# Eight digits tell a few thousand programs apart; a shorter text may be the name of a family.
DIGEST_START = re.compile(r"[0-9a-f]{8,64}")
MOST_NEAR = 5


def plan_programs(plans: Sequence[FrozenPlan], store: ReadableStore) -> tuple[ProgramFacts, ...]:
    """Return the facts of all programs of plans, each once.

    Raises
    ------
    MissingPrograms, DamagedPrograms
        As :func:`planfreeze.facts.planned_facts`.
    """
    found = {facts.key: facts for plan in plans for facts in planned_facts(plan, store)}
    return tuple(found.values())


def unplanned_programs(plans: Sequence[FrozenPlan], store: ReadableStore) -> tuple[ProgramFacts, ...]:
    """Return the facts of the programs of a store that no plan holds; damaged ones are passed over.

    Reads every record that is not planned. A build that froze nothing leaves such programs, and one that was turned to
    another plan.
    """
    planned = {entry.key for plan in plans for entry in plan.entries}
    found = []
    for entry in store.entries("record"):
        if entry.name not in planned:
            with contextlib.suppress(errors.MissingEntry, errors.DamagedEntry, errors.DamagedRecord):
                found.append(stored_facts(entry.name, store))
    return tuple(sorted(found, key=lambda facts: (facts.record.arch, facts.name, facts.key)))


def select_programs(
    asked: str, stated: Sequence[str], plans: Sequence[FrozenPlan], store: ReadableStore, *, is_planned: bool = False
) -> tuple[ProgramFacts, ...]:
    """Return the programs that a text names, those of plans if there are any.

    Parameters
    ----------
    asked : str
        The key, the digest of the payload or of the cubin, or how one of these begins; the family; or the whole
        program as reports write it.
    is_planned : bool
        Look at the programs of plans alone.
    stated : sequence of str
        NAME=VALUE texts that a program's fields have to agree with.

    Raises
    ------
    ProgramMissing
        There is none; names those that are near.
    InvalidPayload
        A text is not NAME=VALUE.
    MissingPrograms, DamagedPrograms
        A plan lacks programs.
    """
    wanted = tuple(parse_field(asked, text) for text in stated)
    looked_at: tuple[ProgramFacts, ...] = ()
    for read in (plan_programs, unplanned_programs)[: 1 if is_planned else 2]:
        programs = read(plans, store)
        if found := tuple(facts for facts in programs if is_named(facts, asked) and has_fields(facts, wanted)):
            return found
        looked_at += programs
    raise errors.ProgramMissing(
        " ".join((asked, *stated)), str(store.path), len(looked_at), find_near(asked, looked_at)
    )


def parse_field(family: str, text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise errors.InvalidPayload(family, f"{text!r} is not NAME=VALUE")
    return name, value


def is_named(facts: ProgramFacts, asked: str) -> bool:
    """Tell whether a text names a program, whatever else it names."""
    if DIGEST_START.fullmatch(asked):
        return any(digest.startswith(asked) for digest in (facts.key, facts.payload_digest, facts.record.blob))
    return asked in (facts.family_name, facts.record.family, facts.name)


def has_fields(facts: ProgramFacts, wanted: Sequence[tuple[str, str]]) -> bool:
    """Tell whether a program's fields are as stated."""
    fields = dict(facts.fields)
    return all(name in fields and is_spelled(fields[name], value) for name, value in wanted)


def is_spelled(field: Field, text: str) -> bool:
    spelled = spell_field(field)
    return text == spelled or (isinstance(field, bool) and text.lower() == spelled.lower())


def find_near(asked: str, programs: Sequence[ProgramFacts]) -> tuple[str, ...]:
    """Return programs of the family with the nearest name."""
    names = dict.fromkeys(facts.family_name for facts in programs)
    near = nearest_spelling(asked.partition("(")[0].rpartition(":")[2], names)
    return tuple(dict.fromkeys(facts.name for facts in programs if facts.family_name == near))[:MOST_NEAR]
