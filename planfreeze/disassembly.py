"""Disassembly: the machine code of a cubin as text, by NVIDIA's nvdisasm where there is one."""

import re
import shutil
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from planfreeze import errors

__all__ = ["count_opcodes", "disassemble", "find_disassemblers"]

NAME = "nvdisasm"
TIMEOUT_S = 120.0  # the largest kernels take less than a second
# "/*00b0*/  @P1 BRA `(.L_x_1) ;" and, of two issued together, "{ /*0010*/ ...": offset, predicate, opcode.
INSTRUCTION = re.compile(r"^[\s{]*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P[0-9T]+ )?([A-Z][A-Z0-9_.]*)", re.MULTILINE)


def find_disassemblers() -> tuple[Path, ...]:
    """Return every nvdisasm here: on PATH, in Triton's package, in NVIDIA's wheels. Imports none of them."""
    named = shutil.which(NAME)
    found = [*([Path(named)] if named else []), *package_files("triton", f"backends/nvidia/bin/{NAME}")]
    return tuple(dict.fromkeys((*found, *package_files("nvidia", f"*/bin/{NAME}"))))


def package_files(package: str, pattern: str) -> Iterator[Path]:
    """Yield the files of an installed package that match a pattern."""
    spec = find_spec(package)
    for folder in (spec and spec.submodule_search_locations) or ():
        yield from sorted(Path(folder).glob(pattern))


def disassemble(name: str, cubin: bytes) -> str:
    """Return the machine code of a cubin as nvdisasm writes it.

    Parameters
    ----------
    name : str
        The program, for messages.

    Raises
    ------
    DisassemblerMissing
        There is no nvdisasm.
    DisassemblyFailed
        None that is there reads the cubin.
    """
    tools = find_disassemblers()
    if not tools:
        raise errors.DisassemblerMissing
    answers = []
    with tempfile.NamedTemporaryFile(prefix="planfreeze-", suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        for tool in tools:
            text = run_tool(tool, file.name)
            if INSTRUCTION.search(text):
                return text
            answers.append(f"{tool}: {text.strip() or 'it printed nothing'}")
    raise errors.DisassemblyFailed(name, tuple(answers))


def run_tool(tool: Path, path: str) -> str:
    """Return what a disassembler prints of a file, or why there is nothing."""
    command = [str(tool), "--print-code", path]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return done.stderr if done.returncode else done.stdout


def count_opcodes(text: str) -> dict[str, int]:
    """Return how often each opcode occurs, without its modifiers, by name; NOPs that fill up the code are left out."""
    counted = Counter(opcode.partition(".")[0] for opcode in INSTRUCTION.findall(text))
    counted.pop("NOP", None)
    return dict(sorted(counted.items()))
