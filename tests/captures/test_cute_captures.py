"""What kernels of the CuTe DSL capture: helpers, defaults, factories, classes, and what is read during a trace."""

from typing import Any

import pytest

from planfreeze.errors import UnkeyedCapture


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
