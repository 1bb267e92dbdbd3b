"""Constants and options that are objects: spelled by what they are, or refused with their type."""

import dataclasses
import enum
import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from planfreeze.constants import freeze_constant
from planfreeze.errors import UnnameableConstant
from planfreeze.family import CuteSource, Definition, TritonSource
from planfreeze.key import encode_definition

FAMILIES = """
    import enum
    from planfreeze.declarations import tensor, triton_family

    class Level(enum.Enum):
        TWO = 2
        THREE = 3

    class Rounding(enum.IntEnum):
        UP = 1
        DOWN = 2

    def helper():
        pass

    @triton_family(
        kernel="NAME.add_triton:add_kernel",
        arguments=(tensor("out", "f32"),),
        constants={"level": (Level.TWO, Level.THREE, Rounding.UP, Rounding.DOWN, 1, 2, helper, Level, None, 2.0)},
    )
    def leveled(scalars, constants):
        return (1,)
    """
SCRIPT = """
import sys
from pathlib import Path
from planfreeze.keyed import key_plan
from planfreeze.plans import Plan
from planfreeze.target import target
from levels.families import leveled
plan = Plan(model="levels", tp=1, target=target("sm_90a"), payloads=leveled.payloads())
for program in key_plan(plan, Path(sys.argv[1])):
    print(program.key.digest)
"""


class Level(enum.IntEnum):
    TWO = 2


@dataclasses.dataclass(frozen=True)
class Shape:
    rows: int = 1


OBJECTS: dict[str, object] = {
    "object": object(),
    "Shape": Shape(),
    "partial": functools.partial(int, base=2),
    "function": lambda x: x,
    "Float32DType": np.dtype("float32"),
    "int64": np.int64(3),
    "float64": np.float64(0.5),
    "dict": {"a": 1},
    "list": [1],
    "set": {1},
    "bytes": b"1",
}


@pytest.mark.parametrize("kind", OBJECTS)
def test_an_object_that_says_nothing_of_its_content_is_refused_with_its_type(kind: str) -> None:
    for value in (OBJECTS[kind], (1, OBJECTS[kind])):
        with pytest.raises(UnnameableConstant, match=rf"no named object of a module.*{kind}\b"):
            freeze_constant("level", value)


@pytest.mark.parametrize("kind", [*OBJECTS, "Level", "float", "NoneType"])
def test_a_source_that_states_an_object_has_no_key(kind: str) -> None:
    value: Any = {**OBJECTS, "Level": Level.TWO, "float": 2.0, "NoneType": None}[kind]
    plain = TritonSource(kernel="levels.kernels:kernel", constants=(("level", 2),))
    sources = (
        replace(plain, constants=(("level", value),)),
        replace(plain, options=(("level", (1, value)),)),
        CuteSource(kernel="levels.kernels:kernel", constants=(("level", value),)),
    )
    for source in sources:
        definition = Definition(arguments=(), source=source, grid=lambda scalars, resident_blocks: (1, 1, 1))
        with pytest.raises(UnnameableConstant, match=rf"^constant level of levels\.kernels:kernel .* is a {kind};"):
            encode_definition(definition)


def test_objects_with_a_name_have_equal_keys_in_all_processes_and_differ_from_each_other(
    make_package: Callable[..., Path], interpreter: Any, toolchains: Path
) -> None:
    folder = make_package("levels", families=FAMILIES)
    seen = replace(interpreter, folders=(folder.parent, *interpreter.folders))
    first, second = (seen.run(SCRIPT, str(toolchains), PYTHONHASHSEED=seed).split() for seed in ("1", "2"))
    assert first == second
    assert len(set(first)) == len(importlib.import_module("levels.families").leveled.payloads()) == 10


STREAMS = """
from cuda.bindings.driver import CUstream
from planfreeze.cache.digest import digest_of
from planfreeze.compilers import cute
from planfreeze.compilers.assignments import KeyedText
from planfreeze.elf import read_cubin
from planfreeze.family import family_of
from planfreeze.key import source_roots
from planfreeze.sources import load_exactly, read_sources
from planfreeze.target import target
from toys.families import CopyPayload
family = family_of(CopyPayload())
definition = family.define(CopyPayload(), target("sm_90a"))
text = KeyedText(read_sources(source_roots(family, definition)))
placeholder = cute.make_fake_stream
for stream in (placeholder, lambda: CUstream(0), lambda: CUstream(2), lambda: CUstream(0x7F1234567890)):
    cute.make_fake_stream = stream
    cubin = cute.compile_program(definition.source, definition.arguments, target("sm_90a"), text).cubin
    (kernel,) = read_cubin(cubin).kernels
    print(kernel.symbol, digest_of(cubin), len(kernel.parameter_sizes), len(definition.arguments))
"""


def test_a_stream_is_no_part_of_a_program_of_its_symbol_or_of_its_parameters(interpreter: Any, tmp_path: Path) -> None:
    (tmp_path / "dumps").mkdir()
    variables = {"CUTE_DSL_ARCH": "sm_90a", "CUTE_DSL_KEEP": "ir", "CUTE_DSL_DUMP_DIR": str(tmp_path / "dumps")}
    lines = interpreter.run(STREAMS, **variables).splitlines()
    assert len(lines) == 4
    assert len(set(lines)) == 1
    *_, parameters, arguments = lines[0].split()
    assert parameters == arguments
