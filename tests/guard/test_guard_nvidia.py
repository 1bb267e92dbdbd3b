"""The roads of NVIDIA's libraries: NVRTC, NVVM, linkers and PTX are refused before they compile; cubins load."""

import ctypes
import struct

import pytest

from planfreeze.guard.images import is_machine_code, read_file, read_image

pytest.importorskip("cuda.core")

SETUP = """
from concurrent.futures import ThreadPoolExecutor
from planfreeze.guard import Guard, installed_roads, no_compilation, prove
SOURCE = 'extern "C" __global__ void fill(int* x) { x[threadIdx.x] = 1; }'
PTX = b".version 8.0\\n.target sm_90\\n.address_size 64\\n\\0"
CUBIN = b"\\x7fELF" + bytes(60)
OPTIONS = [b"--gpu-architecture=sm_90"]
def make_nvrtc():
    status, program = nvrtc.nvrtcCreateProgram(SOURCE.encode(), b"fill.cu", 0, [], [])
    assert status.value == 0, status
    return program
"""

BINDINGS = """
from cuda.bindings import driver, nvjitlink, nvrtc, nvvm, runtime
from cuda.bindings.nvrtc import nvrtcCompileProgram as bound
kept = [nvrtc.nvrtcCompileProgram]
"""

CORE = """
from cuda.core import Linker, ObjectCode, Program, ProgramOptions
def make_program():
    return Program(SOURCE, "c++", ProgramOptions(arch="sm_90"))
"""


def test_nvrtc_is_refused_under_every_name_a_module_bound(run_script) -> None:
    checks = """
    original = nvrtc.nvrtcCompileProgram
    program = make_nvrtc()
    with no_compilation() as guard:
        assert refused(nvrtc.nvrtcCompileProgram, program, 1, OPTIONS).attempt.signature == OPTIONS[0].decode()
        refused(bound, program, 1, OPTIONS)
        refused(lambda: ThreadPoolExecutor(1).submit(bound, program, 1, OPTIONS).result())
        refused(nvvm.compile_program, 0, 0, [])
        refused(nvjitlink.create, 1, ["-arch=sm_90"])
        from cuda.bindings.nvrtc import nvrtcCompileProgram as bound_while_armed
        refused(bound_while_armed, program, 1, OPTIONS)
        assert nvrtc.nvrtcVersion()[0].value == 0
    assert guard.attempts == {"nvrtc": 6}
    assert nvrtc.nvrtcCompileProgram is bound is original is kept[0]
    for compile_program in (bound, bound_while_armed):
        assert compile_program(make_nvrtc(), 1, OPTIONS)[0].value == 0
    linker = nvjitlink.create(1, ["-arch=sm_90"])
    nvjitlink.destroy(linker)
    assert guard.attempts == {"nvrtc": 6}
    with no_compilation("count") as guard:
        assert bound(make_nvrtc(), 1, OPTIONS)[0].value == 0
    assert guard.attempts == {"nvrtc": 1}
    """
    run_script(SETUP, BINDINGS, checks)


def test_a_name_another_party_put_in_place_survives(run_script) -> None:
    checks = """
    original, heard = nvrtc.nvrtcCompileProgram, []
    def outer(*arguments):
        heard.append(arguments)
        return inner(*arguments)
    with no_compilation() as guard:
        inner = nvrtc.nvrtcCompileProgram
        nvrtc.nvrtcCompileProgram = outer
        refused(nvrtc.nvrtcCompileProgram, make_nvrtc(), 1, OPTIONS)
    assert nvrtc.nvrtcCompileProgram is outer and len(heard) == 1
    assert nvrtc.nvrtcCompileProgram(make_nvrtc(), 1, OPTIONS)[0].value == 0
    with no_compilation() as guard:
        refused(nvrtc.nvrtcCompileProgram, make_nvrtc(), 1, OPTIONS)
    assert guard.attempts == {"nvrtc": 1} and nvrtc.nvrtcCompileProgram is outer
    """
    run_script(SETUP, BINDINGS, checks)


