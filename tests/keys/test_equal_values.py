"""Values that Python calls equal, and texts that hold separators: a key of its own for each, in any order."""

import math
import random
from types import SimpleNamespace

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from planfreeze.constants import freeze_constant, thaw_constant
from planfreeze.errors import UnnameableConstant
from planfreeze.family import Definition, TritonSource
from planfreeze.key import encode_definition
from planfreeze.recorded.triton_kernel import TritonKernelPayload
from planfreeze.recorded.values import freeze_value

# Texts with everything that could end a field early, among letters.
TEXTS = st.text(st.sampled_from("ab\0\n'\",:;|_=()[]\\ /\x7fé"), max_size=6)
NUMBERS = st.one_of(
    st.booleans(),
    st.integers(-2, 2),
    st.integers(-(2**63), 2**64 - 1),
    st.sampled_from([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan]),
    st.floats(),
)
SCALARS = st.one_of(
    st.none(), NUMBERS, TEXTS, st.sampled_from(["None", "True", "1", "1.0", "nan", "\0none", "\0float"])
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
EQUAL = [True, 1, 1.0, "1", (1,), (True,), (1.0,), 0, False, 0.0, -0.0, None, "None", (), ((),), "", (None,), ("None",)]
NAMES = st.one_of(TEXTS.filter(bool), st.sampled_from(["block", "num_warps"]))


def spell(value):
    """Return a text that differs wherever type or meaning does, made in another way than keys are."""
    if isinstance(value, tuple):
        return "".join(f"<{spell(item)}>" for item in value)
    return f"{type(value).__name__}:{value.hex() if isinstance(value, float) else repr(value)}"


def freeze(value):
    try:
        return freeze_constant("value", value)
    except UnnameableConstant:
        assume(False)


def encode(constants, options):
    source = TritonSource(kernel="module:kernel", constants=tuple(constants), options=tuple(options))
    definition = Definition(arguments=(), source=source, grid=lambda scalars, resident_blocks: (1, 1, 1))
    payload = TritonKernelPayload(
        kernel="module:kernel", signature=(), constants=tuple(constants), options=source.options
    )
    return encode_definition(definition), payload.encode(), payload.digest


# Two draws are often nearly alike.
PAIRS = st.lists(st.tuples(NAMES, st.one_of(st.sampled_from(EQUAL), VALUES)), max_size=2)


@settings(max_examples=400, deadline=None)
@given(PAIRS, PAIRS, PAIRS, PAIRS)
def test_keys_differ_wherever_type_or_meaning_differs(constants, options, other_constants, other_options):
    first, second = (
        [[(name, freeze(value)) for name, value in part] for part in parts]
        for parts in ((constants, options), (other_constants, other_options))
    )
    one, two = (spell((tuple(a), tuple(b))) for a, b in ((constants, options), (other_constants, other_options)))
    made, other = encode(*first), encode(*second)
    assert [a == b for a, b in zip(made, other, strict=True)] == [one == two] * 3


@settings(max_examples=400, deadline=None)
@given(VALUES)
def test_a_value_comes_back_from_its_spelling_with_every_type(value):
    assert spell(thaw_constant(freeze(value))) == spell(value)


def test_no_order_of_seeing_equal_values_changes_a_key():
    alone = {spell(value): encode([("value", freeze_constant("value", value))], []) for value in EQUAL}
    assert len(set(alone.values())) == len(EQUAL)
    for seed in range(30):
        order = random.Random(seed).sample(EQUAL, len(EQUAL))
        for value in order:
            assert encode([("value", freeze_constant("value", value))], []) == alone[spell(value)]


@pytest.mark.parametrize("value", [("\0none",), ("\0float", "0x1p+0"), (1, ("\0constexpr", 1)), ("\0",)], ids=repr)
def test_a_tuple_that_begins_as_a_spelling_does_is_refused_by_name(value):
    for freeze_it in (freeze_constant, freeze_value):
        with pytest.raises(UnnameableConstant, match=r"weights.* begins as the spelling of another constant"):
            freeze_it("weights", value)


@pytest.mark.parametrize("order", [(True, 1, 1.0), (1.0, 1, True), (1, True, 1.0)], ids=repr)
def test_options_of_the_dsl_are_described_by_their_type_whichever_equal_one_was_seen_first(order):
    pytest.importorskip("cutlass")
    from cutlass.base_dsl.compiler import CompileOptions, OptLevel

    from planfreeze.recorded.cute_calls import ENVIRONMENT_FACTS, describe_options, effective_options

    effective_options.cache_clear()
    environment = SimpleNamespace(**dict.fromkeys(ENVIRONMENT_FACTS, False))
    environment.compiler_opt = environment.arch = environment.dump_dir = ""
    for value in order:
        options = CompileOptions()
        options.options[OptLevel]._value = value
        described = dict(describe_options(options, environment))["OptLevel"]
        assert described == freeze_constant("value", value) and spell(thaw_constant(described)) == spell(value)
