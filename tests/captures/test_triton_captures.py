"""What kernels of Triton capture: what the key covers is followed, what it does not cover is refused by name."""

import sys
from pathlib import Path
from typing import Any

import pytest

from planfreeze.errors import UnkeyedCapture

TRITON = "import triton\nimport triton.language as tl\n"
KERNEL = """
@triton.jit
def kernel(out, n):
    tl.store(out, n * FACTOR)
"""
HELPERS = """
import triton
import triton.language as tl

FACTOR = tl.constexpr(3)

@triton.jit
def double(x):
    return x * 2

@triton.jit
def twice(x):
    return double(double(x))
"""

VALUES = [
    "FACTOR = tl.constexpr(3)",
    "FACTOR: tl.constexpr = tl.constexpr(-3 * (2 + 1) // 2)",
    "HALF = 4\nFACTOR = tl.constexpr(HALF << 1)",
    "FACTOR = tl.constexpr(float('-inf'))",
    "import math\nFACTOR = tl.constexpr(math.log2(math.e) / math.pi)",
    "FACTOR = tl.constexpr(3.5 if 2 > 1 and not False else 1)",
    "from .other import FACTOR",
    "from .other import FACTOR as RENAMED\nFACTOR = RENAMED",
    "from .other import *",
    "TABLE = {'a': 3}\nFACTOR = tl.constexpr(TABLE['a'])",
    "ONE, FACTOR = 1, tl.constexpr(2)",
    "if 2 > 1:\n    FACTOR = tl.constexpr(2)\nelse:\n    FACTOR = tl.constexpr(3)",
    "FACTOR = tl.constexpr(tl.float32)",
    "class Sizes:\n    WIDE = 8\nFACTOR = tl.constexpr(Sizes.WIDE)",
]


@pytest.mark.parametrize("assignment", VALUES)
def test_a_value_that_follows_from_the_text_is_allowed(check: Any, assignment: str) -> None:
    check(TRITON + assignment + KERNEL, other=HELPERS)


REFUSED = [
    ("import os\nFACTOR = tl.constexpr(int(os.environ.get('HOME', '3') > ''))", "comes from os"),
    ("import time\nFACTOR = tl.constexpr(time.time())", "comes from time"),
    ("import random\nFACTOR = tl.constexpr(random.random())", "comes from random"),
    ("from os import sep\nFACTOR = tl.constexpr(len(sep))", "sep comes from os, which is not in the key"),
    ("def choose():\n    return 3\nFACTOR = tl.constexpr(choose())", "assigned from a call: choose"),
    ("import os\nif os.sep == '/':\n    FACTOR = tl.constexpr(3)", "under the condition os.sep == '/'"),
    (
        "try:\n    FACTOR = tl.constexpr(3)\nexcept ValueError:\n    FACTOR = tl.constexpr(4)",
        "bound in a try statement",
    ),
    ("for FACTOR in (tl.constexpr(3),):\n    pass", "bound in a for statement"),
    ("FACTOR = tl.constexpr(3)\nFACTOR = tl.constexpr(4)", "FACTOR is bound more than once"),
    ("FACTOR = tl.constexpr(3)\ndef f():\n    global FACTOR\n    FACTOR = 4", r"a function of .* assigns FACTOR"),
    ("FACTOR = tl.constexpr(3)\nFACTOR += 1", "bound in a augassign statement"),
    ("FIRST, REST = divmod(7, 2)\nFACTOR = tl.constexpr(FIRST)", "bound by unpacking"),
    ("import msgpack\nFACTOR = tl.constexpr(msgpack.version)", "comes from msgpack, which is not in the key"),
    ("globals()['FACTOR'] = tl.constexpr(3)", "no statement at the top level of .* assigns FACTOR"),
]


@pytest.mark.parametrize(("assignment", "reason"), REFUSED)
def test_a_value_that_does_not_follow_from_the_text_is_refused_by_name(
    check: Any, assignment: str, reason: str
) -> None:
    with pytest.raises(UnkeyedCapture, match=reason) as caught:
        check(TRITON + assignment + KERNEL)
    assert "FACTOR" in caught.value.name


READ_AT_IMPORT = [
    ("from pathlib import Path\nFACTOR = tl.constexpr(Path(__file__).read_text())", "comes from pathlib"),
    ("FACTOR = tl.constexpr(open(__file__).read())", "no statement at the top level of .* assigns __file__"),
    ("import json\nFACTOR = tl.constexpr(json.dumps(open('/dev/null').read()))", "assigned from a call: open"),
    ("import pkgutil\nFACTOR = tl.constexpr(pkgutil.get_data('json', '__init__.py'))", "comes from pkgutil"),
    ("from .other import TEXT\nFACTOR = tl.constexpr(TEXT)", "comes from importlib"),
    ("with open(__file__) as file:\n    FACTOR = tl.constexpr(file.read())", "bound in a with statement"),
]


@pytest.mark.parametrize(("assignment", "reason"), READ_AT_IMPORT)
def test_what_a_module_read_from_a_file_when_it_was_imported_is_refused(
    check: Any, assignment: str, reason: str
) -> None:
    other = "from importlib.resources import files\nTEXT = files('json').joinpath('__init__.py').read_text()\n"
    with pytest.raises(UnkeyedCapture, match=f"uses FACTOR: .*({reason})"):
        check(TRITON + assignment + KERNEL, other=other)


