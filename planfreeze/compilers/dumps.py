"""What the CuTe DSL leaves in the folder of its dumps: the module that it made of a function."""

import os
import re
from pathlib import Path

from planfreeze import errors

__all__ = ["check_libraries", "clear_dump_folder", "read_module"]

LIBRARIES = re.compile(r'^\s*gpu\.module @\S+ attributes \{.*"link-libraries" = \[([^\]]*)\]', re.MULTILINE)


def clear_dump_folder(kernel: str) -> Path:
    """Empty the folder that the DSL writes cubins to and reads them back from, and return it.

    All variants of a kernel get one file name there, so that two processes with one folder take each other's cubins.
    """
    named = os.environ.get("CUTE_DSL_DUMP_DIR")
    if named is None:
        raise errors.CompileFailed(kernel, "CUTE_DSL_DUMP_DIR does not name a folder of this process alone")
    for left_over in Path(named).iterdir():
        left_over.unlink()
    return Path(named)


def read_module(dumps: Path) -> str:
    """Return what the DSL made of the function that was compiled last."""
    (module,) = dumps.glob("*.mlir")
    return module.read_text(encoding="utf-8")


def check_libraries(kernel: str, dumps: Path) -> None:
    """Check that what was compiled last links no file.

    Raises
    ------
    CompileFailed
        A function of another language is linked from bitcode; names the files.
    """
    for module in dumps.glob("*.mlir"):
        linked = LIBRARIES.search(module.read_text(encoding="utf-8"))
        if linked is not None:
            raise errors.CompileFailed(kernel, f"it links {linked.group(1)}, whose content is no part of its key")
