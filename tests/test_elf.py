"""Cubins of both compilers and both ptxas are read like cuobjdump reads them; damaged ones are refused."""

import os
import random
import re
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest

from planfreeze.elf import Cubin, read_cubin
from planfreeze.errors import InvalidCubin

from .cubins import ASSEMBLED, CUTE_SCRIPT, PTX, TRITON_SCRIPT, nvidia_tool, run


@pytest.fixture(scope="session")
def cubin_paths(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Cubins by name, "<maker>-<arch>", all compiled here."""
    folder = tmp_path_factory.mktemp("cubins")
    (folder / "triton_script.py").write_text(TRITON_SCRIPT)
    (folder / "cute_script.py").write_text(CUTE_SCRIPT)
    common = {**os.environ, "TRITON_CACHE_DIR": str(folder / "triton"), "TRITON_DEFAULT_FP_FUSION": "1"}
    scripts = [("triton_script.py", {}), *(("cute_script.py", {"CUTE_DSL_ARCH": a}) for a in ("sm_90a", "sm_120a"))]
    for script, extra in scripts:
        subprocess.run([sys.executable, script], check=True, cwd=folder, env={**common, **extra})
    for tool, arch in ASSEMBLED:
        (folder / "text.ptx").write_text(PTX.format(arch=arch, large=1000 if arch == "sm_80" else 20000))
        run(nvidia_tool(tool), f"-arch={arch}", str(folder / "text.ptx"), "-o", str(folder / f"{tool}-{arch}.cubin"))
    made = {path.stem: path for path in folder.glob("*-*.cubin")}
    assert len(made) == 5 + len(ASSEMBLED)
    return made


@pytest.fixture(scope="session")
def cubins(cubin_paths: dict[str, Path]) -> dict[str, Cubin]:
    return {name: read_cubin(path.read_bytes()) for name, path in cubin_paths.items()}


def test_every_arch_is_read_with_its_suffix(cubins: dict[str, Cubin]) -> None:
    expected = {"triton-90": "sm_90a", "triton-100": "sm_100a", "triton-120": "sm_120a"}
    expected |= {"cute-sm_90a": "sm_90a", "cute-sm_120a": "sm_120a"}
    expected |= {f"{tool}-{arch}": arch for tool, arch in ASSEMBLED}
    assert {name: cubin.arch for name, cubin in cubins.items()} == expected


def test_registers_stack_and_shared_memory_are_those_of_cuobjdump(
    cubin_paths: dict[str, Path], cubins: dict[str, Cubin]
) -> None:
    pattern = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+)")
    for name, path in cubin_paths.items():
        text = run(nvidia_tool("cuobjdump"), "-res-usage", str(path))
        expected = sorted((symbol, int(r), int(s), int(m)) for symbol, r, s, m in pattern.findall(text))
        found = sorted((k.symbol, k.registers, k.stack_bytes, k.shared_bytes) for k in cubins[name].kernels)
        assert found == expected, name
        assert found


def test_parameters_are_those_of_cuobjdump(cubin_paths: dict[str, Path], cubins: dict[str, Cubin]) -> None:
    pattern = re.compile(r"Ordinal : 0x(\w+)\s+Offset  : 0x(\w+)\s+Size    : 0x(\w+)")
    for name, path in cubin_paths.items():
        text = run(nvidia_tool("cuobjdump"), "-elf", str(path))
        for kernel in cubins[name].kernels:
            section = text.split(f"\n.nv.info.{kernel.symbol}\n", 1)[1].split("\n\n\n", 1)[0]
            expected = sorted(tuple(int(part, 16) for part in row) for row in pattern.findall(section))
            found = zip(kernel.parameter_offsets, kernel.parameter_sizes, strict=True)
            assert [(ordinal, *row) for ordinal, row in enumerate(found)] == expected, (name, kernel.symbol)


def test_what_was_written_in_the_sources_is_read_back(cubins: dict[str, Cubin]) -> None:
    for name, cubin in cubins.items():
        kernels = {kernel.symbol: kernel for kernel in cubin.kernels}
        if name.startswith("triton"):
            (kernel,) = kernels.values()
            assert kernel.symbol == "spread_sum"
            assert kernel.max_threads == 256
            # Triton adds the addresses of its two scratch areas.
            assert kernel.parameter_sizes == (8, 8, 4, 8, 8, 8)
        elif name.startswith("cute"):
            (kernel,) = kernels.values()
            assert kernel.required_block == (96, 1, 1)
            assert kernel.parameter_sizes == (8, 4, 8, 4)
            assert kernel.parameter_offsets == (0, 8, 16, 24)
        else:
            large_bytes = 1000 if name.endswith("sm_80") else 20000
            assert kernels["large"].required_block == (96, 2, 1)
            assert kernels["large"].max_threads == 192
            assert kernels["large"].parameter_sizes == (8, large_bytes, 1)
            assert kernels["large"].stack_bytes >= 256
            assert kernels["large"].shared_bytes == 4100 + (0 if name.endswith("sm_80") else 1024)
            assert (kernels["limited"].max_threads, kernels["limited"].required_block) == (256, None)
            assert kernels["limited"].parameter_sizes == (8, 4, 40)
            assert (kernels["bare"].max_threads, kernels["bare"].parameter_sizes) == (None, ())


@pytest.mark.parametrize("data", [b"", b"\x7fELF", bytes(64), bytes(5000), b"MZ" + bytes(5000), os.urandom(5000)])
def test_what_is_no_cubin_is_refused(data: bytes) -> None:
    with pytest.raises(InvalidCubin) as caught:
        read_cubin(data)
    assert caught.value.exit_code == 4


def test_a_host_library_is_refused() -> None:
    with pytest.raises(InvalidCubin, match="not CUDA"):
        read_cubin(Path(sys.executable).read_bytes())


def test_every_truncation_is_refused(cubin_paths: dict[str, Path]) -> None:
    for name in ("triton-120", "cute-sm_90a"):
        data = cubin_paths[name].read_bytes()
        start = struct.unpack_from("<Q", data, 40)[0]
        end_of_sections = start + 64 * struct.unpack_from("<H", data, 60)[0]
        # Program headers may follow the section headers; what lies behind those is not read.
        for size_bytes in (*range(0, end_of_sections, 7), end_of_sections - 1):
            with pytest.raises(InvalidCubin):
                read_cubin(data[:size_bytes])


@pytest.mark.parametrize(
    ("offset", "value", "reason"),
    [
        (4, b"\x01", "starts with"),
        (5, b"\x02", "starts with"),
        (7, b"\x00", "unknown ABI"),
        (8, b"\x63", "unknown ABI"),
        (18, b"\x3e\x00", "machine 62"),
        (58, b"\x20\x00", "section headers of 32 bytes"),
        (62, b"\xff\xff", "no section names"),
        (40, b"\xff" * 8, "bytes"),
        (60, b"\xff\xff", "more than"),
    ],
)
def test_a_damaged_header_is_refused_with_its_reason(
    cubin_paths: dict[str, Path], offset: int, value: bytes, reason: str
) -> None:
    data = bytearray(cubin_paths["triton-90"].read_bytes())
    data[offset : offset + len(value)] = value
    with pytest.raises(InvalidCubin, match=reason):
        read_cubin(bytes(data))


def replace_once(data: bytes, old: bytes, new: bytes) -> bytes:
    assert data.count(old) == 1
    return data.replace(old, new)


def test_parameters_that_overlap_or_are_left_out_are_refused(cubin_paths: dict[str, Path]) -> None:
    data = cubin_paths["triton-90"].read_bytes()
    second = struct.pack("<BBHIHH", 4, 0x17, 12, 0, 1, 8)
    for ordinal, offset, reason in ((1, 7, "overlapping"), (9, 8, "leaves out"), (2, 8, "twice")):
        changed = replace_once(data, second, struct.pack("<BBHIHH", 4, 0x17, 12, 0, ordinal, offset))
        with pytest.raises(InvalidCubin, match=reason):
            read_cubin(changed)


def patch_section(data: bytes, index: int, field_offset: int, value: bytes) -> bytes:
    """Overwrite a field of the header of a section."""
    place = struct.unpack_from("<Q", data, 40)[0] + 64 * index + field_offset
    return data[:place] + value + data[place + len(value) :]


def test_a_section_past_the_end_and_two_of_one_name_are_refused(cubin_paths: dict[str, Path]) -> None:
    data = cubin_paths["triton-90"].read_bytes()
    for index in range(1, 5):
        with pytest.raises(InvalidCubin, match="past its end"):
            read_cubin(patch_section(data, index, 32, struct.pack("<Q", len(data))))
    first_name = data[struct.unpack_from("<Q", data, 40)[0] + 64 :][:4]
    with pytest.raises(InvalidCubin, match="two sections of one name"):
        read_cubin(patch_section(data, 2, 0, first_name))


def test_two_kernels_of_one_name_are_refused(cubin_paths: dict[str, Path]) -> None:
    data = cubin_paths["ptxas-blackwell-sm_90a"].read_bytes()
    start = struct.unpack_from("<Q", data, 40)[0]
    sections = [struct.unpack_from("<IIQQQQIIQQ", data, start + 64 * n) for n in range(data[60])]
    (table,) = [section for section in sections if section[1] == 2]
    kernels = [
        place
        for place in range(table[4], table[4] + table[5], 24)
        if data[place + 4] & 0xF == 2 and data[place + 5] & 0x10
    ]
    assert len(kernels) == 3
    changed = bytearray(data)
    changed[kernels[1] : kernels[1] + 4] = data[kernels[0] : kernels[0] + 4]
    with pytest.raises(InvalidCubin, match="two kernels of one name"):
        read_cubin(bytes(changed))


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Damage a cubin in one of the ways disks, networks and editors do, mostly in what is read."""
    changed = bytearray(data)
    start = struct.unpack_from("<Q", data, 40)[0]
    regions = [(0, 64), (64, len(data)), (start, len(data))]
    for _ in range(chance.randint(1, 6)):
        low, high = chance.choice(regions)
        place = chance.randrange(low, high)
        size_bytes = chance.choice((1, 1, 1, 2, 4, 8, 64, 512))
        match chance.randrange(4):
            case 0:
                changed[place : place + size_bytes] = bytes(size_bytes)
            case 1:
                changed[place : place + size_bytes] = chance.randbytes(size_bytes)
            case 2:
                changed[place : place + size_bytes] = b"\xff" * size_bytes
            case 3:
                other = chance.randrange(len(data))
                changed[place : place + size_bytes] = data[other : other + size_bytes]
    return bytes(changed[: chance.randrange(len(changed))]) if chance.random() < 0.1 else bytes(changed)


def test_any_damage_is_refused_or_read_quickly(cubin_paths: dict[str, Path]) -> None:
    chance = random.Random(20)
    refused = 0
    for name in ("triton-90", "triton-120", "cute-sm_90a", "cute-sm_120a", "ptxas-blackwell-sm_120a"):
        data = cubin_paths[name].read_bytes()
        for _ in range(4000):
            started = time.process_time()
            try:
                assert isinstance(read_cubin(mutate(data, chance)), Cubin)
            except InvalidCubin as error:
                refused += 1
                assert str(error)
            assert time.process_time() - started < 1
    assert 2000 < refused < 20000, "neither all nor none of the damage is harmless"


def test_a_small_file_cannot_ask_for_the_work_of_a_large_one() -> None:
    """4,000 sections that all claim the same 8 MB of attributes, names and symbols."""
    count, body = 4000, b"\x02\x09\x01\x00" * 2_000_000
    header = struct.pack(
        "<7sBB7xHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 0x41, 8, 2, 190, 1, 0, 0, 64, 0x600780A, 64, 0, 0, 64, count, 0
    )
    table = b"".join(
        struct.pack("<IIQQQQIIQQ", n, 0x70000000, 0, 0, 64 + 64 * count, len(body), 0, 0, 1, 24) for n in range(count)
    )
    started = time.process_time()
    with pytest.raises(InvalidCubin, match="attributes larger than itself"):
        read_cubin(header + table + body)
    assert time.process_time() - started < 2
