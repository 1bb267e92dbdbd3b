"""Loading sources: modules come from exactly the text that was hashed."""

import pytest

# Loading changes how a whole process imports, so each of these runs in one of its own.
LOADING = """
import hashlib, importlib, inspect, py_compile, sys
from pathlib import Path
from planfreeze.errors import SourceChanged
from planfreeze.sources import Sources, load_exactly, read_sources
root = Path("tree")
sys.path.insert(0, str(root.absolute()))
def write(name, text):
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    importlib.invalidate_caches()
    return path
def refused(function, *arguments):
    try:
        function(*arguments)
    except SourceChanged as error:
        return error
    raise AssertionError("it was not refused")
write("acme/__init__.py", "")
leaf = write("acme/leaf.py", "def value():\\n    return 'first'\\n")
kernel = write("acme/kernel.py", "from .leaf import value\\nanswer = value()\\n")
sources = read_sources(["acme.kernel"])
"""


@pytest.fixture
def run_loading(interpreter):
    return lambda script: interpreter.run(LOADING + script)


def test_modules_are_loaded_from_the_text_that_was_hashed(run_loading):
    run_loading("""
load_exactly(sources)
load_exactly(sources)
import acme.kernel
assert acme.kernel.answer == "first"
assert acme.kernel.__file__ == str(kernel.absolute())
assert acme.__path__ == [str(kernel.absolute().parent)]
""")


def test_text_changed_on_disk_is_refused_by_module_and_path(run_loading):
    run_loading("""
load_exactly(sources)
leaf.write_text("def value():\\n    return 'other'\\n")
error = refused(importlib.import_module, "acme.kernel")
assert error.module == "acme.leaf" and error.path == str(leaf.absolute())
assert "acme.leaf" in str(error) and "planfreeze build" in str(error)
assert "acme.leaf" not in sys.modules and "acme.kernel" not in sys.modules
""")


def test_stale_bytecode_is_not_used(run_loading):
    run_loading("""
other = write("other.py", "def value():\\n    return 'stale'\\n")
mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
cached = py_compile.compile(str(other), cfile=importlib.util.cache_from_source(str(leaf)), invalidation_mode=mode)
stale = Path(cached).read_bytes()
usual = {}
exec(importlib.machinery.SourceFileLoader("acme.leaf", str(leaf)).get_code("acme.leaf"), usual)
assert usual["value"]() == "stale"
load_exactly(sources)
import acme.kernel
assert acme.kernel.answer == "first"
assert Path(cached).read_bytes() == stale, "no bytecode is written either"
""")


def test_inspect_sees_the_loaded_text_when_the_file_changes_afterwards(run_loading):
    run_loading("""
import linecache
load_exactly(sources)
import acme.leaf
leaf.write_text("# moved\\n\\n\\ndef value():\\n    return 'other'\\n")
linecache.checkcache()
assert inspect.getsource(acme.leaf.value) == "def value():\\n    return 'first'\\n"
assert inspect.getsourcelines(acme.leaf.value)[1] == 1
leaf.unlink()
assert inspect.getsource(acme.leaf.value) == "def value():\\n    return 'first'\\n"
""")


def test_modules_outside_the_sources_are_imported_as_usual(run_loading):
    run_loading("""
write("acme/extra.py", "answer = 1")
write("acme/space/inner.py", "answer = 2")
load_exactly(sources)
import acme.extra, acme.space.inner, json
assert acme.extra.answer + acme.space.inner.answer == 3
""")


def test_module_loaded_before_otherwise_is_refused(run_loading):
    run_loading("""
import acme.leaf
error = refused(load_exactly, sources)
assert error.module == "acme.leaf" or error.module == "acme", error
""")


def test_one_process_does_not_load_two_texts_of_one_module(run_loading):
    run_loading("""
load_exactly(sources)
leaf.write_text("def value():\\n    return 'other'\\n")
assert refused(load_exactly, read_sources(["acme.kernel"])).module == "acme.leaf"
""")


def test_sources_of_a_second_family_are_loaded_beside_the_first(run_loading):
    run_loading("""
load_exactly(sources)
import acme.kernel
write("acme/second.py", "from .leaf import value\\nanswer = value() + ' again'\\n")
second = read_sources(["acme.second"])
load_exactly(second)
write("acme/second.py", "answer = 'other'")
assert refused(importlib.import_module, "acme.second").module == "acme.second"
""")


def test_text_is_decoded_as_it_declares(run_loading):
    run_loading("""
leaf.write_bytes("# coding: latin-1\\ndef value():\\n    return '\\u00e9'\\n".encode("latin-1"))
load_exactly(read_sources(["acme.kernel"]))
import acme.kernel
assert acme.kernel.answer == "\\u00e9"
assert inspect.getsource(acme.leaf.value).endswith("return '\\u00e9'\\n")
""")
