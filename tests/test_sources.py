"""Sources: which text makes a program, found without importing, and loaded exactly."""

import gc
import hashlib
import importlib
import importlib.machinery
import json
import py_compile
import sys
import types
import zipfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import planfreeze.sources
from planfreeze.errors import SourceUnreadable, UnparsableSource
from planfreeze.sources import ModuleReader, Sources, check_sources, hash_source, read_sources


@pytest.fixture
def tree(tmp_path, monkeypatch):
    """Write modules below a folder on the search path: path to text."""
    root = tmp_path / "tree"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))

    def write(texts: dict[str, str]) -> Path:
        for name, text in texts.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        return root

    return write


def names_of(*roots: str) -> list[str]:
    return [name for name, _ in read_sources(roots).modules]


CLOSURE = {
    "plain import": ("import acme.leaf", ["acme.leaf"]),
    "import under another name": ("import acme.leaf as other", ["acme.leaf"]),
    "several imports": ("import acme.leaf, acme.deep.mod", ["acme.deep", "acme.deep.mod", "acme.leaf"]),
    "from a module": ("from acme.leaf import value", ["acme.leaf"]),
    "from a package": ("from acme import leaf", ["acme.leaf"]),
    "relative, of the package": ("from . import leaf", ["acme.leaf"]),
    "relative, of a module": ("from .leaf import value", ["acme.leaf"]),
    "star": ("from .leaf import *", ["acme.leaf"]),
    "in a function": ("def f():\n    from .leaf import value", ["acme.leaf"]),
    "under a condition": ("if 0:\n    import acme.leaf\nelse:\n    from . import unused", ["acme.leaf", "acme.unused"]),
    "under try": ("try:\n    import acme.leaf\nexcept ImportError:\n    pass", ["acme.leaf"]),
    "in a class": ("class A:\n    import acme.leaf", ["acme.leaf"]),
    "for types alone": (
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .leaf import value",
        ["acme.leaf"],
    ),
    "package above": ("from .deep.mod import value", ["acme.deep", "acme.deep.mod"]),
    "two levels down": ("from . import step", ["acme.leaf", "acme.step"]),
    "circular": ("from . import ring", ["acme.ring"]),
    "other packages": ("import json, os.path, planfreeze.payload, numpy\nfrom planfreeze.key import Key", []),
    "a compiler that is not installed": ("import no_such_compiler.language as nl", []),
    "a name that is no module": ("from .leaf import value as acme_value", ["acme.leaf"]),
    "a namespace": ("from .space import inner", ["acme.space.inner"]),
    "kernels of planfreeze": (
        "from planfreeze.kernels.moe.geometry import ceil_div",
        ["planfreeze.kernels.moe", "planfreeze.kernels.moe.geometry"],
    ),
    "nothing": ("'''import acme.leaf'''  # from . import leaf", []),
}
ACME = {
    "acme/__init__.py": "",
    "acme/leaf.py": "value = 1",
    "acme/step.py": "from .leaf import value",
    "acme/unused.py": "",
    "acme/ring.py": "from . import kernel",
    "acme/deep/__init__.py": "",
    "acme/deep/mod.py": "value = 2",
    "acme/space/inner.py": "",
}


@pytest.mark.parametrize("kind", CLOSURE)
def test_modules_are_found_from_import_statements(tree, kind):
    text, found = CLOSURE[kind]
    tree(ACME | {"acme/kernel.py": text})
    assert names_of("acme.kernel") == sorted(["acme", "acme.kernel", *found])


def test_relative_imports_reach_up_from_packages_and_modules(tree):
    tree(
        ACME
        | {
            "acme/deep/__init__.py": "from .mod import value\nfrom .. import step",
            "acme/deep/mod.py": "from ..unused import nothing",
        }
    )
    assert names_of("acme.deep") == ["acme", "acme.deep", "acme.deep.mod", "acme.leaf", "acme.step", "acme.unused"]


def test_package_whose_init_imports_is_followed_from_any_of_its_modules(tree):
    tree(ACME | {"acme/__init__.py": "from .leaf import value"})
    assert names_of("acme.deep.mod") == ["acme", "acme.deep", "acme.deep.mod", "acme.leaf"]


def test_modules_in_one_folder_of_ones_own_are_followed(tree):
    tree({"solo.py": "import solo_too, json", "solo_too.py": "from pack import inner", "pack/inner.py": "import solo"})
    assert names_of("solo") == ["pack.inner", "solo", "solo_too"]


