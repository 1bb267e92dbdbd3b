"""Kernels whose text is in no file of its own: refused by name with the reason, whichever way they are planned."""

import json
import marshal
import os
import py_compile
import subprocess
import sys
import zipfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from planfreeze.constants import freeze_constant
from planfreeze.errors import UnnameableConstant
from planfreeze.recorded.values import freeze_value

ROOT = Path(__file__).resolve().parents[1]
DEVICE = ROOT / "tests" / "serving" / "scripts" / "device.py"
TRITON = "import triton\nimport triton.language as tl\n\n@triton.jit\ndef kernel(x, n):\n    tl.store(x, n + 1)\n"
CUTE = """from cutlass import Int32, Int64, cute

@cute.kernel
def device_kernel(x: Int64, n: Int32):
    address = cute.make_ptr(Int32, x, cute.AddressSpace.gmem, assumed_align=4)
    cute.make_tensor(address, cute.make_layout(1))[0] = n

@cute.jit
def kernel(x: Int64, n: Int32, stream):
    device_kernel(x, n).launch(grid=[1, 1, 1], block=[32, 1, 1], stream=stream)

@cute.jit
def hello(n: Int32):
    cute.printf("hello %d", n + 1)
"""
DECLARED = """
from planfreeze.declarations import DECLARE, integer, tensor

@DECLARE(kernel="MODULE:kernel", arguments=(tensor("x", "f32"), integer("n", 2, 3)))
def MODULE_family(scalars, constants):
    return (1,)
"""


def as_exec(text: str) -> str:
    """A module that makes its kernel by ``exec``, with no trace of the text."""
    return f"exec({text!r})\n"


def as_cell(text: str) -> str:
    """A module that makes its kernel as a notebook does: the text is registered, so that inspect finds it."""
    return (
        f"import linecache\nCELL = {text!r}\n"
        "linecache.cache['<ipython-input-1>'] = (len(CELL), None, CELL.splitlines(True), '<ipython-input-1>')\n"
        "exec(compile(CELL, '<ipython-input-1>', 'exec'), globals())\n"
    )


def as_obfuscated(text: str) -> str:
    """A module that holds its kernel as bytecode."""
    return f"import marshal\nexec(marshal.loads({marshal.dumps(compile(text, 'hidden.py', 'exec'))!r}))\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a module for each way to have no file, and a plain one."""
    folder = tmp_path_factory.mktemp("kernels")
    (folder / "device.py").write_text(DEVICE.read_text())
    with zipfile.ZipFile(folder / "packed.zip", "w") as archive:
        for dialect, text in (("triton", TRITON), ("cute", CUTE)):
            made = {"exec": as_exec, "cell": as_cell, "obfuscated": as_obfuscated, "plain": str}
            for way, make in made.items():
                (folder / f"{dialect}_{way}.py").write_text(make(text.replace("+ 1", f"+ 0x{way.encode().hex()[:6]}")))
            archive.writestr(f"{dialect}_zip.py", text)
            (folder / "source.py").write_text(text)
            py_compile.compile(str(folder / "source.py"), cfile=str(folder / f"{dialect}_bytecode.pyc"))
        (folder / "source.py").unlink()
        families = [
            DECLARED.replace("DECLARE", f"{dialect}_family").replace("MODULE", f"{dialect}_{way}")
            for dialect, ways in WAYS.items()
            for way in ways
        ]
    (folder / "families.py").write_text("".join(families))
    return folder


NO_SOURCE = "module {} has no Python source file here"
NOT_IN_TEXT = "{}:kernel uses kernel: its text is not in {}: it was made by exec"
# Triton refuses a function without text itself, when its module is loaded.
TRITONS_OWN = "@jit functions should be defined in a Python file"
WAYS = {
    "triton": {
        "exec": TRITONS_OWN,
        "cell": NOT_IN_TEXT,
        "obfuscated": TRITONS_OWN,
        "zip": NO_SOURCE,
        "bytecode": NO_SOURCE,
        "plain": "",
    },
    "cute": {
        "exec": NOT_IN_TEXT,
        "cell": NOT_IN_TEXT,
        "obfuscated": NOT_IN_TEXT,
        "zip": NO_SOURCE,
        "bytecode": NO_SOURCE,
        "plain": "",
    },
}


def run(folder: Path, *command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    search = os.pathsep.join(map(str, (folder, folder / "packed.zip", ROOT)))
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TRITON", "CUTE", "PLANFREEZE"))}
    environment = kept | {"PYTHONPATH": search, "XDG_CACHE_HOME": str(folder / "home")} | variables
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def build(folder: Path) -> Any:
    """What a build of all declared families reports."""
    names = ",".join(f"families:{dialect}_{way}_family" for dialect, ways in WAYS.items() for way in ways)
    done = run(folder, "-m", "planfreeze", "build", "--family", names, "--arch", "sm_90a", "--store", "store", "--json")
    assert done.returncode == 1, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("dialect", "way"), [(dialect, way) for dialect, ways in WAYS.items() for way in ways])
