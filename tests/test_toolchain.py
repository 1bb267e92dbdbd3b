"""Toolchains: installed compilers by content, remembered behind what stat says of their files."""

import importlib
import os
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest

from planfreeze import memory
from planfreeze import toolchain as toolchains
from planfreeze.cache.claims import create_claimed
from planfreeze.errors import CompilerMissing, ToolchainUnreadable
from planfreeze.toolchain import Toolchain, find_toolchain

# Site directory of a compiler as pip leaves it.
INSTALLED = {
    "triton/__init__.py": "__version__ = '3.9.0'\n",
    "triton/compiler.py": "def compile(): ...\n",
    "triton/_C/libtriton.so": "\x7fELF compiler",
    "triton/backends/nvidia/bin/ptxas": "\x7fELF assembler",
    "triton/__pycache__/__init__.cpython-311.pyc": "bytecode",
    "../../../bin/proton": "#!/home/somebody/venv/bin/python3\n",
    "triton-3.9.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: triton\nVersion: 3.9.0\nSummary: Compiler\n",
    "triton-3.9.0.dist-info/INSTALLER": "pip\n",
    "triton-3.9.0.dist-info/REQUESTED": "",
    "triton-3.9.0.dist-info/direct_url.json": '{"url": "file:///home/somebody/triton.whl"}',
}
RECORD = "triton-3.9.0.dist-info/RECORD"


def install(prefix: Path, files: dict[str, str]) -> Path:
    """Write a site directory below ``prefix`` and its list of files."""
    site = prefix / "lib" / "python" / "site-packages"
    for name, text in files.items():
        path = site / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    listed = [*files, RECORD]
    (site / RECORD).write_text("".join(f"{name},,\n" for name in listed))
    return site