def test_what_is_installed_is_a_scope_of_its_own(tree, tmp_path, monkeypatch):
    installed = tmp_path / "lib" / "site-packages"
    installed.mkdir(parents=True)
    for name, text in {"first.py": "import second, solo", "second.py": ""}.items():
        (installed / name).write_text(text)
    tree({"solo.py": "import first, triton, torch"})
    monkeypatch.syspath_prepend(str(installed))
    assert names_of("first") == ["first"]
    assert names_of("solo") == ["solo"]


def test_a_compiler_is_never_kernel_text_wherever_it_lies(tree):
    tree({"solo.py": "import triton, cutlass, json, planfreeze", "triton.py": "", "cutlass.py": "", "json.py": ""})
    assert names_of("solo") == ["solo"]


def test_nothing_is_imported_to_find_sources(tree):
    bang = "raise SystemExit('imported')\nimport no_such_compiler\nfrom .space import inner\n"
    tree(ACME | {"acme/__init__.py": bang, "acme/kernel.py": bang})
    before = set(sys.modules)
    assert "acme.space.inner" in names_of("acme.kernel")
    assert check_sources([read_sources(["acme.kernel"])]) == ((),)
    assert {name for name in set(sys.modules) - before if name.partition(".")[0] == "acme"} == set()


def test_digests_are_of_the_bytes_of_the_text(tree):
    root = tree(ACME)
    (root / "acme" / "leaf.py").write_bytes("# -*- coding: latin-1 -*-\nname = 'é'\r\n".encode("latin-1"))
    expected = hashlib.sha256((root / "acme" / "leaf.py").read_bytes()).hexdigest()
    assert dict(read_sources(["acme.leaf"]).modules)["acme.leaf"] == expected
    assert hash_source("acme.leaf") == expected


def test_one_digest_covers_names_and_texts():
    modules = (("a", "0" * 64), ("b", "1" * 64))
    digests = {
        Sources(modules).digest,
        Sources(modules[:1]).digest,
        Sources((("a", "1" * 64), ("b", "0" * 64))).digest,
        Sources((("ab", "0" * 64),)).digest,
        Sources(()).digest,
    }
    assert len(digests) == 5
    assert Sources(modules).digest == "a76494b5360565584eb83df80b48200192df8885638ac221a35bead1350129cf"


def test_roots_may_come_in_any_order_and_twice(tree):
    tree(ACME)
    assert read_sources(["acme.leaf", "acme.step"]) == read_sources(["acme.step", "acme.leaf", "acme.step"])


@pytest.fixture
def parsed(monkeypatch):
    """The modules whose text is parsed, as it happens."""
    names = []
    parse = planfreeze.sources.imported_names

    def note(name, *arguments):
        names.append(name)
        return parse(name, *arguments)

    monkeypatch.setattr(planfreeze.sources, "imported_names", note)
    return names


def read_with(memo: Path) -> Sources:
    reader = ModuleReader(memo)
    sources = read_sources(["acme.step"], reader)
    assert read_sources(["acme.leaf"], reader).modules[-1] in sources.modules
    reader.remember()
    return sources


def test_a_text_is_parsed_once_for_all_roots_and_processes_that_share_a_memo(tree, tmp_path, parsed):
    tree(ACME)
    expected = read_sources(["acme.step"])
    parsed.clear()
    assert read_with(tmp_path / "memo") == expected
    assert sorted(parsed) == ["acme", "acme.leaf", "acme.step"]
    parsed.clear()
    assert read_with(tmp_path / "memo") == expected
    assert parsed == []


def test_a_changed_text_is_parsed_again_and_what_it_was_is_forgotten(tree, tmp_path, parsed):
    root = tree(ACME)
    read_with(tmp_path / "memo")
    first = (tmp_path / "memo").read_text()
    (root / "acme" / "leaf.py").write_text("from .deep import mod")
    parsed.clear()
    assert "acme.deep.mod" in dict(read_with(tmp_path / "memo").modules)
    assert sorted(parsed) == ["acme.deep", "acme.deep.mod", "acme.leaf"]
    assert len(json.loads(first.rpartition(" ")[0])) == 3
    (root / "acme" / "leaf.py").write_text(ACME["acme/leaf.py"])
    read_with(tmp_path / "memo")
    assert (tmp_path / "memo").read_text() == first


