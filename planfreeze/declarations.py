"""Declaring a family of somebody's kernel: its arguments by ranges, its constants by values. Imports no compiler."""

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, cast

from planfreeze import errors
from planfreeze.constants import DTYPE, OBJECT, freeze_constant, module_name, spell_field
from planfreeze.declared.arguments import flag, integer, real, tensor
from planfreeze.declared.families import DeclaredFamily, GridRule, SourceRule, define_variant
from planfreeze.declared.parameters import Integer, Parameter
from planfreeze.declared.specialization import Marking
from planfreeze.declared.variants import Derived, derived, field_name, freeze_alternatives
from planfreeze.family import CuteSource, Definition, TritonSource, register_family
from planfreeze.payload import Field, Payload, PayloadMeta
from planfreeze.target import Target

__all__ = [
    "DeclaredFamily",
    "cute_family",
    "derived",
    "dtype",
    "flag",
    "integer",
    "named",
    "real",
    "tensor",
    "triton_family",
]

WARPS, STAGES = "num_warps", "num_stages"
# What a Triton launch takes without being told; at these a payload's fields are not encoded.
DEFAULTS: Mapping[str, Field] = {WARPS: 4, STAGES: 3}
# What an autotuner's configuration holds besides constants.
CONFIGURED = (WARPS, STAGES, "num_ctas", "maxnreg")


def triton_family(
    *,
    kernel: str,
    arguments: Sequence[Parameter],
    constants: Mapping[str, object] | None = None,
    configurations: Sequence[Mapping[str, object]] = (),
    num_warps: object = 4,
    num_stages: object = 3,
    options: Mapping[str, object] | None = None,
    do_not_specialize: Sequence[str] = (),
    do_not_specialize_on_alignment: Sequence[str] = (),
    sources: Sequence[str] = (),
    name: str | None = None,
    version: int = 1,
) -> Callable[[GridRule], DeclaredFamily]:
    """Make the decorated function the grid of a family of variants of a ``@triton.jit`` kernel.

    The function is given the integers of a call and the constants of its variant, each by name, and returns the
    grid, or None to leave it to each launch (``grid=``). A parameter named ``resident_blocks`` gets the blocks that
    the device keeps resident.

    Parameters
    ----------
    kernel : str
        The kernel as "module:attribute"; of an autotuned one, what is below its decorators is compiled.
    arguments : sequence
        Its arguments in order, each by :func:`tensor`, :func:`integer`, :func:`real` or :func:`flag`.
    constants : mapping
        Values of each constant: one, or a tuple of all; or :func:`derived`.
    configurations : sequence of mapping
        Constants and options that go together, such as those an autotuner chose.
    num_warps, num_stages, options
        Compile options, each one value or a tuple of all.
    do_not_specialize, do_not_specialize_on_alignment : sequence of str
        As the kernel's decorator has them.
    sources : sequence of str
        Further modules that belong to the key.
    name : str, optional
        The family's name; by default the function's.

    Raises
    ------
    InvalidDeclaration
        Names are declared twice, marked and not declared, or marked in two ways.
    DuplicateFamily
        Another family has the name.
    """
    markings: dict[str, Marking] = {argument.name: "specialized" for argument in arguments}
    marks: tuple[tuple[Marking, Sequence[str]], ...] = (
        ("unaligned", do_not_specialize_on_alignment),
        ("free", do_not_specialize),
    )
    for mark, names in marks:
        for marked in (names,) if isinstance(names, str) else names:
            if marked not in markings:
                reason = "it is marked not to be specialized and is no argument; constants always are"
                raise errors.InvalidDeclaration("a family", marked, reason)
            markings[marked] = mark
    stated = {WARPS: num_warps, STAGES: num_stages, **(options or {})}
    settings = {name: value for name, value in stated.items() if name not in next(iter(configurations), ())}
    option_names = dict.fromkeys((*stated, *CONFIGURED))

    def source(family: DeclaredFamily, constants: dict[str, Field], chosen: Mapping[str, str]) -> TritonSource:
        options = {name: constants.pop(name) for name in option_names if name in constants}
        warps, stages = options.pop(WARPS), options.pop(STAGES)
        if type(warps) is not int or type(stages) is not int:
            raise errors.InvalidPayload(family.name, f"{WARPS} = {warps!r} and {STAGES} = {stages!r} are not both ints")
        annotations = ((p.name, family.markings[p.name], p.annotations) for p in family.parameters)
        return TritonSource(
            kernel=kernel,
            constants=tuple(constants.items()),
            num_warps=warps,
            num_stages=stages,
            divisible=tuple(name for name, found in chosen.items() if found.endswith("-by-16")),
            options=tuple(options.items()),
            markings=tuple(annotations),
        )

    return declare(source, arguments, markings, constants, configurations, settings, sources, name, version)