def test_programs_of_cuda_core_are_refused_and_compile_after_release(run_script) -> None:
    checks = """
    attributes = {owner: dict(vars(owner)) for owner in (Program, Linker, ObjectCode)}
    made = make_program()
    method = made.compile
    with no_compilation() as guard:
        error = refused(made.compile, "cubin", name_expressions=("fill",))
        assert error.attempt.road == "cuda-core" and error.attempt.signature == "target cubin, fill", error
        assert "script.py:" in refused(lambda: make_program().compile("cubin")).attempt.location
        refused(lambda: Linker.link(None, "cubin"))
        refused(lambda: ThreadPoolExecutor(1).submit(made.compile, "cubin").result())
    assert guard.attempts == {"cuda-core": 4}
    assert {owner: dict(vars(owner)) for owner in attributes} == attributes
    assert made.compile("cubin").code[:4] == method("cubin").code[:4] == CUBIN[:4]
    with no_compilation("count") as guard:
        assert make_program().compile("cubin").code[:4] == CUBIN[:4]
    assert guard.attempts == {"cuda-core": 1}
    """
    run_script(SETUP, CORE, checks)


def test_kernels_of_ptx_objects_are_refused_and_those_of_cubins_are_not(run_script) -> None:
    checks = """
    early = ObjectCode.from_ptx(PTX, name="early")
    with no_compilation() as guard:
        for made in (early, ObjectCode.from_ptx(PTX), ObjectCode.from_ltoir(PTX)):
            assert "load fill(from" in str(refused(made.get_kernel, "fill"))
            refused(made.get_module)
            refused(lambda: made.handle)
            assert made.code == PTX
    assert guard.attempts == {"cuda-core": 9}
    assert type(vars(ObjectCode)["handle"]).__name__ == "getset_descriptor"
    with no_compilation() as guard:
        # No driver is needed to see that the guard lets it through.
        try:
            ObjectCode.from_cubin(CUBIN).get_kernel("fill")
        except Exception as error:
            assert "compile" not in str(error)
    assert not guard.attempts
    """
    run_script(SETUP, CORE, checks)


def test_ptx_is_refused_by_every_load_of_the_driver_and_the_runtime(run_script) -> None:
    checks = """
    import ctypes
    path, cubin_path = Path("fill.ptx"), Path("fill.cubin")
    path.write_bytes(PTX)
    cubin_path.write_bytes(CUBIN)
    buffer = ctypes.create_string_buffer(PTX)
    nothing = ([], [], 0, [], [], 0)
    with no_compilation() as guard:
        entries = (
            lambda: driver.cuModuleLoadData(PTX),
            lambda: driver.cuModuleLoadData(bytearray(PTX)),
            lambda: driver.cuModuleLoadData(ctypes.addressof(buffer)),
            lambda: driver.cuModuleLoadDataEx(PTX, 0, [], []),
            lambda: driver.cuModuleLoadFatBinary(PTX),
            lambda: driver.cuModuleLoad(str(path).encode()),
            lambda: driver.cuLibraryLoadData(PTX, *nothing),
            lambda: driver.cuLibraryLoadFromFile(str(path).encode(), *nothing),
            lambda: driver.cuLinkCreate(0, [], []),
            lambda: runtime.cudaLibraryLoadData(PTX, *nothing),
            lambda: runtime.cudaLibraryLoadFromFile(str(path).encode(), *nothing),
        )
        for entry in entries:
            error = refused(entry)
            assert "script.py:" in error.attempt.location
            assert entry is entries[8] or "sm_90" in error.attempt.signature, error
        assert guard.attempts == {"ptx": len(entries)}
        try:
            # No driver is needed to see that the guard lets it through.
            driver.cuModuleLoadData(CUBIN)
        except Exception as error:
            assert "compile" not in str(error)
        assert guard.attempts == {"ptx": len(entries)}
    """
    run_script(SETUP, BINDINGS, checks)


