"""Knobs that a kernel's module sets: no other program compiled in the same process may have other bytes for it."""

import importlib
import shutil
import textwrap
from dataclasses import dataclass
from pathlib import Path

import pytest

from planfreeze.cache.digest import digest_of
from planfreeze.errors import CompileFailed
from planfreeze.target import target
from planfreeze.workers import Worker

ADD = """
    {statement}
    import triton
    import triton.language as tl

    @triton.jit
    def add_kernel(source, out, count, block: tl.constexpr):
        offsets = tl.arange(0, block)
        tl.store(out + offsets, tl.load(source + offsets))
    """
# What a module does while it is imported, and what the refusal names.
STATEMENTS = {
    "assembler options": (
        "import os; os.environ['PTXAS_OPTIONS'] = '--opt-level 0'",
        "PTXAS_OPTIONS was --opt-level 0",
    ),
    "a variable of LLVM": ("import os; os.environ['DISABLE_LLVM_OPT'] = '1'", "DISABLE_LLVM_OPT"),
    "a pinned variable": (
        "import os; del os.environ['TRITON_DISABLE_LINE_INFO']",
        "TRITON_DISABLE_LINE_INFO was unset",
    ),
    "a knob": ("import triton; triton.knobs.nvidia.disable_ptxas_opt = True", "DISABLE_PTXAS_OPT was 1"),
    "a knob that is kept from the environment": (
        "import triton; triton.knobs.propagate_env = False; triton.knobs.language.default_fp_fusion = False",
        r"triton\.knobs\.language\.default_fp_fusion was False",
    ),
    "a knob without a variable": ("import triton; triton.knobs.runtime.debug = True", r"triton\.knobs\.runtime\.debug"),
    "a hook into the stages": (
        "import triton; triton.knobs.runtime.add_stages_inspection_hook = lambda *a: ('', '')",
        r"triton\.knobs\.runtime\.add_stages_inspection_hook",
    ),
    "a variable of the DSL": ("import os; os.environ['CUTE_DSL_LINEINFO'] = '1'", "CUTE_DSL_LINEINFO was 1"),
    "a setting of the DSL": (
        "import cutlass.cute; cutlass.cutlass_dsl.CuTeDSL._get_dsl().envar.lineinfo = True",
        r"CuTeDSL\.envar\.lineinfo was True",
    ),
}


@dataclass(frozen=True)
class Bench:
    """One worker for all cases, none of which may leave a trace in it, and a folder that it imports packages from."""

    folder: Path
    toys: Path
    worker: Worker

    def define(self, name, statement):
        """Return a payload of a copy of ``toys`` whose Triton module begins with a statement."""
        shutil.copytree(self.toys, self.folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        families = self.folder / name / "families.py"
        families.write_text(families.read_text().replace("toys", name))
        text = textwrap.dedent(ADD).replace("{statement}", statement)
        (self.folder / name / "add_triton.py").write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(f"{name}.families").AddPayload(block=64)

    def compile(self, task):
        return digest_of(self.worker.compile(task).cubin)


@pytest.fixture(scope="module")
def bench(toys, tmp_path_factory):
    folder = tmp_path_factory.mktemp("setting")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        with Worker(target("sm_90a")) as started:
            yield Bench(folder, toys.folder / "toys", started)


@pytest.mark.parametrize("case", STATEMENTS)
def test_a_module_that_sets(bench, task, toys, blobs, case):
    statement, named = STATEMENTS[case]
    payload = bench.define(f"sets_{list(STATEMENTS).index(case)}", statement)
    innocent = toys.families.CopyPayload() if "DSL" in case else toys.families.AddPayload(block=64)
    expected = blobs[1] if "DSL" in case else blobs[0]
    refused = rf"families:add was compiled while {named}.*set by a module.*Leave .* alone"
    for _ in range(2):  # the same whether the module is imported anew or was imported before
        with pytest.raises(CompileFailed, match=refused):
            bench.compile(task(payload))
    assert bench.compile(task(innocent)) == expected


def test_a_module_that_fails_after_it_set_a_knob_leaves_none_behind(bench, task, toys, blobs):
    payload = bench.define("sets_and_fails", "import os; os.environ['DISABLE_LLVM_OPT'] = '1'; 1 / 0")
    with pytest.raises(CompileFailed, match="ZeroDivisionError"):
        bench.compile(task(payload))
    assert bench.compile(task(toys.families.AddPayload(block=64))) == blobs[0]


def test_knobs_that_keep_print_or_listen_are_a_modules_own_choice(bench, task):
    statement = (
        "import os, triton; os.environ['TRITON_CACHE_DIR'] = '/nowhere'; triton.knobs.autotuning.print = True; "
        "triton.knobs.compilation.listener = lambda **facts: None; os.environ['OMP_NUM_THREADS'] = '1'"
    )
    quiet, keeping = bench.define("sets_none", "pass"), bench.define("keeps", statement)
    assert bench.compile(task(quiet)) == bench.compile(task(keeping))


def test_a_start_up_file_of_python_that_sets_a_knob_is_found(toys, task, tmp_path, monkeypatch):
    """Such a file runs before a worker looks at its environment."""
    (tmp_path / "sitecustomize.py").write_text("import os; os.environ['PTXAS_OPTIONS'] = '--opt-level 0'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with Worker(target("sm_90a")) as started:
        for _ in range(2):
            with pytest.raises(CompileFailed, match=r"PTXAS_OPTIONS was --opt-level 0, set by .* when Python started"):
                started.compile(task(toys.families.AddPayload(block=64)))