def test_a_declared_kernel_without_a_file_is_refused_by_name(build: Any, dialect: str, way: str) -> None:
    module = f"{dialect}_{way}"
    reasons = [line["reason"] for line in build["failed"] if line["family"] == f"{module}_family"]
    expected = WAYS[dialect][way].format(module, module)
    assert len(reasons) == bool(expected) and all(expected in reason for reason in reasons), reasons


def test_no_plan_of_them_claims_to_be_complete(build: Any) -> None:
    assert (build["compiled"], build["plans"]) == (2, [])


# Launches kernels of modules and of its own cells. As the text of a command, it has no file, like a notebook.
NOTEBOOK = """
import sys
import device
from device import Pointer
import triton_cell, triton_zip, triton_plain, cute_cell, cute_zip, cute_exec, cute_bytecode, cute_plain
triton_plain.kernel[(1,)](Pointer(), 5)
triton_cell.kernel[(1,)](Pointer(), 5)
triton_zip.kernel[(1,)](Pointer(), 5)
for module in (cute_plain, cute_cell, cute_exec, cute_zip, cute_bytecode):
    try:
        module.hello(5)
    except Exception as error:
        print(module.__name__, type(error).__name__, file=sys.stderr)
"""
CELLS = f"""
{as_cell(TRITON.replace("+ 1", "+ 2"))}
kernel[(1,)](Pointer(), 6)
{as_cell(CUTE)}
hello(6)
"""


@pytest.fixture(scope="module")
def recording(folder: Path) -> dict[str, Any]:
    """What a recording of a notebook holds and refuses."""
    command = ("-m", "planfreeze", "record", "-o", "run.json", "--", sys.executable, "-c", NOTEBOOK + CELLS)
    done = run(folder, *command, CUTE_DSL_ARCH="sm_90a")
    assert done.returncode == 1, done.stderr
    assert [line for line in done.stderr.splitlines() if "DSLUserCodeError" in line] == [
        *("cute_exec DSLUserCodeError", "cute_bytecode DSLUserCodeError")
    ], "these the DSL refuses itself"
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def test_a_kernel_of_a_notebook_or_an_archive_is_left_out_of_a_recording_by_name(recording: dict[str, Any]) -> None:
    assert {line["kernel"]: line["reason"] for line in recording["refused"]} == {
        "__main__:kernel": "there is no file of a module __main__",
        "__main__:hello": "function = hello: it was made in a notebook or session, and no file has its text",
        "triton_zip:kernel": "its module triton_zip has no text",
        "cute_cell:hello": "it uses hello: its text is not in cute_cell: it was made by exec, or by a decorator",
    }


def test_a_recorded_kernel_without_a_file_is_refused_by_a_build(recording: dict[str, Any], folder: Path) -> None:
    done = run(folder, "-m", "planfreeze", "build", "--plan", "run.json", "--store", "recorded", "--json")
    report = json.loads(done.stdout)
    assert (done.returncode, report["compiled"], report["plans"]) == (1, 2, [])
    failed = {line["payload"].get("kernel") or line["payload"]["function"]: line["reason"] for line in report["failed"]}
    expected = {
        "triton_cell:kernel": "uses kernel: its text is not in triton_cell: it was made by exec",
        "cute_zip:hello": "module cute_zip has no Python source file here",
    }
    assert failed.keys() == expected.keys()
    assert all(expected[name] in reason for name, reason in failed.items()), failed


def test_a_constant_of_a_notebook_is_refused_by_name_too() -> None:
    session = ModuleType("__main__")
    exec("def double(x): return x * 2", vars(session))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", session)
        for freeze in (freeze_constant, freeze_value):
            with pytest.raises(UnnameableConstant, match=r"F = .*: it was made in a notebook or session"):
                freeze("F", vars(session)["double"])


DECLARED_IN_A_NOTEBOOK = """
from pathlib import Path
from planfreeze.declarations import integer, tensor, triton_family
from planfreeze.keyed import key_plan
from planfreeze.plans import plan_families
from planfreeze.target import target

@triton_family(kernel="triton_plain:kernel", arguments=(tensor("x", "f32"), integer("n", 2, 3)))
def declared_in_a_cell(scalars, constants):
    return (1,)

plan = plan_families([declared_in_a_cell], ["declared_in_a_cell"], target=target("sm_90a"))
for program in key_plan(plan, Path("toolchains")):
    print(program.name, type(program).__name__, program.reason)
"""


def test_a_family_that_a_notebook_declares_is_refused_by_name(folder: Path) -> None:
    done = run(folder, "-c", DECLARED_IN_A_NOTEBOOK)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("declared_in_a_cell(") and "UnkeyedProgram" in done.stdout
    assert "module __main__ has no Python source file here" in done.stdout
