"""What a plan is asked for besides its model, architecture and ranks; fixed when the plan is declared."""

from collections.abc import Iterable
from typing import Literal

from msgspec import Struct
from msgspec.structs import force_setattr

from planfreeze import errors
from planfreeze.models.model import ID_TYPES, MAX_COUNT, IdType, Model
from planfreeze.spellings import nearest_spelling

__all__ = ["ARMS", "Arm", "PlanOptions", "parse_options"]

Arm = Literal["inline", "expand", "native"]
ARMS: tuple[Arm, ...] = ("inline", "expand", "native")


class PlanOptions(Struct, frozen=True, kw_only=True):
    """Options of one plan.

    Parameters
    ----------
    inline_limit : int, optional
        Largest capacity whose grouped kernels read compressed scales inline, in tokens; None takes the one measured
        for the architecture. The caller reads the setting when it declares the plan; a setting changed later does
        not reach this plan.
    is_csf_inline : bool
        Whether experts with compressed scales may be prepared for inline reading at all.
    capacities : tuple of int, optional
        Token counts to plan for; None takes the model's.
    arms : tuple of str, optional
        Ways scales reach the kernels: ``inline`` (read compressed), ``expand`` (decoded before every call),
        ``native`` (never compressed). None takes what the weights ask for; naming all three takes every arm
        the weights and their geometry allow, while fewer have to be allowed one by one.
    id_types : tuple of str, optional
        Integer types of the routing ids; None takes the model's.

    Raises
    ------
    InvalidCapacity
        A capacity is not a whole number from 1 to 2^31 - 1, or there is none.
    InvalidInlineLimit
        The limit is not a whole number >= 0.
    UnknownArm, UnknownIdType
        A name is not one of the known ones, or there is none.

    Notes
    -----
    Capacities are kept ascending, arms and id types in their declared order, each once: options that ask for
    the same are equal.
    """

    inline_limit: int | None = None
    is_csf_inline: bool = True
    capacities: tuple[int, ...] | None = None
    arms: tuple[Arm, ...] | None = None
    id_types: tuple[IdType, ...] | None = None

    def __post_init__(self) -> None:
        if self.inline_limit is not None and (type(self.inline_limit) is not int or self.inline_limit < 0):
            raise errors.InvalidInlineLimit(self.inline_limit)
        if self.capacities is not None:
            force_setattr(self, "capacities", merge_capacities(self.capacities))
        if self.arms is not None:
            force_setattr(self, "arms", merge_arms(self.arms))
        if self.id_types is not None:
            force_setattr(self, "id_types", merge_id_types(self.id_types))

    def to_arguments(self) -> tuple[str, ...]:
        """Return what differs from the defaults as arguments of the command line."""
        lists = {"--capacity": self.capacities, "--arms": self.arms, "--ids": self.id_types}
        stated = {name: ",".join(map(str, values)) for name, values in lists.items() if values is not None}
        if self.inline_limit is not None:
            stated["--inline-limit"] = str(self.inline_limit)
        return tuple(part for pair in stated.items() for part in pair)

    def capacities_for(self, model: Model) -> tuple[int, ...]:
        """Return the capacities to plan for, ascending."""
        return model.capacities if self.capacities is None else self.capacities

    def id_types_for(self, model: Model) -> tuple[IdType, ...]:
        """Return the id types to plan for."""
        return model.id_types if self.id_types is None else self.id_types


def parse_options(
    *,
    inline_limit: int | None = None,
    is_csf_inline: bool = True,
    capacities: str | None = None,
    arms: str | None = None,
    id_types: str | None = None,
) -> PlanOptions:
    """Make options of comma-separated text, as the command line takes them; None means not given.

    Parameters
    ----------
    capacities : str, optional
        Such as ``8,64,1536``.
    arms : str, optional
        Such as ``inline,native``, or ``all``.
    id_types : str, optional
        Such as ``int32,int64``.

    Raises
    ------
    InvalidCapacity, InvalidInlineLimit, UnknownArm, UnknownIdType
        As :class:`PlanOptions`; also for text that is not a number.

    Examples
    --------
    >>> parse_options(inline_limit=1536, capacities="64,8,64", arms="all").capacities
    (8, 64)
    """
    return PlanOptions(
        inline_limit=inline_limit,
        is_csf_inline=is_csf_inline,
        capacities=None if capacities is None else tuple(parse_capacity(item) for item in split(capacities)),
        arms=None if arms is None else ARMS if arms.strip() == "all" else merge_arms(split(arms)),
        id_types=None if id_types is None else merge_id_types(split(id_types)),
    )


def split(text: str) -> list[str]:
    return [item.strip() for item in text.split(",")]


def parse_capacity(text: str) -> int:
    # int() also takes "1_000", "+8" and digits of other scripts. Ten digits hold MAX_COUNT.
    if not (text.isascii() and text.isdigit() and len(text) <= 10):
        raise errors.InvalidCapacity(text)
    return int(text)


def merge_capacities(capacities: Iterable[object]) -> tuple[int, ...]:
    checked: set[int] = set()
    for capacity in capacities:
        if type(capacity) is not int or not 1 <= capacity <= MAX_COUNT:
            raise errors.InvalidCapacity(capacity)
        checked.add(capacity)
    if not checked:
        raise errors.InvalidCapacity("")
    return tuple(sorted(checked))


def merge_arms(arms: Iterable[str]) -> tuple[Arm, ...]:
    named = tuple(arms)
    for arm in named or ("",):
        if arm not in ARMS:
            raise errors.UnknownArm(arm, (*ARMS, "all"), nearest_spelling(arm, ARMS))
    return tuple(arm for arm in ARMS if arm in named)


def merge_id_types(id_types: Iterable[str]) -> tuple[IdType, ...]:
    named = tuple(id_types)
    for id_type in named or ("",):
        if id_type not in ID_TYPES:
            raise errors.UnknownIdType(id_type, ID_TYPES, nearest_spelling(id_type, ID_TYPES))
    return tuple(id_type for id_type in ID_TYPES if id_type in named)
