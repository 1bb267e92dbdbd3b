"""Frozen plans over made-up programs."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pytest

from planfreeze.cache.digest import digest_of
from planfreeze.cache.store import Store
from planfreeze.family import LaunchInfo
from planfreeze.frozen_plans import FrozenPlan, PlanEntry
from planfreeze.record import ProgramRecord


@dataclass(frozen=True)
class Stock:
    """Frozen plans over made-up programs: everything a store and a pack look at, and nothing a device would run."""

    def record(self, text: str, companions: tuple[str, ...] = ()) -> tuple[ProgramRecord, tuple[bytes, ...]]:
        """A record with its blobs, the cubin first, all made from text."""
        blobs = tuple(f"{part} ".encode() * 40 for part in (f"cubin of {text}", *companions))
        record = ProgramRecord(
            family="stock:family",
            arch="sm_90a",
            blob=digest_of(blobs[0]),
            symbol="kernel",
            payload=text.encode(),
            launch=LaunchInfo(block=(32, 1, 1)),
            parameter_bytes=(8,),
            registers=16,
            stack_bytes=0,
            static_shared_bytes=0,
            companions=tuple((name, digest_of(blob)) for name, blob in zip(companions, blobs[1:], strict=True)),
        )
        return record, blobs

    def fill(self, store: Store, texts: Sequence[str], companions: tuple[str, ...] = ()) -> None:
        """Publish the programs of texts."""
        for text in texts:
            record, blobs = self.record(text, companions)
            for blob in blobs:
                store.put_blob(blob)
            store.put_record(digest_of(text.encode()), record.encode())
            store.put_note(digest_of(text.encode()), b"note")

    def plan(self, model: str, texts: Sequence[str], companions: tuple[str, ...] = ()) -> FrozenPlan:
        """The frozen plan over the programs of texts."""
        entries = []
        for text in texts:
            record, _ = self.record(text, companions)
            entries.append(
                PlanEntry(
                    family="stock:family",
                    fields=(("text", text),),
                    key=digest_of(text.encode()),
                    record=digest_of(record.encode()),
                    blob=record.blob,
                )
            )
        return FrozenPlan(model=model, tp=1, arch="sm_90a", families=(), entries=tuple(entries))

    def publish(self, store: Store, model: str, texts: Sequence[str], companions: tuple[str, ...] = ()) -> FrozenPlan:
        """Publish programs and a plan over them under its name."""
        self.fill(store, texts, companions)
        plan = self.plan(model, texts, companions)
        store.set_ref(plan.name, store.put_plan(plan.encode()))
        return plan

    def age(self, store: Store, days: float, names: Iterable[tuple[str, str]] | None = None) -> None:
        """Make entries, or all of them, look as if they had been published days ago."""
        kinds = ("plan", "record", "note", "blob")
        every = [(kind, entry.name) for kind in kinds for entry in store.entries(kind)]  # type: ignore[arg-type]
        for kind, name in every if names is None else names:
            before = time.time() - days * 86400
            os.utime(store.layout.entry(kind, name), (before, before))  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def stock() -> Stock:
    return Stock()