@pytest.mark.parametrize("damage", [lambda content: content[:-9], lambda content: content.replace(b"acme", b"emca")])
def test_a_damaged_memo_counts_as_none(tree, tmp_path, parsed, damage):
    tree(ACME)
    expected = read_with(tmp_path / "memo")
    (tmp_path / "memo").write_bytes(damage((tmp_path / "memo").read_bytes()))
    parsed.clear()
    assert read_with(tmp_path / "memo") == expected
    assert len(parsed) == 3


def test_a_memo_that_cannot_be_written_only_costs_time(tree, tmp_path):
    tree(ACME)
    (tmp_path / "file").write_text("")
    assert read_with(tmp_path / "file" / "memo") == read_sources(["acme.step"])


@pytest.mark.parametrize("root", ["acme.absent", "absent", "acme.leaf.value", "acme.space", "math", "__main__"])
def test_root_without_source_text_is_refused_by_name(tree, root):
    tree(ACME)
    with pytest.raises(SourceUnreadable, match=f"module {root} has no Python source file") as raised:
        read_sources([root])
    assert raised.value.exit_code == 3


def test_module_made_by_hand_has_no_source(monkeypatch):
    monkeypatch.setitem(sys.modules, "handmade", types.ModuleType("handmade"))
    with pytest.raises(SourceUnreadable, match="handmade"):
        hash_source("handmade")


def test_imported_module_that_is_bytecode_alone_is_refused(tree):
    root = tree(ACME | {"acme/kernel.py": "from . import leaf"})
    py_compile.compile(str(root / "acme" / "leaf.py"), cfile=str(root / "acme" / "leaf.pyc"))
    (root / "acme" / "leaf.py").unlink()
    importlib.invalidate_caches()
    with pytest.raises(SourceUnreadable, match=r"acme\.leaf"):
        read_sources(["acme.kernel"])


def test_package_in_an_archive_is_refused(tree, monkeypatch):
    root = tree({})
    with zipfile.ZipFile(root / "packed.zip", "w") as archive:
        archive.writestr("packed/__init__.py", "")
        archive.writestr("packed/kernel.py", "")
    monkeypatch.syspath_prepend(str(root / "packed.zip"))
    with pytest.raises(SourceUnreadable, match=r"packed"):
        read_sources(["packed.kernel"])


def test_extension_modules_are_left_out(tree):
    root = tree(ACME | {"acme/kernel.py": "from . import native"})
    (root / "acme" / f"native{importlib.machinery.EXTENSION_SUFFIXES[0]}").write_bytes(b"\x7fELF")
    assert names_of("acme.kernel") == ["acme", "acme.kernel"]


@pytest.mark.parametrize("text", ["def f(:\n", "print 'two'\n", "a\0b", "# coding: nonsense\n"])
def test_text_that_is_no_python_is_refused_by_module_and_file(tree, text):
    root = tree(ACME | {"acme/kernel.py": "from . import leaf", "acme/leaf.py": text})
    with pytest.raises(UnparsableSource, match=r"module acme\.leaf") as raised:
        read_sources(["acme.kernel"])
    assert raised.value.path == str(root / "acme" / "leaf.py")


def test_check_names_the_modules_whose_text_differs_or_is_gone(tree):
    root = tree(ACME | {"acme/kernel.py": "from . import leaf, step, unused"})
    sources = read_sources(["acme.kernel"])
    assert check_sources([sources]) == ((),)
    (root / "acme" / "leaf.py").write_text("value = 2")
    (root / "acme" / "step.py").unlink()
    py_compile.compile(str(root / "acme" / "unused.py"), cfile=str(root / "acme" / "unused.pyc"))
    (root / "acme" / "unused.py").unlink()
    importlib.invalidate_caches()
    assert check_sources([sources]) == (("acme.leaf", "acme.step", "acme.unused"),)


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


def test_threads_of_different_depths_parse_modules_at_once() -> None:
    # CPython 3.11 mixes up their depths where garbage is collected, and so threads change, in the middle of a tree.
    text = Path(planfreeze.sources.__file__).read_bytes()
    threshold, interval = gc.get_threshold(), sys.getswitchinterval()

    class Slow:
        def __del__(self) -> None:
            sum(range(100))

    def parse(depth: int) -> None:
        if depth:
            parse(depth - 1)
            return
        for _ in range(50):
            garbage = Slow()
            garbage.me = garbage
            planfreeze.sources.imported_names("module", "package", Path("module.py"), text)

    gc.set_threshold(20)
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(parse, (0, 3, 6, 9)))
    finally:
        gc.set_threshold(*threshold)
        sys.setswitchinterval(interval)
