"""What kernels capture: what the key covers is followed, what it does not cover is refused by name."""

import importlib
import itertools
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from planfreeze.compilers.assignments import KeyedText
from planfreeze.compilers.captures import check_captures
from planfreeze.errors import UnkeyedCapture
from planfreeze.sources import read_sources

numbers = itertools.count()

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


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write a package of modules, import its ``kernels`` and check what ``kernel`` there captures."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def run(text: str, *, before: Callable[[Any], None] = lambda module: None, roots: Any = (), **modules: str) -> None:
        package = f"captured{next(numbers)}"
        (tmp_path / package).mkdir()
        for name, content in {"__init__": "", "kernels": text, **modules}.items():
            path = tmp_path / package / f"{name}.py"
            path.write_text(textwrap.dedent(content).replace("PACKAGE", package))
        module = importlib.import_module(f"{package}.kernels")
        before(module)
        names = (f"{package}.kernels", *(root.replace("PACKAGE", package) for root in roots))
        check_captures("the kernel", (module.kernel,), KeyedText(read_sources(names)))

    return run


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


def test_a_cute_kernel_that_exec_put_in_the_place_of_the_one_in_the_text_is_refused(check: Any) -> None:
    text = (
        "import cutlass.cute as cute\n@cute.jit\ndef kernel(n: int):\n    cute.printf('one')\n"
        "import linecache\n"
        "TEXT = '\\n@cute.jit\\ndef kernel(n: int):\\n    cute.printf(\"two\")\\n'\n"
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


CUTE = """
import cutlass
from cutlass import Float32, Int32, Int64, cute
from . import helpers

SCALE = 3

@cute.kernel
def device(out: Int64, n: Int32):
    thread, _, _ = cute.arch.thread_idx()
    if thread < n:
        helpers.store(out, Int32(BODY))

@cute.jit
def kernel(out: Int64, n: Int32, stream):
    device(out, n).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)
"""
CUTE_HELPERS = """
from cutlass import Int32, cute
import cutlass

def store(out, value):
    pointer = cute.make_ptr(Int32, out, cute.AddressSpace.gmem, assumed_align=4)
    cute.make_tensor(pointer, cute.make_layout(1))[0] = value
"""


def test_a_cute_kernel_is_followed_through_its_python_helpers(check: Any) -> None:
    check(CUTE.replace("BODY", "SCALE"), helpers=CUTE_HELPERS)
    for body, reason in {
        "time.time()": r"uses time\.time: it comes from time",
        "len(open('/dev/null').read())": "uses open: it gives something else in every process",
        "UNKNOWN": "uses UNKNOWN: it is assigned from a call",
        "os.environ['HOME']": r"uses os\.environ: it comes from os, which is not in the key",
    }.items():
        text = "import os, time\nUNKNOWN = id(os)\n" + CUTE.replace("BODY", body)
        with pytest.raises(UnkeyedCapture, match=reason):
            check(text, helpers=CUTE_HELPERS)


READ_WHILE_TRACED = {
    "open": "open(__file__).read()",
    "io.open": "io.open(__file__).read()",
    "codecs.open": "codecs.open(__file__).read()",
    "gzip.open": "gzip.open(__file__).read()",
    "pkgutil.get_data": "pkgutil.get_data('json', '__init__.py')",
    "linecache.getlines": "linecache.getlines(__file__)",
    "fileinput.input": "list(fileinput.input(__file__))",
    "os.path.realpath": "os.path.realpath('.')",
    "inspect.getsource": "inspect.getsource(helpers)",
    "sysconfig.get_paths": "sysconfig.get_paths()",
    "ctypes.CDLL": "str(ctypes.CDLL(None))",
}


@pytest.mark.parametrize("reader", READ_WHILE_TRACED)
def test_a_cute_kernel_that_reads_a_file_while_it_is_traced_is_refused(check: Any, reader: str) -> None:
    module = reader.partition(".")[0]
    imports = f"import {module}\n" if "." in reader else ""
    with pytest.raises(UnkeyedCapture) as raised:
        check(imports + CUTE.replace("BODY", f"len({READ_WHILE_TRACED[reader]})"), helpers=CUTE_HELPERS)
    assert raised.value.name == reader


DEFAULT = "def helper(x, by=3, *, more=(1, 2.0)):\n    return x * by\n"
METHOD = "by = 5\nclass Rules:\n    by = 3\n    def helper(self, x, by=by):\n        return x\n"


def test_a_default_that_is_no_longer_what_the_text_says_is_refused(check: Any) -> None:
    text = CUTE.replace("SCALE = 3", DEFAULT + METHOD)
    check(text.replace("BODY", "helper(2) + Rules().helper(1)"), helpers=CUTE_HELPERS)
    for change, reason in {
        "helper.__defaults__ = (4,)": "uses by in helper: it is 4, and by the text 3",
        "helper.__defaults__ = None": "uses by in helper: its default was set or removed",
        "helper.__defaults__ = (1, 3)": "uses x in helper: its default was set or removed",
        "helper.__kwdefaults__['more'] = (1, 2)": r"uses more in helper: it is \(1, 2\), and by the text \(1, 2\.0\)",
        "Rules.helper.__defaults__ = (5,)": "uses by in helper: it is 5, and by the text 3",
    }.items():
        changed = text.replace("BODY", "helper(2) + Rules().helper(1)") + change + "\n"
        with pytest.raises(UnkeyedCapture, match=reason):
            check(changed, helpers=CUTE_HELPERS)


def test_what_was_put_on_a_function_as_an_attribute_is_refused_and_its_compilers_methods_are_not(check: Any) -> None:
    text = CUTE.replace("SCALE = 3", DEFAULT + "helper.by = id(cute)\n")
    check(text.replace("BODY", "helper(2)"), helpers=CUTE_HELPERS)
    check(text.replace("BODY", "helper.__call__(2)"), helpers=CUTE_HELPERS)
    with pytest.raises(UnkeyedCapture, match=r"uses helper\.by: .* an attribute of a function"):
        check(text.replace("BODY", "helper(helper.by)"), helpers=CUTE_HELPERS)
    with pytest.raises(UnkeyedCapture, match=r"uses helpers\.store\.by: .* an attribute of a function"):
        check(CUTE.replace("BODY", "helpers.store.by"), helpers=CUTE_HELPERS + "\nstore.by = 3\n")
    method = "helper.by = lambda: len(open('/dev/null').read())\n"
    with pytest.raises(UnkeyedCapture, match=r"uses helper\.by: its text is not in"):
        check(CUTE.replace("SCALE = 3", DEFAULT + method).replace("BODY", "helper.by()"), helpers=CUTE_HELPERS)


def test_a_cute_kernel_made_by_a_factory_is_refused(check: Any) -> None:
    text = """
from cutlass import Int32, Int64, cute

def make(amount):
    @cute.kernel
    def device(out: Int64, n: Int32):
        pointer = cute.make_ptr(Int32, out, cute.AddressSpace.gmem, assumed_align=4)
        cute.make_tensor(pointer, cute.make_layout(1))[0] = Int32(amount)

    @cute.jit
    def kernel(out: Int64, n: Int32, stream):
        device(out, n).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

    return kernel

kernel = make(3)
"""
    with pytest.raises(UnkeyedCapture, match="a closure captured it"):
        check(text)


CLASS = """
from cutlass import Int32, Int64, cute

class Kernel:
    ROWS = 4

    def __init__(self, *, launch):
        self.rows = self.ROWS

    @cute.jit
    def __call__(self, out: Int64, stream):
        self.device(out).launch(grid=[1, 1, 1], block=[self.rows, 1, 1], stream=stream)

    @cute.kernel
    def device(self, out: Int64):
        pass

kernel = Kernel
"""


def test_a_class_attribute_is_held_against_the_text_of_its_class(check: Any) -> None:
    check(CLASS)
    with pytest.raises(UnkeyedCapture, match=r"uses Kernel\.ROWS: it is 5, and by the text 4"):
        check(CLASS, before=lambda module: setattr(module.Kernel, "ROWS", 5))
    with pytest.raises(UnkeyedCapture, match=r"uses Kernel\.MORE: .* does not assign MORE"):
        check(CLASS, before=lambda module: setattr(module.Kernel, "MORE", 5))
    with pytest.raises(UnkeyedCapture, match=r"uses Kernel\.ROWS: it is assigned from a call"):
        check(CLASS.replace("ROWS = 4", "ROWS = id(cute)"))


CLASSES = """
import abc, enum
from dataclasses import dataclass, field
from typing import NamedTuple
from cutlass import Int32, Int64, cute

class Shape(NamedTuple):
    rows: int
    columns: int = 4

    @property
    def size(self):
        return self.rows * self.columns

@dataclass(frozen=True, slots=True, order=True)
class Tile:
    rows: int = 8
    names: tuple = field(default_factory=tuple)

class Mode(enum.IntEnum):
    SLOW = 1
    FAST = SLOW + 1

class Base(abc.ABC):
    STAGES = 2

    @abc.abstractmethod
    def stages(self): ...

class Derived(Base):
    def stages(self):
        return self.STAGES * Mode.FAST

@cute.jit
def kernel(out: Int64, stream):
    shape, tile = Shape(2), Tile()
    total = shape.size + tile.rows + Mode.FAST + Derived().stages()
"""


def test_classes_of_all_kinds_are_followed_to_their_text(check: Any) -> None:
    check(CLASSES)
    for old, new in {"return self.rows *": "return id(self) *", "return self.STAGES *": "return id(self) *"}.items():
        with pytest.raises(UnkeyedCapture, match="uses id: it gives something else in every process"):
            check(CLASSES.replace(old, new))
    for owner, attribute in (("Base", "STAGES"), ("Shape", "extra")):
        with pytest.raises(UnkeyedCapture, match=rf"uses {owner}\.{attribute}"):
            check(CLASSES, before=lambda module, o=owner, a=attribute: setattr(getattr(module, o), a, 9))
