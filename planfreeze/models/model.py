"""The model value, and the checks every description of one has to pass."""

import math
import re
from collections.abc import Callable, Mapping
from typing import Any, Literal

from msgspec import Struct

from planfreeze import errors
from planfreeze.budgets import BUDGETS, Budget, is_budget_table, read_budgets
from planfreeze.spellings import nearest_spelling
from planfreeze.target import target

__all__ = ["ID_TYPES", "MAX_COUNT", "IdType", "Model", "WeightFormat", "check_model", "model_name"]

WeightFormat = Literal["mxfp4_csf", "mxfp4"]
IdType = Literal["int32", "int64"]
WEIGHT_FORMATS: tuple[WeightFormat, ...] = ("mxfp4_csf", "mxfp4")
ID_TYPES: tuple[IdType, ...] = ("int32", "int64")
# Sizes and token counts are 32-bit scalars in every launch.
MAX_COUNT = 2**31 - 1
# One direct-route size, usual sizes of CUDA graphs, and both sides of the inline limit's default.
DEFAULT_CAPACITIES = (8, 64, 128, 512, 1536, 2048, 4096)


class Model(Struct, frozen=True, kw_only=True):
    """Geometry of a model's mixture-of-experts layers, whole (before sharding).

    Parameters
    ----------
    name : str
        Name used in plans and references: letters, digits, ``.``, ``_`` and ``-``.
    hidden, intermediate : int
        Hidden size, and intermediate size of one expert over all ranks, in elements.
    experts, top_k : int
        Number of routed experts, and experts per token.
    weight_format : str
        ``mxfp4_csf``: MXFP4 weights with compressed scales; ``mxfp4``: uncompressed scales.
    activation : str
        ``silu``, the gated SiLU; no other is computed.
    activation_limit : float, optional
        Gate values are clamped from above, up values from both sides; None does not clamp.
    fast_math : bool
        Use the approximate exponential in the activation.
    id_types : tuple of str
        Integer types of the routing ids that callers pass.
    capacities : tuple of int
        Token counts planned for when none are asked for, ascending.
    default_arch : str
        Architecture planned for when none is asked for and the machine has no device.
    default_tp : int, optional
        Ranks the model is usually served on; None where nobody said.
    budgets : tuple of Budget
        What its programs may take of a GPU.
    programs : str
        Function that lists the model's payloads, as "module:attribute".

    Notes
    -----
    ``load_model`` checks what it reads; a value made by hand is taken as it is.
    """

    name: str
    hidden: int
    intermediate: int
    experts: int
    top_k: int
    weight_format: WeightFormat
    activation: Literal["silu"] = "silu"
    activation_limit: float | None = None
    fast_math: bool = False
    id_types: tuple[IdType, ...] = ID_TYPES
    capacities: tuple[int, ...] = DEFAULT_CAPACITIES
    default_arch: str = "sm_120a"
    default_tp: int | None = None
    budgets: tuple[Budget, ...] = ()
    programs: str = "planfreeze.kernels.moe.programs:enumerate_programs"


def is_count(value: object) -> bool:
    """Tell whether a value is an int that can count something in a launch; ``True`` is not."""
    return type(value) is int and 1 <= value <= MAX_COUNT


def is_limit(value: object) -> bool:
    return type(value) in (int, float) and 0 < value < math.inf  # type: ignore[operator]  # NaN compares false


def is_name(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value) is not None


def is_reference(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*", value) is not None


def is_list_of(accepts: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, list) and bool(value) and all(map(accepts, value))


COUNT = f"a whole number from 1 to {MAX_COUNT}"
# field -> (what it has to be, check)
FIELDS: Mapping[str, tuple[str, Callable[[object], bool]]] = {
    "name": ("a name of letters, digits, '.', '_' and '-'", is_name),
    "hidden": (COUNT, is_count),
    "intermediate": (COUNT, is_count),
    "experts": (COUNT, is_count),
    "top_k": (COUNT, is_count),
    "weight_format": (f"one of: {', '.join(WEIGHT_FORMATS)}", lambda value: value in WEIGHT_FORMATS),
    "activation": ("the name of an activation", lambda value: isinstance(value, str)),
    "activation_limit": ("a number > 0", is_limit),
    "fast_math": ("true or false", lambda value: isinstance(value, bool)),
    "id_types": (f"a list out of: {', '.join(ID_TYPES)}", is_list_of(lambda item: item in ID_TYPES)),
    "capacities": (f"a list, each {COUNT}", is_list_of(is_count)),
    "default_arch": ("the name of an architecture", lambda value: isinstance(value, str)),
    "default_tp": (COUNT, is_count),
    "budgets": (f"a table of {', '.join(BUDGETS)} (true), or of such tables by family", is_budget_table),
    "programs": ("a function as module:attribute", is_reference),
}
REQUIRED = ("hidden", "intermediate", "experts", "top_k", "weight_format")


def check_model(fields: Mapping[str, Any], *, path: str, name: str) -> Model:
    """Make a model of the fields a file states; ``name`` serves where the file states none.

    Raises
    ------
    UnknownModelField, MissingModelField, InvalidModelField
        A field is not one of a model, is required and absent, or has another type or range.
    UnsupportedActivation
        The activation is not one the kernels compute.
    UnknownArch
        ``default_arch`` is not a supported architecture.
    """
    check_fields(fields, path)
    if fields["top_k"] > fields["experts"]:
        raise errors.InvalidModelField(path, "top_k", fields["top_k"], f"at most its {fields['experts']} experts")
    if fields.get("activation", "silu") != "silu":
        raise errors.UnsupportedActivation(path, fields["activation"], "it is not gated SiLU")
    if "default_arch" in fields:
        target(fields["default_arch"])
    freeze: Mapping[str, Callable[[Any], object]] = {
        "activation_limit": float,
        "budgets": read_budgets,
        "capacities": lambda items: tuple(sorted(set(items))),
        "id_types": lambda items: tuple(id_type for id_type in ID_TYPES if id_type in items),
    }
    frozen: dict[str, Any] = {
        field: freeze[field](value) if field in freeze else value for field, value in fields.items()
    }
    return Model(**{"name": name, **frozen})


def check_fields(fields: Mapping[str, Any], path: str) -> None:
    """Refuse unknown and missing fields, and values of another type."""
    for field in fields:
        if field not in FIELDS:
            near = nearest_spelling(field, FIELDS)
            raise errors.UnknownModelField(path, field, tuple(FIELDS), near)
    for field in REQUIRED:
        if field not in fields:
            raise errors.MissingModelField(path, (field,))
    for field, value in fields.items():
        expected, accepts = FIELDS[field]
        if not accepts(value):
            raise errors.InvalidModelField(path, field, value, expected)


def model_name(stem: str) -> str:
    """Turn a file's or folder's name into a model's name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", stem).strip("-._") or "model"
