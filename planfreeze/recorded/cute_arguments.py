"""Arguments of a CuTe DSL host function: what tracing sees of them, and placeholders that look the same to it.

A description holds element types, layouts, alignment and address spaces. It never holds an address, a stream, or the
value of a scalar that the compiled function takes when it runs.
"""

import re
from collections.abc import Iterable
from importlib import import_module
from typing import Any

from planfreeze import errors
from planfreeze.payload import Field
from planfreeze.recorded.spelling import spell_value
from planfreeze.recorded.values import freeze_value, is_numeric, thaw_value

__all__ = ["describe_argument", "is_constant", "make_argument", "spell_argument", "traced_types"]

CONSTANT, SCALAR, NUMBER, STREAM, POINTER, TENSOR, TUPLE, LIST = (
    "constant",
    "scalar",
    "number",
    "stream",
    "pointer",
    "tensor",
    "tuple",
    "list",
)
# Numbers of Python that a function takes when it runs; the DSL gives them its own types.
NUMBERS: dict[str, bool | int | float] = {"bool": False, "int": 0, "float": 0.0}
STREAM_TYPES = frozenset({"_FakeStream", "CUstream", "cudaStream_t"})
LAYOUT_ENTRY = re.compile(r"\?(?:\{(?P<wide>i64)? ?(?:div=(?P<divisor>[0-9]+))?\})?|[0-9]+")


def describe_argument(name: str, index: int, value: Any, annotation: Any) -> Field:
    """Describe one argument as tracing sees it.

    Parameters
    ----------
    name, index : str, int
        The parameter; the first one, called ``self``, is the instance of a method.
    annotation : object
        Its annotation, evaluated.

    Raises
    ------
    UnnameableConstant
        Its type is none that can be made again from a description.
    """
    if is_constant_parameter(name, index, value, annotation):
        return (CONSTANT, freeze_value(name, value))
    if isinstance(annotation, type) and is_numeric(annotation):
        return (SCALAR, annotation.__name__)
    if import_module("cutlass.cutlass_dsl.cutlass").is_cute_algebra_type(annotation):
        # Tracing bakes plain numbers in; a compiled function does not take the others by one convention.
        if not is_static(value):
            raise errors.UnnameableConstant(name, type(value).__name__, "it is a coordinate with values of the run")
        return (CONSTANT, freeze_value(name, value))
    return describe_value(name, value)


def describe_value(name: str, value: Any) -> Field:
    """Describe a value by its type alone, as the DSL's adapters take it."""
    kind = type(value)  # not __class__: tensors of the run-time claim another one
    if is_numeric(kind):
        return (SCALAR, kind.__name__)
    if kind in (bool, int, float):
        return (NUMBER, kind.__name__)
    if kind in (tuple, list):
        items = (describe_value(f"{name}[{i}]", item) for i, item in enumerate(value))
        return (TUPLE if kind is tuple else LIST, *items)
    if kind.__name__ in STREAM_TYPES:
        if getattr(value, "use_tvm_ffi_env_stream", False):
            raise errors.UnnameableConstant(name, kind.__name__, "it is the environment stream of TVM-FFI")
        return (STREAM,)
    runtime = import_module("cutlass.cute.runtime")
    if kind is runtime._Pointer:
        return (POINTER, value._dtype.__name__, value._addr_space.name, value._assumed_align)
    if kind is runtime._FakeTensor:
        return describe_fake_tensor(value)
    if kind is runtime._Tensor:
        return describe_tensor(name, value)
    adapters = import_module("cutlass.base_dsl.runtime.jit_arg_adapters").JitArgAdapterRegistry
    with adapters.using_scope(adapters.CUDA_DIALECT_SCOPE):
        adapter = adapters.get_registered_adapter(value)
    if adapter is runtime.TensorAdapter:
        return describe_tensor(name, adapter(value)._arg)
    raise errors.UnnameableConstant(name, f"{kind.__module__}.{kind.__qualname__}", "its type has no description")


def describe_fake_tensor(tensor: Any) -> Field:
    entries = (tuple(spell_entry(entry) for entry in axis) for axis in (tensor.shape, tensor.stride))
    return tensor_field(tensor.element_type, tensor.memspace.name, tensor._assumed_align, *entries)


