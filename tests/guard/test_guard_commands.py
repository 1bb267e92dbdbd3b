"""Command lines: compilers are found behind paths, links, shells and wrappers; nothing else is taken for one."""

import shlex
from pathlib import Path

import pytest

from planfreeze.guard.commands import find_compiler

COMPILERS = [
    "gcc -c x.c",
    "/usr/lib/gcc/x86_64-linux-gnu/12/cc1 x.c",
    "gcc-12 x.c",
    "clang++-17 x.cpp",
    "x86_64-linux-gnu-gcc-12 x.c",
    "aarch64-conda-linux-gnu-c++ x.cpp",
    "ptxas-blackwell --gpu-name sm_120a x.ptx",
    "nvcc --keep -c x.cu",
    "ld.lld a.o",
    "ninja",
    "ninja -v",
    "ninja all",
    "gcc -Wl,-t -o tool x.o -lm",
    "make -j8",
    "cmake --build .",
    "env -u HOME CC=gcc c++ x.cpp",
    "env -S 'gcc x.c'",
    "ccache gcc x.c",
    "sudo -u nobody nice -n 5 timeout -s KILL 5 gcc x.c",
    "flock -w 5 build.lock gcc x.c",
    "doas -u nobody chrt -b 0 gcc x.c",
    "sh -c 'gcc x.c'",
    "bash -euo pipefail -c 'cd build && ninja'",
    "bash --norc -lc 'nvcc x.cu'",
    "sh -c 'CC=gcc; if true; then clang x.c; fi'",
    "sh -c 'echo $(gcc -c x.c)'",
    "sh -c 'echo \"`gcc -c x.c`\"'",
    "sh -c '(ls; as x.s) | cat'",
    "sh -c 'eval \"gcc x.c\"'",
    "sh -c '2>/dev/null gcc x.c'",
    "sh -c 'ls\ngcc x.c'",
    "sh -c 'gcc x.c \"open quote'",
    "sh -c '$PLANFREEZE_TEST_CC x.c'",
    "python3.11 -m ninja -v",
    "python /somewhere/bin/ninja -C build",
    "sh -c \"bash -c 'sh -c gcc\\ x.c'\"",
]
OTHERS = [
    "",
    "ls gcc",
    "which gcc",
    "echo gcc -c x.c",
    "sh -c 'echo gcc; which nvcc'",
    "sh -c 'echo \"gcc x.c\"'",
    "sh script.sh gcc",
    "gcc --version",
    "gcc -v",
    "gcc -print-file-name=libc.so",
    "gcc -dumpfullversion -dumpversion",
    "gcc -Wl,-t -o /tmp/x -lcuda",
    "ld -t -L /usr/lib -o /dev/null -lcuda",
    "ptxas --version",
    "nvcc --list-gpu-arch",
    "ninja --version",
    "ccache --show-stats",
    "nvidia-smi",
    "cuobjdump --dump-sass x.cubin",
    "nvdisasm x.cubin",
    "ldconfig -p",
    "python -c 'import gcc'",
    "python -m pip list",
    "python train.py gcc",
    "gcc-ar rcs x.a",
    "assemble x",
    "git-ld x",
    "env",
    "sh -c ''",
]


@pytest.mark.parametrize("line", COMPILERS)
def test_a_compiler_is_found(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PLANFREEZE_TEST_CC", "ccache gcc")
    words = shlex.split(line)
    assert find_compiler(words[0], words) is not None


@pytest.mark.parametrize("line", OTHERS)
def test_what_compiles_nothing_is_let_through(line: str) -> None:
    words = shlex.split(line) or [""]
    assert find_compiler(words[0], words) is None


def test_a_link_to_a_compiler_is_one_and_a_copy_is_not(tmp_path: Path) -> None:
    compiler = tmp_path / "bin" / "gcc-99"
    compiler.parent.mkdir()
    compiler.write_text("#!/bin/sh\n")
    compiler.chmod(0o755)
    (tmp_path / "link").symlink_to(compiler)
    (tmp_path / "bin" / "tool").symlink_to("../link")
    (tmp_path / "bin" / "copy").write_bytes(compiler.read_bytes())
    (tmp_path / "bin" / "copy").chmod(0o755)
    search_path = str(compiler.parent)
    assert find_compiler(str(tmp_path / "link"), ["link", "x.c"]) == (str(tmp_path / "link"), ("x.c",))
    assert find_compiler("tool", ["tool", "x.c"], search_path) is not None
    assert find_compiler("tool", ["tool", "x.c"]) is None
    assert find_compiler("copy", ["copy", "x.c"], search_path) is None


def test_nested_shells_are_read_to_a_limit() -> None:
    line = "gcc x.c"
    for _ in range(3):
        line = f"sh -c {shlex.quote(line)}"
    assert find_compiler("sh", shlex.split(line)) == ("gcc", ("x.c",))
    for _ in range(9):
        line = f"sh -c {shlex.quote(line)}"
    assert find_compiler("sh", shlex.split(line)) is None


def test_the_words_of_the_compiler_are_told() -> None:
    assert find_compiler("sh", ["sh", "-c", "cd /x && CC=1 ccache g++ -c 'a b.cpp'"]) == ("g++", ("-c", "a b.cpp"))
