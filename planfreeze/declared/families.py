"""Declared families: which variants there are, and which one a call takes."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, cast

from msgspec import field
from msgspec.structs import replace

from planfreeze import errors
from planfreeze.constants import freeze_constant, spell_field
from planfreeze.declared.parameters import Integer, Parameter, Tensor
from planfreeze.declared.specialization import Marking
from planfreeze.declared.variants import Axis, Derived, combine, derive_axis, field_name
from planfreeze.declared.variants import plain_constant as plain
from planfreeze.family import Argument, CuteSource, Definition, Family, Grid, Scalars, TritonSource
from planfreeze.payload import Field, Payload

__all__ = ["DeclaredFamily", "GridRule", "SourceRule", "define_variant"]

MAX_SELECTED = 4096
"""Payloads that a family remembers; a family has at most 1024 variants, the rest are calls that were refused."""
GridRule = Callable[..., Sequence[int] | None]


class DeclaredFamily(Family, frozen=True, kw_only=True):
    """A family that knows all its payloads, and which of them a call takes.

    Parameters
    ----------
    parameters : tuple
        Arguments of the kernel in order, without its constants.
    markings : mapping of str to str
        What each is told apart by.
    constants, settings : mapping of str to tuple of Field
        Values of each constant, and of each compile option.
    configurations : tuple of mapping
        Combinations of constants and options that go together; each names the same ones.
    computed : mapping of str to Derived
        Constants that follow from an argument.
    by_name, known
        The arguments by name; the names of everything that a call may state.
    selected : dict
        Payloads of calls that were made, by the classes of their arguments and what their constants are.
    """

    parameters: tuple[Parameter, ...]
    markings: Mapping[str, Marking]
    constants: Mapping[str, tuple[Field, ...]]
    settings: Mapping[str, tuple[Field, ...]]
    configurations: tuple[Mapping[str, Field], ...]
    computed: Mapping[str, Derived]
    by_name: Mapping[str, Parameter]
    known: frozenset[str]
    selected: dict[tuple[str, ...], Payload] = field(default_factory=dict)

    def payloads(self) -> tuple[Payload, ...]:
        """Return the payload of every variant that a call can take.

        Raises
        ------
        FamilyTooLarge
            There are more than 1024, or no bound; the error names the argument.
        """
        advice = tuple(self.advice())
        return tuple(self.payload(**fields) for fields in combine(self.name, self.axes(), advice))

    def axes(self) -> Iterator[Axis]:
        """Yield what varies: arguments, constants, options, configurations."""
        names = {name: field_name(name) for name in (*self.by_name, *self.computed)}
        for parameter in self.parameters:
            marking = self.markings[parameter.name]
            following = {name: rule for name, rule in self.computed.items() if rule.argument == parameter.name}
            if isinstance(parameter, Integer) and following:
                yield derive_axis(self.name, parameter, marking, following, names)
            else:
                classes = parameter.classes(marking)
                yield Axis(parameter.name, tuple({names[parameter.name]: chosen} for chosen in classes))
        for name, values in (*self.constants.items(), *self.settings.items()):
            yield Axis(name, tuple({field_name(name): value} for value in values))
        if self.configurations:
            renamed = ({field_name(name): value for name, value in found.items()} for found in self.configurations)
            yield Axis("configurations", tuple(renamed))

    def advice(self) -> Iterator[str]:
        """Yield what ``do_not_specialize`` on an argument would save."""
        for parameter in self.parameters:
            now, then = (parameter.classes(marking) for marking in (self.markings[parameter.name], "free"))
            is_followed = any(rule.argument == parameter.name for rule in self.computed.values())
            if self.markings[parameter.name] not in ("free", "declared") and len(then) < len(now) and not is_followed:
                yield f"do_not_specialize={parameter.name!r} leaves {len(then)} of every {len(now)} variants"

    def read_field(self, name: str, text: str) -> Field | None:
        """Return the declared value of a constant or option that is spelled like ``text``, or None."""
        known = {**self.constants, **self.settings}
        for found in self.configurations:
            known |= {key: (*known.get(key, ()), value) for key, value in found.items()}
        values = {field_name(key): values for key, values in known.items()}.get(name, ())
        return next((value for value in values if spell_field(value) == text), None)

    def specialize(self, *values: Any, **named: Any) -> Payload:
        """Return the payload of the variant that a call takes; see :meth:`select`."""
        return self.select(*values, **named)[0]

    def select(self, *values: Any, **named: Any) -> tuple[Payload, tuple[Any, ...]]:
        """Return the payload of the variant that a call takes, and the arguments of its program.

        Parameters
        ----------
        *values, **named
            Arguments in order or by name: tensors, or anything with ``data_ptr()`` and ``dtype``; ints, floats and
            bools. Constants and options by name; those with one declared value, or that follow, may be left out.

        Raises
        ------
        InvalidArgument
            An argument is missing, unknown, of another type or out of its declared range.
        """
        call = self._arrange(values, named)
        chosen, passed = [], []
        for name, parameter in self.by_name.items():
            value = call[name]
            chosen.append(parameter.classify(self.name, value, self.markings[name]))
            if not parameter.constant(chosen[-1]):
                passed.append(value)
        stated = {name: freeze_constant(name, value) for name, value in call.items() if name not in self.by_name}
        for name, rule in self.computed.items():
            value = freeze_constant(name, rule.function(call[rule.argument]))
            if stated.setdefault(name, value) != value:
                raise errors.InvalidArgument(
                    self.name, name, f"= {call[name]!r} is not the {plain(value)!r} it is derived as"
                )
        key = (*chosen, repr(stated))  # True and 1 are one key of a dictionary, and two constants
        payload = self.selected.get(key)
        if payload is None:
            payload = self._make(chosen, stated)
            if len(self.selected) < MAX_SELECTED:
                self.selected[key] = payload
        return payload, tuple(passed)

    def _make(self, chosen: Sequence[str], stated: Mapping[str, Field]) -> Payload:
        fields: dict[str, Field] = dict(zip(self.by_name, chosen, strict=True))
        fields |= self._complete(stated)
        return self.payload(**{field_name(name): value for name, value in fields.items()})

    def _arrange(self, values: tuple[Any, ...], named: Mapping[str, Any]) -> dict[str, Any]:
        names = self.by_name.keys()
        if len(values) > len(names):
            raise errors.InvalidArgument(self.name, f"number {len(names) + 1}", f"is one too many: {', '.join(names)}")
        call = dict(zip(names, values, strict=False))
        for name, value in named.items():
            if name not in self.known or name in call:
                known = ", ".join(sorted(self.known))
                reason = "is given twice" if name in call else f"is unknown; known are {known}"
                raise errors.InvalidArgument(self.name, name, reason)
            call[name] = value
        for name in names:
            if name not in call:
                raise errors.InvalidArgument(self.name, name, f"is missing: it takes {', '.join(names)}")
        return call

    def _complete(self, stated: Mapping[str, Field]) -> Iterator[tuple[str, Field]]:
        yield from ((name, stated[name]) for name in self.computed)
        for name, values in (*self.constants.items(), *self.settings.items()):
            if name not in stated and len(values) > 1:
                known = ", ".join(repr(plain(value)) for value in values)
                raise errors.InvalidArgument(self.name, name, f"is missing: it is one of {known}")
            yield name, stated.get(name, values[0])
        if self.configurations:
            yield from self._configuration(stated).items()

    def _configuration(self, stated: Mapping[str, Field]) -> Mapping[str, Field]:
        names = tuple(self.configurations[0])
        given = {name: stated[name] for name in names if name in stated}
        if len(given) == len(names):
            return given
        fitting = [found for found in self.configurations if given.items() <= found.items()]
        if len(fitting) != 1:
            lacking = ", ".join(name for name in names if name not in given)
            raise errors.InvalidArgument(self.name, lacking, f"is missing: {len(fitting)} configurations fit the rest")
        return fitting[0]


SourceRule = Callable[[DeclaredFamily, dict[str, Field], Mapping[str, str]], TritonSource | CuteSource]


def define_variant(family: DeclaredFamily, payload: Payload, source: SourceRule, rule: GridRule) -> Definition:
    """Return arguments, source and grid of one variant.

    Raises
    ------
    InvalidPayload
        It names a class of values that its argument does not have.
    """
    fields = payload.to_fields()
    chosen = {name: cast("str", fields.pop(field_name(name))) for name in family.by_name}
    known = {field_name(name): name for name in (*family.constants, *family.settings, *family.computed)}
    known |= {field_name(name): name for found in family.configurations for name in found}
    constants = {known[name]: value for name, value in fields.items()}
    visible = {name: plain(value) for name, value in constants.items()}
    fixed: dict[str, int] = {}
    arguments = []
    for parameter in family.parameters:
        name, marking = parameter.name, family.markings[parameter.name]
        classes = parameter.classes(marking)
        if chosen[name] not in classes:
            raise errors.InvalidPayload(family.name, f"{name} = {chosen[name]!r} is none of {', '.join(classes)}")
        argument = parameter.argument(chosen[name], marking)
        if argument is not None:
            arguments.append(argument)
        for value in parameter.constant(chosen[name]):
            constants[name] = freeze_constant(name, value)
            fixed |= {} if isinstance(parameter, Tensor) else {name: cast("int", value)}
    wants_blocks = "resident_blocks" in inspect.signature(rule).parameters

    def grid(scalars: Scalars, resident_blocks: int) -> Grid:
        further = {"resident_blocks": resident_blocks} if wants_blocks else {}
        stated = rule({**fixed, **scalars}, visible, **further)
        if stated is None:
            raise errors.InvalidArgument(family.name, "grid", "is missing: the family leaves it to each launch")
        blocks = (*stated, 1, 1)
        return (blocks[0], blocks[1], blocks[2])

    taken = tuple(with_fixed(argument, fixed) for argument in arguments) if fixed else tuple(arguments)
    return Definition(arguments=taken, source=source(family, constants, chosen), grid=grid)


def with_fixed(argument: Argument, fixed: Mapping[str, int]) -> Argument:
    """Let a tensor's size rule see the integers that are constants of the variant, beside those that are passed."""
    rule = argument.elements
    return argument if rule is None else replace(argument, elements=lambda scalars: rule({**fixed, **scalars}))