def test_a_value_that_was_changed_since_is_refused_with_both(check: Any) -> None:
    with pytest.raises(UnkeyedCapture, match=r"uses FACTOR: it is constexpr\[5\], and by the text constexpr\[3\]"):
        check(TRITON + VALUES[0] + KERNEL, before=lambda module: setattr(module, "FACTOR", type(module.FACTOR)(5)))


@pytest.mark.parametrize(
    ("value", "changed"), [("1", True), ("0.0", -0.0), ("True", 1), ("(1, 2)", (1, 2.0)), ("1", "1")]
)
def test_a_value_that_python_calls_equal_is_another_one(check: Any, value: str, changed: object) -> None:
    text = TRITON + f"FACTOR = tl.constexpr({value})" + KERNEL
    check(text)
    with pytest.raises(UnkeyedCapture, match="something changed it"):
        check(text, before=lambda module: setattr(module, "FACTOR", type(module.FACTOR)(changed)))


WAYS = {
    "by name": "from .helpers import double\n@triton.jit\ndef kernel(out, n):\n    tl.store(out, double(n))\n",
    "by attribute": "from . import helpers\n@triton.jit\ndef kernel(out, n):\n    tl.store(out, helpers.double(n))\n",
    "two levels down": "from .helpers import twice\n@triton.jit\ndef kernel(out, n):\n    tl.store(out, twice(n))\n",
    "by a constexpr": (
        "from .helpers import double, twice\n@triton.jit\ndef kernel(out, n, IS_TWICE: tl.constexpr):\n"
        "    chosen: tl.constexpr = twice if IS_TWICE else double\n    tl.store(out, chosen(n))\n"
    ),
}


@pytest.mark.parametrize("way", WAYS)
def test_helpers_are_followed_however_they_are_reached(check: Any, way: str) -> None:
    check(TRITON + WAYS[way], helpers=HELPERS)
    spoiled = HELPERS.replace("return x * 2", "return x * FACTOR").replace("tl.constexpr(3)", "tl.constexpr(id(tl))")
    with pytest.raises(UnkeyedCapture, match="uses FACTOR: it is assigned from a call: id"):
        check(TRITON + WAYS[way], helpers=spoiled)


def test_a_helper_outside_the_key_is_refused_with_where_it_is(check: Any, tmp_path: Path, monkeypatch: Any) -> None:
    installed = tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    (installed / "elsewhere.py").write_text(HELPERS)
    monkeypatch.syspath_prepend(str(installed))
    text = TRITON + "from elsewhere import double\n@triton.jit\ndef kernel(out, n):\n    tl.store(out, double(n))\n"
    with pytest.raises(UnkeyedCapture, match="uses double: double comes from elsewhere, which is not in the key"):
        check(text)
    check(text, roots=("elsewhere",))


def test_a_helper_that_another_module_put_in_its_place_is_refused(check: Any) -> None:
    def replace(module: Any) -> None:
        module.double = sys.modules[module.double.__module__].twice

    with pytest.raises(UnkeyedCapture, match=r"uses double: it is .*, and by the text .*helpers\.double"):
        check(TRITON + WAYS["by name"], helpers=HELPERS, before=replace)


def test_a_helper_whose_text_was_replaced_is_refused(check: Any) -> None:
    def replace(module: Any) -> None:
        module.double._unsafe_update_src("def double(x):\n    return x * 3\n")

    with pytest.raises(UnkeyedCapture, match="its text was replaced after"):
        check(TRITON + WAYS["by name"], helpers=HELPERS, before=replace)


def test_what_a_closure_captured_is_refused(check: Any) -> None:
    text = TRITON + (
        "def make(factor):\n    @triton.jit\n    def kernel(out, n):\n        tl.store(out, n * factor)\n"
        "    return kernel\nkernel = make(tl.constexpr(3))\n"
    )
    with pytest.raises(UnkeyedCapture, match="uses factor in kernel: a closure captured it"):
        check(text)


def test_a_kernel_made_by_exec_is_refused(check: Any) -> None:
    text = (
        "import linecache, triton\nimport triton.language as tl\n"
        "TEXT = 'import triton\\n@triton.jit\\ndef kernel(out, n):\\n    pass\\n'\n"
        "linecache.cache['<made>'] = (len(TEXT), None, TEXT.splitlines(True), '<made>')\n"
        "exec(compile(TEXT, '<made>', 'exec'))\n"
    )
    with pytest.raises(UnkeyedCapture, match="it was made by exec"):
        check(text)


def test_names_that_are_local_hide_globals_and_names_of_inner_scopes_do_not(check: Any) -> None:
    unkeyed = "import os\nn = FACTOR = os.sep\n"
    check(TRITON + unkeyed + "@triton.jit\ndef kernel(out, n):\n    FACTOR = n\n    tl.store(out, FACTOR)\n")
    inner = "@triton.jit\ndef kernel(out, x):\n    y = [n for n in range(3)]\n    tl.store(out, x * n)\n"
    with pytest.raises(UnkeyedCapture, match="uses n"):
        check(TRITON + unkeyed + inner)