def cute_family(
    *,
    kernel: str,
    arguments: Sequence[Parameter],
    constants: Mapping[str, object] | None = None,
    configurations: Sequence[Mapping[str, object]] = (),
    sources: Sequence[str] = (),
    name: str | None = None,
    version: int = 1,
) -> Callable[[GridRule], DeclaredFamily]:
    """Make the decorated function the grid of a family of variants of a ``@cute.jit`` function.

    The function at ``kernel`` takes an ``Int64`` address per tensor, a number per scalar, each constant as
    ``cutlass.Constexpr``, and a stream; it launches one kernel with the addresses and numbers it was given, in order.
    Its grid is the decorated function's; block, cluster and shared memory are read from the launch.

    Parameters are those of :func:`triton_family`. An integer without ``dtype`` is an Int32 where its range fits.

    Raises
    ------
    InvalidDeclaration
        Names are declared twice.
    DuplicateFamily
        Another family has the name.
    """
    markings: dict[str, Marking] = {argument.name: "declared" for argument in arguments}

    def source(family: DeclaredFamily, constants: dict[str, Field], chosen: Mapping[str, str]) -> CuteSource:
        return CuteSource(kernel=kernel, constants=tuple(constants.items()))

    return declare(source, arguments, markings, constants, configurations, {}, sources, name, version)


def named(reference: str) -> Field:
    """Name a function or other object of a module as a constant, by "module:attribute", without importing it."""
    return (OBJECT, reference)


def dtype(name: str) -> Field:
    """Name a Triton element type as a constant, such as ``fp16``, without importing Triton."""
    return (DTYPE, name)


def declare(
    source: SourceRule,
    arguments: Sequence[Parameter],
    markings: dict[str, Marking],
    constants: Mapping[str, object] | None,
    configurations: Sequence[Mapping[str, object]],
    settings: Mapping[str, object],
    sources: Sequence[str],
    name: str | None,
    version: int,
) -> Callable[[GridRule], DeclaredFamily]:
    """Return the decorator that makes a family of a grid rule and everything that is declared."""

    def register(rule: GridRule) -> DeclaredFamily:
        family_name = name or rule.__name__
        if "<" in rule.__qualname__ or "." in rule.__qualname__:
            raise errors.InvalidDeclaration(
                family_name, rule.__name__, "it is no function at the top level of a module"
            )
        stated = dict(constants or {})
        computed = {key: value for key, value in stated.items() if isinstance(value, Derived)}
        frozen = {key: freeze_alternatives(key, value) for key, value in stated.items() if key not in computed}
        tuned = tuple({key: freeze_constant(key, value) for key, value in found.items()} for found in configurations)
        options = {key: freeze_alternatives(key, value) for key, value in settings.items()}
        by_name = {argument.name: argument for argument in arguments}
        check_names(family_name, arguments, stated, tuned, options, computed)
        check_values(family_name, {**frozen, **options})
        alternatives = {**frozen, **options, **dict.fromkeys(computed, ())}
        for key in tuned[0] if tuned else ():
            alternatives[key] = tuple(found[key] for found in tuned)

        def define(payload: Payload, target: Target) -> Definition:
            return define_variant(family, payload, source, rule)

        family = DeclaredFamily(
            name=family_name,
            version=version,
            payload=make_payload(family_name, rule.__module__, by_name, alternatives),
            define=define,
            reference=f"{module_name(sys.modules[rule.__module__])}:{rule.__name__}",
            sources=tuple(sources),
            parameters=tuple(arguments),
            markings=markings,
            constants=frozen,
            settings=options,
            configurations=tuned,
            computed=computed,
            by_name=by_name,
            known=frozenset((*by_name, *alternatives)),
        )
        return register_family(family)

    return register


def check_names(
    family: str,
    arguments: Sequence[Parameter],
    constants: Mapping[str, object],
    configurations: tuple[Mapping[str, Field], ...],
    options: Mapping[str, object],
    computed: Mapping[str, Derived],
) -> None:
    """Refuse names that are declared twice, uneven configurations, constants without values or argument."""
    names = [*(a.name for a in arguments), *constants, *options, *next(iter(configurations), ())]
    for name in names:
        if names.count(name) > 1:
            raise errors.InvalidDeclaration(family, name, "it is declared twice")
        if not name.isidentifier():
            raise errors.InvalidDeclaration(family, repr(name), "it is no name of a parameter")
    for found in configurations:
        if found.keys() != configurations[0].keys():
            raise errors.InvalidDeclaration(
                family, "configurations", "they do not all state the same constants and options"
            )
    integers = {a.name for a in arguments if isinstance(a, Integer)}
    for name, rule in computed.items():
        if rule.argument not in integers:
            raise errors.InvalidDeclaration(
                family, name, f"it is derived from {rule.argument}, which is no integer argument"
            )


def check_values(family: str, alternatives: Mapping[str, Collection[Field]]) -> None:
    """Refuse constants and options without a value: no variant would be left."""
    for name, values in alternatives.items():
        if not values:
            raise errors.InvalidDeclaration(family, name, "it has no value, and so the family has no variant")


class Variant(Payload):
    """Base of the payloads of declared families."""

    def spell_fields(self) -> dict[str, str]:
        """Return the fields by name, constants as people write them."""
        return {name: spell_field(value) for name, value in self.to_fields().items()}


def make_payload(
    family: str, module: str, parameters: Mapping[str, Parameter], alternatives: Mapping[str, tuple[Field, ...]]
) -> type[Payload]:
    """Make the payload class of a family: one field per argument, constant and option."""
    kinds: dict[str, Any] = {field_name(name): str for name in parameters}
    for name, values in alternatives.items():
        found = {type(value) for value in values}
        kinds[field_name(name)] = found.pop() if len(found) == 1 else object
    defaults = {field_name(name): DEFAULTS[name] for name in alternatives if name in DEFAULTS}
    stated = {"family_name": family, "__module__": module, "__annotations__": kinds}
    return cast("type[Payload]", PayloadMeta(f"{family}_payload", (Variant,), {**defaults, **stated}))
