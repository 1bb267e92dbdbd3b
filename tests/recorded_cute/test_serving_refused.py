"""What cannot be served is refused at the first served call, by name: other versions, hosts, libraries, damage."""

import shutil
import subprocess
from pathlib import Path

import pytest

from .conftest import ARCH, DEVICE, Workshop
from .programs import HOSTS, IMPORTS, KERNELS

KERNEL_CALL = """
if __name__ == "__main__":
    fill(from_dlpack(array(64), assumed_align=16).mark_layout_dynamic(), 2.5, cuda.CUstream(64))
"""


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory, runtime: Path) -> Workshop:
    """A workshop with one planned kernel and one host function."""
    workshop = Workshop(tmp_path_factory.mktemp("filled"))
    script = workshop.write("filled.py", DEVICE, IMPORTS, KERNELS, KERNEL_CALL)
    workshop.record(script, CUTE_DSL_LIBS=str(runtime))
    workshop.build("filled")
    hello = workshop.write("hello.py", IMPORTS, HOSTS, "if __name__ == '__main__': hello(3, 4)\n")
    workshop.record(hello)
    workshop.build("hello")
    return workshop


def test_a_library_path_that_leads_nowhere_is_named(filled: Workshop, tmp_path: Path) -> None:
    nowhere = tmp_path / "libcute_dsl_runtime.so"
    said = filled.serve(filled.folder / "filled.py", status=1, CUTE_DSL_LIBS=str(nowhere))
    assert "HostObjectUnusable" in said and f"the runtime library {nowhere} is not there" in said


def test_a_function_that_no_library_has_is_named(filled: Workshop, runtime: Path, tmp_path: Path) -> None:
    text = Path(__file__).with_name("runtime.c").read_text().replace("_cudaLaunchKernelEx", "_cudaLaunchKernelEy")
    source, made = tmp_path / "runtime.c", tmp_path / "libcute_dsl_runtime.so"
    source.write_text(text)
    compiler = shutil.which("gcc") or shutil.which("cc")
    assert compiler is not None
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(source)], check=True)
    said = filled.serve(filled.folder / "filled.py", status=1, CUTE_DSL_LIBS=str(made))
    assert "no runtime library of the DSL has the function _cudaLaunchKernelEx" in said


@pytest.mark.parametrize("version", ["4.8.0", "4.8.2"])
def test_another_version_of_the_dsl_is_named(filled: Workshop, version: str) -> None:
    head = f"import cutlass\ncutlass.__version__ = {version!r}\n"
    script = filled.write("versioned.py", head, "import hello\nhello.hello(3, 4)\n")
    said = filled.run(script, status=1, environment=filled.served_environment("hello"))
    assert f"built with nvidia-cutlass-dsl 4.8.1, and {version} is installed" in said


def test_another_architecture_than_the_process_compiles_for_is_named(filled: Workshop, runtime: Path) -> None:
    said = filled.serve(filled.folder / "filled.py", status=1, CUTE_DSL_LIBS=str(runtime), CUTE_DSL_ARCH="sm_120a")
    assert f"it is for {ARCH}, and the DSL is set to sm_120a" in said


def test_a_failed_launch_raises_with_the_name_of_cudas_error_and_the_program(filled: Workshop, runtime: Path) -> None:
    caught = """
        from filled import *
        try:
            fill(from_dlpack(array(64), assumed_align=16).mark_layout_dynamic(), 2.5, cuda.CUstream(64))
        except Exception as error:
            print(type(error).__name__, error, *error.__notes__)
        """
    failing = {"CUTE_DSL_LIBS": str(runtime), "STUB_ERROR": "719"}
    script = filled.write("caught.py", caught)
    said = filled.run(script, environment=filled.served_environment("filled", **failing))
    assert said.startswith("DSLCudaRuntimeError") and "cudaErrorLaunchFailure" in said
    assert "It was served from a plan as cute_function(function=filled:fill, x=" in said
    assert "cudaErrorLaunchFailure" in filled.serve(filled.folder / "filled.py", status=1, **failing)


def test_a_damaged_host_object_is_never_loaded(filled: Workshop, runtime: Path, tmp_path: Path) -> None:
    store = filled.folder / "damaged"
    shutil.copytree(filled.folder / "store", store)
    objects = [path for path in (store / "objects").rglob("*") if path.is_file()]
    hosts = [path for path in objects if path.read_bytes()[18:20] == b"\x3e\x00"]
    assert hosts
    for path in hosts:
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.chmod(0o600)
        path.write_bytes(bytes(data))
    said = filled.serve(filled.folder / "filled.py", status=1, store="damaged", CUTE_DSL_LIBS=str(runtime))
    assert "DamagedPrograms" in said or "damaged" in said


def test_a_copy_of_the_store_serves_where_it_cannot_be_written(filled: Workshop) -> None:
    store = filled.folder / "copied"
    shutil.copytree(filled.folder / "store", store)
    for path in sorted(store.rglob("*"), reverse=True):
        path.chmod(0o500 if path.is_dir() else 0o400)
    assert filled.serve(filled.folder / "hello.py", store="copied") == "hello 3 of 4\n"


def test_no_served_function_unloads_the_library_of_another(filled: Workshop, runtime: Path) -> None:
    script = filled.write(
        "twice.py",
        "from filled import *\n",
        """
        if __name__ == "__main__":
            x = from_dlpack(array(64), assumed_align=16).mark_layout_dynamic()
            first, second = (cute.compile(fill, x, cutlass.Float32(0), cuda.CUstream(0)) for _ in range(2))
            first(x, 1.0, cuda.CUstream(1)); second(x, 2.0, cuda.CUstream(2))
            assert first is not second and first.engine is not second.engine
            assert first.__cubin__.startswith(b"\\x7fELF") and first.to(0) is not None
            del first
            second(x, 3.0, cuda.CUstream(3))
        """,
    )
    log = filled.folder / "twice.log"
    environment = filled.served_environment("filled", CUTE_DSL_LIBS=str(runtime), STUB_LOG=str(log))
    filled.run(script, environment=environment)
    assert [line.partition("stream ")[2].split()[0] for line in log.read_text().splitlines()] == ["0x1", "0x2", "0x3"]