class Search:
    """Find toolchains with some folders and the standard library as the whole search path."""

    def __init__(self, cache: Path) -> None:
        self.cache = cache

    def find(self, *sites: Path, dialect: str = "triton") -> Toolchain:
        standard = [sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED")]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "path", [*map(str, sites), *standard])
            importlib.invalidate_caches()
            return find_toolchain(dialect, self.cache)

    def fingerprint(self, site: Path) -> str:
        return self.find(site).fingerprint


@pytest.fixture
def search(tmp_path):
    return Search(tmp_path / "cache" / "toolchains")


@pytest.fixture
def site(tmp_path):
    """The site directory of an installed compiler."""
    return install(tmp_path / "environment", INSTALLED)


def test_toolchain_names_dialect_and_version_and_hashes_content(site, search):
    found = search.find(site)
    assert (found.dialect, found.version, len(found.fingerprint)) == ("triton", "3.9.0", 64)


CONTENT = [name for name in INSTALLED if name.startswith("triton/") and not name.endswith(".pyc")]


@pytest.mark.parametrize("name", [*CONTENT, "triton-3.9.0.dist-info/METADATA"])
def test_edit_of_any_file_changes_the_fingerprint_with_version_size_and_mtime_kept(site, search, name):
    before = search.fingerprint(site)
    path, status = site / name, (site / name).stat()
    text = path.read_text()
    path.write_text(text[:-2] + "!" + text[-1])
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert path.stat().st_size == status.st_size and path.stat().st_mtime_ns == status.st_mtime_ns
    after = search.find(site)
    assert after.fingerprint != before and after.version == "3.9.0"


@pytest.mark.parametrize("name", [name for name in INSTALLED if name not in CONTENT and "METADATA" not in name])
def test_traces_of_the_installation_do_not_count(site, search, name):
    before = search.fingerprint(site)
    (site / name).write_text("something else")
    assert search.fingerprint(site) == before


def test_fingerprint_is_the_same_in_another_environment_at_another_time(site, search, tmp_path):
    before = search.fingerprint(site)
    other = install(tmp_path / "other", INSTALLED | {"../../../bin/proton": "#!/opt/python3\n"})
    for then in (1, 2**32):  # in 1970 and in 2106
        for path in other.rglob("*"):
            os.utime(path, (then, then))
        assert search.fingerprint(other) == before


def test_file_more_or_less_or_under_another_name_changes_the_fingerprint(tmp_path, search):
    less = {name: text for name, text in INSTALLED.items() if name != "triton/compiler.py"}
    variants = [
        INSTALLED,
        less,
        less | {"triton/compilers.py": INSTALLED["triton/compiler.py"]},
        INSTALLED | {"triton/x": ""},
    ]
    prints = set()
    for number, files in enumerate(variants):
        prints.add(search.fingerprint(install(tmp_path / str(number), files)))
    assert len(prints) == len(variants)


def test_listed_file_that_is_gone_changes_the_fingerprint(site, search):
    before = search.fingerprint(site)
    (site / "triton" / "compiler.py").unlink()
    assert search.fingerprint(site) != before


def test_fingerprint_is_remembered_while_stat_says_nothing_changed(site, search, monkeypatch):
    hashed = []
    hash_files = toolchains.hash_files
    monkeypatch.setattr(toolchains, "hash_files", lambda files: hashed.append(1) or hash_files(files))
    first = search.fingerprint(site)
    assert search.fingerprint(site) == first and len(hashed) == 1
    os.utime(site / "triton" / "compiler.py", (1, 1))
    assert search.fingerprint(site) == first and len(hashed) == 2, "a new mtime costs a hash and changes nothing"


def test_remembered_fingerprint_is_used_and_not_recomputed(site, search):
    """Only a change that keeps size, inode, mtime and ctime goes unseen: here the memory is what is changed."""
    search.fingerprint(site)
    (remembered,) = search.cache.iterdir()
    remembered.write_bytes(memory.seal(remembered, "e" * 64))
    assert search.fingerprint(site) == "e" * 64


DAMAGE = {
    "emptied": lambda content: b"",
    "cut off": lambda content: content[:64],
    "cut in the seal": lambda content: content[:-8],
    "longer": lambda content: content + b"0",
    "a digit changed": lambda content: bytes([content[0] ^ 1]) + content[1:],
    "a digit of the seal changed": lambda content: content[:70] + bytes([content[70] ^ 1]) + content[71:],
    "no text": lambda content: b"\xff" * 130,
    "zeros": lambda content: bytes(130),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_memory_is_ignored_and_written_again(site, search, damage):
    before = search.fingerprint(site)
    (remembered,) = search.cache.iterdir()
    whole = remembered.read_bytes()
    remembered.write_bytes(DAMAGE[damage](whole))
    assert search.fingerprint(site) == before
    assert [path.read_bytes() for path in search.cache.iterdir()] == [whole]


def test_memory_of_other_files_does_not_serve_these(site, search):
    before = search.fingerprint(site)
    (remembered,) = search.cache.iterdir()
    (site / "triton" / "compiler.py").write_text("changed")
    changed = search.fingerprint(site)
    (newer,) = (path for path in search.cache.iterdir() if path != remembered)
    shutil.copy(remembered, newer)
    assert search.fingerprint(site) == changed != before


def test_directory_that_cannot_be_written_only_costs_time(site, tmp_path):
    (tmp_path / "file").write_text("")
    assert len(Search(tmp_path / "file" / "toolchains").fingerprint(site)) == 64


def test_what_a_killed_process_left_half_written_is_removed(site, search):
    search.cache.mkdir(parents=True, exist_ok=True)
    dead, handle = create_claimed(search.cache, memory.PARTIAL)
    os.close(handle)
    living, handle = create_claimed(search.cache, memory.PARTIAL)
    found = search.find(site)
    os.close(handle)
    assert not dead.exists() and living.exists()
    (remembered,) = set(search.cache.iterdir()) - {living}
    assert memory.recall(remembered) == found.fingerprint


@pytest.mark.parametrize(("dialect", "distribution"), [("triton", "triton"), ("cute", "nvidia-cutlass-dsl")])
def test_missing_compiler_names_the_extra_to_install(tmp_path, search, dialect, distribution):
    with pytest.raises(
        CompilerMissing, match=rf"{distribution} is not installed.*pip install 'planfreeze\[build\]'"
    ) as raised:
        search.find(tmp_path, dialect=dialect)
    assert raised.value.exit_code == 6


def test_part_of_a_compiler_alone_is_no_compiler(tmp_path, search):
    libraries = tmp_path / "nvidia_cutlass_dsl_libs_core-4.8.1.dist-info"
    libraries.mkdir()
    (libraries / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cutlass-dsl-libs-core\nVersion: 4.8.1\n")
    (libraries / "RECORD").write_text("")
    with pytest.raises(CompilerMissing, match="nvidia-cutlass-dsl is not installed"):
        search.find(tmp_path, dialect="cute")


def test_every_distribution_of_a_compiler_counts(tmp_path, search):
    def install_cute(prefix: Path, library: str) -> Path:
        for name, text in (("nvidia-cutlass-dsl", "import x\n"), ("nvidia-cutlass-dsl-libs-cu12", library)):
            folder = prefix / f"{name.replace('-', '_')}-4.8.1.dist-info"
            folder.mkdir(parents=True)
            (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 4.8.1\n")
            file = "cutlass/__init__.py" if text != library else "cutlass/lib.so"
            (prefix / "cutlass").mkdir(exist_ok=True)
            (prefix / file).write_text(text)
            (folder / "RECORD").write_text(f"{file},,\n")
        return prefix

    found = []
    for number, library in enumerate(("one", "two")):
        found.append(search.find(install_cute(tmp_path / str(number), library), dialect="cute"))
    assert found[0].version == found[1].version == "4.8.1"
    assert found[0].fingerprint != found[1].fingerprint


def test_compiler_without_a_list_of_its_files_is_refused(site, search):
    (site / RECORD).unlink()
    with pytest.raises(ToolchainUnreadable, match=r"triton is installed but has no list of its files") as raised:
        search.find(site)
    assert raised.value.exit_code == 6


def test_compiler_that_is_imported_from_elsewhere_is_refused(site, search, tmp_path):
    checkout = tmp_path / "checkout"
    (checkout / "triton").mkdir(parents=True)
    (checkout / "triton" / "__init__.py").write_text("")
    with pytest.raises(ToolchainUnreadable, match=r"checkout/triton/__init__\.py, which is none of its files"):
        search.find(checkout, site)


@pytest.mark.parametrize("dialect", ["triton", "cute"])
def test_installed_compilers_are_found_without_importing_them(interpreter, toolchains, dialect):
    interpreter.run(
        """
        import sys
        from pathlib import Path
        from planfreeze.toolchain import Toolchain, find_toolchain
        found = find_toolchain(sys.argv[1], Path(sys.argv[2]))
        assert found.version and len(found.fingerprint) == 64
        assert not {"triton", "cutlass"} & set(sys.modules)
        """,
        dialect,
        str(toolchains),
    )
