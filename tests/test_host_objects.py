"""Host objects are read without loading them: their machine, their one cubin, the functions they need."""

import platform
import random
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from planfreeze.errors import InvalidHostObject
from planfreeze.host_objects import HostFacts, is_host_object, read_host_object

CUBIN = b"\x7fELF" + bytes(range(200))


def container(*cubins: bytes, kind: int = 2) -> bytes:
    entries = b"".join(struct.pack("<HHIQ", kind, 0x101, 72, len(cubin)) + bytes(56) + cubin for cubin in cubins)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(entries)) + entries


@pytest.fixture
def compile_c(tmp_path: Path):
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("objects of this test are made by a C compiler")

    def make(kernels: bytes | None, name: str = "kernels_binary") -> bytes:
        source, made = tmp_path / "host.c", tmp_path / "host.o"
        numbers = ",".join(map(str, kernels or b""))
        data = f"static const unsigned char {name}[{len(kernels or b'')}] = {{{numbers}}};\n" if kernels else ""
        used = f"_cudaLibraryLoadData({name});" if kernels else ""
        source.write_text(f"{data}int _cudaLibraryLoadData(const void *);\nvoid entry(void) {{ {used} }}\n")
        subprocess.run([compiler, "-c", "-O0", "-fPIC", "-o", str(made), str(source)], check=True)
        return made.read_bytes()

    return make


def test_an_object_tells_its_machine_cubin_and_needs(compile_c) -> None:
    read = read_host_object(compile_c(container(CUBIN)))
    assert (read.machine, read.cubin) == (platform.machine(), CUBIN)
    assert "_cudaLibraryLoadData" in read.undefined and "entry" not in read.undefined


def test_an_object_without_kernels_has_no_cubin(compile_c) -> None:
    data = compile_c(None)
    assert read_host_object(data).cubin is None and is_host_object(data)


def test_something_else_is_no_object() -> None:
    for data in (b"", b"MZ", CUBIN, bytes(64)):
        assert not is_host_object(data)
        with pytest.raises(InvalidHostObject):
            read_host_object(data)


@pytest.mark.parametrize(
    "kernels", [container(CUBIN, CUBIN), container(CUBIN, kind=1), container(CUBIN)[:-1], b"\0" * 100]
)
def test_a_container_of_anything_but_one_whole_cubin_is_refused(compile_c, kernels: bytes) -> None:
    with pytest.raises(InvalidHostObject):
        read_host_object(compile_c(kernels))


def test_damage_is_read_or_refused_and_never_anything_else(compile_c) -> None:
    data = compile_c(container(CUBIN))
    chance = random.Random(5)
    damaged = [data[:length] for length in range(0, len(data), 37)]
    for _ in range(500):
        flipped = bytearray(data)
        for _ in range(chance.randint(1, 4)):
            flipped[chance.randrange(len(flipped))] = chance.randrange(256)
        damaged.append(bytes(flipped))
    refused = 0
    for one in damaged:
        try:
            read_host_object(one)
        except InvalidHostObject:
            refused += 1
    assert refused > len(damaged) // 10


def test_facts_that_are_none_are_refused() -> None:
    assert HostFacts.decode(b'{"dsl": "4.8.1", "entry": "e", "kernels": {}}').entry == "e"
    for data in (b"", b"[]", b"{}", b'{"dsl": "4.8.1"}', b"\xff"):
        with pytest.raises(InvalidHostObject):
            HostFacts.decode(data)