def test_libraries_imported_after_arming_are_watched(run_script) -> None:
    late = """
    guard = Guard()
    guard.arm()
    assert not any(name.startswith("cuda") for name in sys.modules)
    """
    checks = """
    refused(bound, make_nvrtc(), 1, OPTIONS)
    refused(make_program().compile, "cubin")
    refused(ObjectCode.from_ptx(PTX).get_kernel, "fill")
    refused(driver.cuModuleLoadData, PTX)
    assert {"nvrtc", "cuda-core", "ptx"} <= set(installed_roads())
    assert all(prove(road) is True for road in ("nvrtc", "cuda-core", "ptx"))
    assert guard.attempts == {"nvrtc": 1, "cuda-core": 2, "ptx": 1}
    guard.release()
    assert make_program().compile("cubin").code[:4] == CUBIN[:4]
    """
    run_script(SETUP, late, BINDINGS, CORE, checks)


def test_cupy_is_refused_before_its_cache_and_compiles_after_release(run_script) -> None:
    pytest.importorskip("cupy")
    checks = """
    import cupy
    from cupy.cuda import compiler, function
    def compile_by_hand():
        return compiler._NVRTCProgram(SOURCE, "fill.cu", method="cubin").compile(("-arch=sm_90",))[0]
    assert compile_by_hand()[:4] == CUBIN[:4]
    attributes = dict(vars(function.Module))
    with no_compilation() as guard:
        assert refused(compiler._compile_module_with_cache, SOURCE, ("-w",)).attempt.kernel == "fill"
        refused(compiler.compile_using_nvrtc, SOURCE)
        refused(compiler.compile_using_nvcc, SOURCE)
        refused(compile_by_hand)
        refused(function.Module().load, PTX)
        assert prove("cupy") is True
    assert guard.attempts == {"cupy": 5}
    assert dict(vars(function.Module)) == attributes
    assert compile_by_hand()[:4] == CUBIN[:4]
    """
    run_script(SETUP, checks)


def make_fat_binary(*kinds: int) -> bytes:
    images = b"".join(struct.pack("<HHIQ", kind, 0, 64, 8) + bytes(48) + b"payload!" for kind in kinds)
    return bytes.fromhex("50ed55ba") + struct.pack("<HHQ", 1, 16, len(images)) + images


@pytest.mark.parametrize(
    ("image", "is_native"),
    [
        (b"\x7fELF rest", True),
        (b"//\n.version 8.0\n", False),
        (b"", False),
        (make_fat_binary(2), True),
        (make_fat_binary(1, 1, 2), True),
        (make_fat_binary(1), False),
        (make_fat_binary(1, 8), False),
        (make_fat_binary(), False),
    ],
)
def test_machine_code_is_told_from_text_in_bytes_buffers_addresses_and_files(
    image: bytes, is_native: bool, tmp_path
) -> None:
    buffer = ctypes.create_string_buffer(image)
    path = tmp_path / "image"
    path.write_bytes(image)
    reads = [read_image(image), read_image(bytearray(image)), read_image(buffer), read_image(ctypes.addressof(buffer))]
    reads += [read_file(str(path)), read_file(str(path).encode())]
    assert all(read is not None and is_machine_code(read) is is_native for read in reads)


def test_a_wrapped_fat_binary_is_followed() -> None:
    for kind, is_native in ((1, False), (2, True)):
        buffer = ctypes.create_string_buffer(make_fat_binary(kind))
        wrapper = struct.pack("<IIQQ", 0x466243B1, 1, ctypes.addressof(buffer), 0)
        read = read_image(wrapper)
        assert read is not None and is_machine_code(read) is is_native


def test_what_cannot_be_read_is_nobodys_image(tmp_path) -> None:
    assert read_image(None) is None and read_image(0) is None and read_image(object()) is None
    assert read_file(tmp_path / "missing") is None and read_file(None) is None