def describe_tensor(name: str, tensor: Any) -> Field:
    element, alignment, placed = tensor.__cache_key__
    space, _, layout = placed.partition(" o ")
    if tensor.element_type is not element:
        raise errors.UnnameableConstant(name, str(tensor.element_type), "its element type was set over another one")
    shape, _, stride = layout.partition(":")
    axes = []
    for axis in (shape, stride):
        texts = axis.removeprefix("(").removesuffix(")").split(",")
        if not all(LAYOUT_ENTRY.fullmatch(text) for text in texts):
            raise errors.UnnameableConstant(name, layout, "its layout is nested")
        axes.append(tuple(int(text) if text.isdigit() else text for text in texts))
    return tensor_field(element, space, alignment, *axes)


def tensor_field(
    element: Any, space: str, alignment: int | None, shape: Iterable[Field], stride: Iterable[Field]
) -> Field:
    stated = max(1, element.width // 8) if alignment is None else alignment
    return (TENSOR, element.__name__, space, stated, tuple(shape), tuple(stride))


def spell_entry(entry: Any) -> int | str:
    """Spell one extent or stride as the DSL prints it: ``8``, ``?``, ``?{div=4}``, ``?{i64 div=4}``."""
    if isinstance(entry, int):
        return entry
    facts = ["i64"] * (entry.width == 64) + [f"div={entry.divisibility}"] * (entry.divisibility > 1)
    return f"?{{{' '.join(facts)}}}" if facts else "?"


def make_argument(field: Any) -> Any:
    """Make a placeholder that tracing takes for the described argument; imports the DSL."""
    typing, runtime = import_module("cutlass.base_dsl.typing"), import_module("cutlass.cute.runtime")
    match field:
        case ("constant", value):
            return thaw_value(value)
        case ("scalar", kind):
            return getattr(typing, kind)(0)
        case ("number", kind):
            return NUMBERS[kind]
        case ("stream",):
            return runtime.make_fake_stream()
        case ("pointer", element, space, alignment):
            spaces = runtime.AddressSpace
            return runtime.make_ptr(getattr(typing, element), 0, spaces[space], assumed_align=alignment)
        case ("tensor", element, space, alignment, shape, stride):
            return runtime.make_fake_tensor(
                getattr(typing, element),
                tuple(map(make_entry, shape)),
                tuple(map(make_entry, stride)),
                memspace=runtime.AddressSpace[space],
                assumed_align=alignment,
            )
        case ("tuple", *items):
            return tuple(map(make_argument, items))
        case ("list", *items):
            return list(map(make_argument, items))
    raise ValueError(f"{field} describes no argument")


def make_entry(entry: int | str) -> Any:
    if isinstance(entry, int):
        return entry
    found = LAYOUT_ENTRY.fullmatch(entry)
    assert found is not None
    symbol = import_module("cutlass.cute.runtime").SymInt
    return symbol(64 if found["wide"] else 32, divisibility=int(found["divisor"] or 1))


def traced_types(value: Any) -> tuple[str, ...]:
    """Return the types that tracing gives an argument, as the DSL prints them. Constants have none."""
    ir = import_module("cutlass._mlir.ir")
    adapters = import_module("cutlass.base_dsl.runtime.jit_arg_adapters").JitArgAdapterRegistry
    types = import_module("cutlass.base_dsl.typing").get_mlir_types
    with ir.Context(), ir.Location.unknown(), adapters.using_scope(adapters.CUDA_DIALECT_SCOPE):
        adapter = adapters.get_registered_adapter(value)
        return tuple(map(str, types(adapter(value) if adapter else value)))


def is_constant(field: Field) -> bool:
    """Tell whether tracing bakes the argument in, so that the compiled function does not take it."""
    return isinstance(field, tuple) and field[0] == CONSTANT


def is_constant_parameter(name: str, index: int, value: Any, annotation: Any) -> bool:
    judge = import_module("cutlass.base_dsl.runtime.jit_arg_adapters").is_argument_constexpr
    return bool(judge(value, annotation, name, index, None))


def is_static(value: Any) -> bool:
    """Tell whether a coordinate holds plain numbers alone."""
    return all(map(is_static, value)) if isinstance(value, tuple | list) else type(value) is int


def spell_argument(field: Any) -> str:
    """Return a description as people read it: ``Float32 gmem align 16 (?,128):(128,1)``, ``Int32``, ``stream``."""
    match field:
        case ("constant", value):
            return spell_value(value)
        case ("scalar" | "number", kind):
            return str(kind)
        case ("pointer", element, space, alignment):
            return f"pointer to {element} {space} align {alignment}"
        case ("tensor", element, space, alignment, shape, stride):
            layout = ":".join(f"({','.join(map(str, axis))})" for axis in (shape, stride))
            return f"{element} {space} align {alignment} {layout}"
        case ("tuple" | "list", *items):
            return f"({', '.join(map(spell_argument, items))})"
    return str(field[0])
