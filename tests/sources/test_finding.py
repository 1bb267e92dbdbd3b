"""Finding sources: which text makes a program, without importing it."""

import hashlib
import importlib
import importlib.machinery
import py_compile
import sys
import types
import zipfile

import pytest

from planfreeze.errors import SourceUnreadable, UnparsableSource
from planfreeze.sources import Sources, check_sources, hash_source, read_sources

from .conftest import ACME, names_of

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
