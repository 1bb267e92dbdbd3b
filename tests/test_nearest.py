"""The nearest planned program: of the same kernel, with the fewest differing facts, each in words."""

import math
from typing import ClassVar

import pytest

from planfreeze.constants import freeze_constant
from planfreeze.family import CuteSource, Definition, LaunchInfo, TritonSource, pointer, scalar
from planfreeze.guard import Attempt
from planfreeze.nearest import explain_attempt, find_nearest_program, list_differences, planned_facts
from planfreeze.payload import Payload
from planfreeze.resolve import PlannedProgram
from planfreeze.target import target


class FillPayload(Payload):
    """A payload of a family that is never compiled."""

    family_name: ClassVar[str] = "nearest_fill"
    block: int
    warps: int = 4


def plan_fill(block: int, warps: int = 4, kernel: str = "shop.fill_triton:fill", alignment: int = 16) -> PlannedProgram:
    definition = Definition(
        arguments=(pointer("x", "f32", lambda scalars: 1, alignment=alignment), scalar("n")),
        source=TritonSource(kernel=kernel, constants=(("BLOCK", block),), num_warps=warps, num_stages=3),
        grid=lambda scalars, resident_blocks: (1, 1, 1),
    )
    payload = FillPayload(block=block, warps=warps)
    return PlannedProgram(
        entry=None,  # type: ignore[arg-type]  # an explanation reads no entry
        payload=payload,
        definition=definition,
        target=target("sm_90a"),
    )


FACTS = (
    ("x", "*fp32 (divisible by 16)"),
    ("n", "i32"),
    ("BLOCK", "1024"),
    ("num_warps", "4"),
    ("num_stages", "3"),
    ("enable_fp_fusion", "True"),
    ("target", "cuda:90"),
)


def ask(kernel: str = "shop.fill_triton.fill", **changes: str) -> Attempt:
    facts = tuple((name, changes.get(name, value)) for name, value in FACTS)
    return Attempt(road="triton", kernel=kernel, facts=facts, location="serve.py:7")


@pytest.mark.parametrize(
    ("changes", "differences"),
    [
        ({}, ()),
        ({"BLOCK": "512"}, ("BLOCK: 1024 -> 512",)),
        ({"num_warps": "8"}, ("num_warps: 4 -> 8",)),
        ({"x": "*fp32"}, ("x: divisible by 16 -> not",)),
        ({"x": "*bf16 (divisible by 16)"}, ("x: *fp32 (divisible by 16) -> *bf16 (divisible by 16)",)),
        ({"n": "i32 (divisible by 16)"}, ("n: not divisible by 16 -> divisible by 16",)),
        ({"n": "1"}, ("n: i32 -> 1",)),
        ({"n": "i64"}, ("n: i32 -> i64",)),
        ({"target": "cuda:100"}, ("target: cuda:90 -> cuda:100",)),
        ({"x": "*fp32", "num_stages": "2"}, ("x: divisible by 16 -> not", "num_stages: 3 -> 2")),
    ],
)
def test_each_fact_that_differs_is_spelled(changes: dict[str, str], differences: tuple[str, ...]) -> None:
    program = plan_fill(1024)
    assert list_differences(planned_facts(program.definition, program.target), ask(**changes).facts) == differences


def test_the_program_with_the_fewest_differences_is_nearest() -> None:
    planned = [plan_fill(512, 8), plan_fill(1024, 8), plan_fill(64, 1)]
    near = find_nearest_program(ask(), planned)
    assert near is not None
    assert near.name == "nearest_fill(block=1024, warps=8)" and near.differences == ("num_warps: 8 -> 4",)


@pytest.mark.parametrize("kernel", ["elsewhere.fill_triton.fill", "shop.fill_triton.filling", "fill", ""])
def test_another_kernel_is_not_near(kernel: str) -> None:
    assert find_nearest_program(ask(kernel), [plan_fill(1024)]) is None


def test_an_alignment_that_was_not_planned_is_no_difference_of_an_unaligned_call() -> None:
    program = plan_fill(1024, alignment=4)
    assert list_differences(planned_facts(program.definition, program.target), ask(x="*fp32").facts) == ()
    assert list_differences(planned_facts(program.definition, program.target), ask().facts) == (
        "x: not divisible by 16 -> divisible by 16",
    )


def test_a_specialised_number_a_function_and_an_option_are_compared_in_the_words_of_the_call() -> None:
    definition = Definition(
        arguments=(pointer("x", "f32", lambda scalars: 1), scalar("n"), scalar("m")),
        source=TritonSource(
            kernel="shop.fill_triton:fill",
            constants=(
                ("one", 1),
                ("scale", freeze_constant("scale", 0.5)),
                ("act", freeze_constant("act", math.floor)),
            ),
            divisible=("n",),
            options=(("maxnreg", 128),),
        ),
        grid=lambda scalars, resident_blocks: (1, 1, 1),
    )
    planned = planned_facts(definition, target("sm_90a"))
    asked = {"n": "i32", "m": "i32", "one": "1", "scale": "0.25", "act": "math.ceil", "maxnreg": "64"}
    assert list_differences(planned, tuple(asked.items())) == (
        "n: divisible by 16 -> not",
        "scale: 0.5 -> 0.25",
        "act: math.floor -> math.ceil",
        "maxnreg: 128 -> 64",
    )


def test_what_the_call_does_not_show_is_passed_over() -> None:
    program = plan_fill(1024, 8)
    assert list_differences(planned_facts(program.definition, program.target), (("BLOCK", "1024"),)) == ()


def test_a_cute_kernel_is_compared_by_the_constants_of_its_instance() -> None:
    definition = Definition(
        arguments=(pointer("x", "f32", lambda scalars: 1),),
        source=CuteSource(
            kernel="shop.copy_cute:Copy",
            constants=(("width", 4), ("mode", "plain")),
            launch=LaunchInfo(block=(32, 1, 1)),
        ),
        grid=lambda scalars, resident_blocks: (1, 1, 1),
    )
    program = PlannedProgram(
        entry=None,  # type: ignore[arg-type]  # an explanation reads no entry
        payload=FillPayload(block=1),
        definition=definition,
        target=target("sm_90a"),
    )
    facts = (("x", "Int64"), ("width", "8"), ("mode", "'plain'"))
    attempt = Attempt(road="cute", kernel="shop.copy_cute.Copy.__call__", facts=facts, location="serve.py:7")
    near = find_nearest_program(attempt, [program])
    assert near is not None and near.differences == ("width: 4 -> 8",)


def test_an_explanation_says_what_is_planned_what_differs_and_what_to_run() -> None:
    planned = [plan_fill(1024)]
    explained = explain_attempt(ask(BLOCK="512"), planned, "shop-tp1-sm_90a (1 programs)", "planfreeze build --model s")
    assert explained == (
        "The session is frozen over shop-tp1-sm_90a (1 programs). The nearest planned program is "
        "nearest_fill(block=1024, warps=4), which differs in BLOCK: 1024 -> 512. Run: planfreeze build --model s, "
        "with a plan that holds this program"
    )
    assert "in place of this call" in explain_attempt(ask(), planned, "p", "c")
    assert explain_attempt(ask("other.kernel"), planned, "p", "c").endswith("comes from this kernel.")
