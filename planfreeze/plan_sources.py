"""Where a session's plans come from: a store or a pack, and a build where one is allowed."""

from pathlib import Path

from msgspec import Struct

from planfreeze import errors
from planfreeze.cache.readable import ReadableStore, open_readable
from planfreeze.frozen_plans import FrozenPlan
from planfreeze.processes import build_in_child
from planfreeze.resolve import PlanReference, find_plan

__all__ = ["PlanSource"]


class PlanSource(Struct, frozen=True, kw_only=True):
    """A store or pack, and how far it is trusted.

    Parameters
    ----------
    store : Path
        The store, or the file of a pack.
    is_builder : bool
        Build a catalog model's plan that is not there, in a child process.
    is_trusted : bool
        Take plans without a root digest whoever owns it.
    trusted_keys : tuple of Path
        Keys whose signature a pack has to bear; none: it need not bear any.
    """

    store: Path
    is_builder: bool
    is_trusted: bool
    trusted_keys: tuple[Path, ...]

    def find(self, reference: PlanReference) -> tuple[FrozenPlan, ReadableStore]:
        """Return a plan and what it is read from.

        Raises
        ------
        PlanMissing, StoreMissing, UntrustedStore, EmptyPlan, DamagedEntry, DamagedPlan
            As :func:`planfreeze.resolve.find_plan`.
        """
        try:
            return self._read(reference)
        except (errors.PlanMissing, errors.StoreMissing):
            if not self.is_builder or reference.root is not None:
                raise
        build_in_child(reference, self.store, is_trusted=self.is_trusted)
        return self._read(reference)

    def _read(self, reference: PlanReference) -> tuple[FrozenPlan, ReadableStore]:
        store = open_readable(self.store, is_trusted=self.is_trusted, trusted_keys=self.trusted_keys)
        return find_plan(store, reference), store
