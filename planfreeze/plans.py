"""Plans: the payloads of a model, of families or of a recorded run on a target."""

import hashlib
from collections.abc import Sequence
from importlib import import_module
from pathlib import PurePath
from typing import TYPE_CHECKING

from msgspec import Struct

from planfreeze import errors
from planfreeze.budgets import Budget
from planfreeze.choices import Choice
from planfreeze.family import Family, family_of
from planfreeze.models import Model, PlanOptions
from planfreeze.payload import Payload
from planfreeze.plan_names import FAMILY_OPTION, build_command, plan_name
from planfreeze.target import Target

if TYPE_CHECKING:
    from planfreeze.declared import DeclaredFamily

__all__ = [
    "Plan",
    "make_plan",
    "plan_families",
]

MAX_JOINED = 120


class Plan(Struct, frozen=True, kw_only=True):
    """A target and the payloads that a model asks for at its capacities, or that a recorded run used.

    Parameters
    ----------
    model : str
        Name of the model or recording.
    tp : int
        Ranks the model is sharded over; 0 for programs that are no model's.
    options : tuple of str
        Arguments of the command line that differ from its defaults, such as ``("--capacity", "8,64")``.
    choices : tuple of Choice
        What autotuners chose, for programs that a run was recorded with.
    budgets : tuple of Budget
        What the programs may take of a GPU; no part of the frozen plan.
    """

    model: str
    tp: int
    target: Target
    payloads: tuple[Payload, ...]
    options: tuple[str, ...] = ()
    choices: tuple[Choice, ...] = ()
    budgets: tuple[Budget, ...] = ()

    @property
    def name(self) -> str:
        """Name of the reference in a store: ``ds41-tp4-sm_90a``."""
        return plan_name(self.model, self.tp, self.target.arch)

    @property
    def build_command(self) -> str:
        """The command that builds this plan."""
        return build_command(self.model, self.tp, self.target.arch, self.options)

    @property
    def programs(self) -> tuple[tuple[Family, Payload], ...]:
        """Family and payload of every program."""
        return tuple((family_of(payload), payload) for payload in self.payloads)

    def advice(self) -> tuple[str, ...]:
        """Return what would make the plan smaller."""
        from planfreeze.declared import DeclaredFamily

        families = {family.name: family for family, _ in self.programs}.values()
        declared = (family for family in families if isinstance(family, DeclaredFamily))
        return tuple(f"{family.name}: {advice}" for family in declared for advice in family.advice())


def make_plan(model: Model, *, tp: int, target: Target, options: PlanOptions, source: str | None = None) -> Plan:
    """List every program a model can ask for, from geometry alone.

    Parameters
    ----------
    source : str, optional
        What the model was loaded from, if that is not its name; of a path the plan keeps the last part.

    Raises
    ------
    InvalidModel
        The model's enumerator cannot be imported, or lists something else than payloads.
    InvalidGeometry
        The model cannot be sharded ``tp`` ways.
    EmptyPlan
        The enumerator lists no program.
    """
    module, _, attribute = model.programs.partition(":")
    try:
        enumerate_programs = getattr(import_module(module), attribute)
    except Exception as error:  # a user's module may raise anything
        raise errors.InvalidModel(model.name, f"programs = {model.programs!r} cannot be imported: {error}") from error
    try:
        payloads = tuple(dict.fromkeys(enumerate_programs(model, tp=tp, target=target, options=options)))
    except errors.PlanfreezeError:
        raise
    except Exception as error:  # a user's function may raise anything
        raise errors.InvalidModel(model.name, f"programs = {model.programs!r} raised {error!r}") from error
    if not all(isinstance(payload, Payload) for payload in payloads):
        raise errors.InvalidModel(model.name, f"programs = {model.programs!r} lists something that is no payload")
    stated = options.to_arguments()
    if source is not None and source != model.name:
        stated = ("--model", PurePath(source).name, *stated)
    plan = Plan(model=model.name, tp=tp, target=target, payloads=payloads, options=stated, budgets=model.budgets)
    if not payloads:
        raise errors.EmptyPlan(plan.name)
    return plan


def plan_families(families: Sequence["DeclaredFamily"], names: Sequence[str], *, target: Target) -> Plan:
    """List every variant of declared families.

    Parameters
    ----------
    names : sequence of str
        What the families are called on the command line, for the command that builds the plan again.

    Raises
    ------
    FamilyTooLarge
        A family has more variants than are compiled ahead, or no bound.
    """
    payloads = tuple(dict.fromkeys(payload for family in families for payload in family.payloads()))
    joined = "-and-".join(dict.fromkeys(family.name for family in families))
    if len(joined) > MAX_JOINED:  # a store's names are limited; the digest keeps two long lists apart
        joined = f"{families[0].name}-and-{len(families) - 1}-more-{hashlib.sha256(joined.encode()).hexdigest()[:8]}"
    options = (FAMILY_OPTION, ",".join(names))
    return Plan(model=joined, tp=1, target=target, payloads=payloads, options=options)
