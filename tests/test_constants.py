"""Constants of kernels, spelled as payload fields and found again."""

import functools
import math
import subprocess
import sys
from enum import Enum

import pytest

from planfreeze.constants import constant_modules, freeze_constant, module_name, spell_constant, thaw_constant
from planfreeze.errors import UnnameableConstant


class Color(Enum):
    RED = 1


def helper():
    pass


PLAIN = [True, 1, -(2**63), "", "text", (), (1, ("a", False)), None, 0.5, -0.0, 1.0, math.inf, 1e-300, (None, (0.1,))]


@pytest.mark.parametrize("value", PLAIN, ids=repr)
def test_plain_values_come_back_with_their_types(value):
    found = thaw_constant(freeze_constant("value", value))
    assert repr(found) == repr(value) and type(found) is type(value)


def test_values_that_python_calls_equal_are_spelled_apart():
    spelled = [repr(freeze_constant("value", value)) for value in (True, 1, 1.0, "1", (1,), None, "None", 0.0, -0.0)]
    assert len(set(spelled)) == len(spelled)


def test_nan_comes_back():
    assert math.isnan(thaw_constant(freeze_constant("value", math.nan)))


def test_objects_of_modules_come_back_as_themselves_and_name_their_module():
    for value in (math.floor, Enum, functools.partial):
        field = freeze_constant("value", value)
        assert thaw_constant(field) is value
        assert constant_modules((1, (field,))) == (value.__module__,)
    assert spell_constant(freeze_constant("value", math.floor)) == "math:floor"


def test_triton_values_come_back():
    language = pytest.importorskip("triton.language")
    assert thaw_constant(freeze_constant("value", language.float16)) == language.float16
    inner = thaw_constant(freeze_constant("value", (language.constexpr(3),)))[0]
    assert type(inner) is language.constexpr and inner.value == 3
    assert spell_constant(freeze_constant("value", (language.float16, language.constexpr(2)))) == "(fp16, 2)"


def test_dtypes_of_torch_come_back():
    torch = pytest.importorskip("torch")
    assert thaw_constant(freeze_constant("value", torch.bfloat16)) is torch.bfloat16


@pytest.mark.parametrize(
    "value", [lambda: 0, object(), functools.partial(helper), [1], {"a": 1}, 1j], ids=lambda value: type(value).__name__
)
def test_what_no_module_names_is_refused_by_name(value):
    with pytest.raises(UnnameableConstant, match="constant weight = "):
        freeze_constant("weight", (1, value))


def test_an_object_that_is_hidden_by_another_of_its_name_is_refused():
    hidden = functools.wraps(math.floor)(lambda x: x)
    with pytest.raises(UnnameableConstant, match="something else"):
        freeze_constant("value", hidden)


def test_what_cannot_be_found_again_is_refused():
    for reference in ("math:nothing", "no_such_module:x"):
        with pytest.raises(UnnameableConstant):
            thaw_constant(("\0object", reference))


def test_a_script_is_named_by_its_file(tmp_path):
    script = tmp_path / "softmax.py"
    script.write_text(
        "import sys\nfrom planfreeze.constants import name_object\ndef scale(): pass\nprint(name_object('f', scale))\n"
    )
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert run.stdout == "softmax:scale\n"
    assert module_name(sys.modules["math"]) == "math"
