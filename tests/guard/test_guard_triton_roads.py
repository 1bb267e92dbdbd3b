"""Triton's other roads: tuning, C builds and late loads, and what a served cache leaves of them."""

import pytest

SETUP = """
from planfreeze.guard import Guard, installed_roads, no_compilation, prove, self_test
import triton.compiler.compiler as compiling
import triton.runtime.autotuner as tuning
import triton.runtime.build as building
def compilers():
    return [name for name in started if Path(str(name)).name in ("cc", "gcc", "clang")]
def cached_files():
    return sum(path.is_file() for path in cache_dir.rglob("*"))
NO_LOAD = dict(allowed=frozenset())
use_driver()
driver = triton.runtime.driver.active
"""

# Benchmarks that run each configuration once, so that a tuner can choose without a device.
TUNER = """
def measure(call, quantiles):
    call()
    return [1.0, 1.0, 1.0]
configs = [triton.Config({"BLOCK": block}) for block in (64, 128)]
pruned = []
def keep(configs, named, **options):
    pruned.append(len(configs))
    return configs
pruning = {"early_config_prune": keep}
def tune(**options):
    return triton.autotune(configs, ["n"], do_bench=measure, prune_configs_by=pruning, **options)(triton.jit(fill.fn))
tuned = tune()
"""

# A driver on which a kernel seems to load, without a device.
LOADING = """
loads = []
class Loader:
    def load_binary(self, name, binary, shared, device):
        loads.append(name)
        return ("module", "function", 1, 0, 1024)
    def get_device_properties(self, device): return {"max_shared_mem": 227 * 1024}
    def unload_module(self, module): pass
driver.utils = Loader()
compiled = fill.warmup(Pointer(), 7, BLOCK=64, grid=(1,))
"""


def test_tuning_is_refused_before_the_first_configuration(run_triton, triton_kernel: str) -> None:
    checks = """
    with no_compilation() as guard:
        line = sys._getframe().f_lineno + 1
        error = refused(lambda: tuned[(1,)](Pointer(), 7))
    assert guard.attempts == {"triton-autotune": 1} and pruned == [2] and not tuned.cache
    assert traces() == (0, 0) and not driver.launched
    assert error.attempt.kernel == "__main__.fill" and error.attempt.location.endswith(f"script.py:{line}"), error
    print(error)
    """
    said = run_triton(triton_kernel, SETUP, TUNER, checks)
    assert "triton-autotune was asked to benchmark __main__.fill(n: 7, BLOCK: 64, num_warps: 4," in said
    assert "Nothing may be benchmarked while a guard is armed." in said


def test_a_choice_made_before_is_no_attempt(run_triton, triton_kernel: str) -> None:
    checks = """
    driver.utils = Loader()
    tuned[(1,)](Pointer(), 7)
    launched = len(driver.launched)
    with no_compilation(**NO_LOAD) as guard:
        tuned[(1,)](Pointer(), 7)
        assert not guard.attempts and len(driver.launched) == launched + 1
        refused(lambda: tuned[(1,)](Pointer(), 8))
        assert guard.attempts == {"triton-autotune": 1}
    """
    run_triton(triton_kernel, SETUP, TUNER, LOADING, checks)


def test_a_choice_in_tritons_cache_of_results_is_no_attempt(run_triton, triton_kernel: str) -> None:
    checks = """
    tune(cache_results=True)[(1,)](Pointer(), 7)
    again = tune(cache_results=True)
    with no_compilation("count", **NO_LOAD) as guard:
        again[(1,)](Pointer(), 7)
    assert guard.attempts["triton-autotune"] == 0 and again.cache
    """
    run_triton(triton_kernel, SETUP, TUNER, LOADING, checks)


def test_a_counted_tuning_leaves_its_compiles_and_loads_to_their_roads(run_triton, triton_kernel: str) -> None:
    checks = """
    with no_compilation("count", **NO_LOAD) as guard:
        tuned[(1,)](Pointer(), 7)
    assert guard.attempts == {"triton-autotune": 2, "triton": 2, "triton-load": 2}, guard.attempts
    assert len(driver.launched) == 3
    with no_compilation(allowed=frozenset({"triton-autotune", "triton-load"})) as guard:
        refused(lambda: tune()[(1,)](Pointer(), 7))
    assert guard.attempts == {"triton": 1}
    """
    run_triton(triton_kernel, SETUP, TUNER, LOADING, checks)


def test_a_subclass_with_its_own_run_is_seen(run_triton, triton_kernel: str) -> None:
    checks = """
    class Own(tuning.Autotuner):
        def run(self, *arguments, **options):
            self.nargs = dict(zip(self.arg_names, arguments))
            return min(self._bench(*arguments, config=config, **options) for config in self.configs)
    own = Own(triton.jit(fill.fn), fill.arg_names, configs, [], None, None, do_bench=measure)
    with no_compilation() as guard:
        refused(own.run, Pointer(), 7, grid=(1,), warmup=False)
    assert guard.attempts == {"triton-autotune": 1}
    """
    run_triton(triton_kernel, SETUP, TUNER, checks)


MODULE = """
source = "#include <Python.h>\\\\nstatic struct PyModuleDef d = {PyModuleDef_HEAD_INIT, \\"answer\\"};" \\
    "PyMODINIT_FUNC PyInit_answer(void) { return PyModule_Create(&d); }"
def build():
    return building.compile_module_from_src(source, "answer")
"""


def test_a_c_build_is_refused_before_a_compiler_starts(run_triton, triton_kernel: str) -> None:
    checks = """
    kept = building._build
    with no_compilation() as guard:
        line = sys._getframe().f_lineno + 1
        error = refused(lambda: build())
        refused(kept, "answer", "answer.c", ".", [], [], [], [])
    assert guard.attempts == {"triton-build": 2} and compilers() == []
    assert error.attempt.kernel == "answer" and "asked to build answer(" in str(error), error
    assert build().__name__ == "answer" and len(compilers()) == 1
    with no_compilation() as guard:
        assert build().__name__ == "answer", "it is in Triton's cache"
    assert not guard.attempts and len(compilers()) == 1
    """
    run_triton(triton_kernel, SETUP, MODULE.replace("\\\\n", "\\n"), checks)


def test_a_build_that_is_served_from_elsewhere_is_no_attempt(run_triton, triton_kernel: str) -> None:
    checks = """
    built = build().__file__
    Path(built).rename("served.so")
    asked = []
    def serve(name, src, srcdir, library_dirs, include_dirs, libraries):
        asked.append(name)
        return "served.so"
    triton.knobs.build.impl = serve
    with no_compilation() as guard:
        assert build().__name__ == "answer"
        assert not guard.attempts and asked == ["answer"]
        assert prove("triton-build") is True and asked == ["answer"] and triton.knobs.build.impl is serve
    """
    run_triton(triton_kernel, SETUP, MODULE.replace("\\\\n", "\\n"), checks)


def test_a_late_load_is_refused_when_frozen_and_allowed_otherwise(run_triton, triton_kernel: str) -> None:
    checks = """
    guard = Guard()
    guard.arm()
    line = sys._getframe().f_lineno + 1
    error = refused(lambda: fill[(1,)](Pointer(), 7, BLOCK=64))
    assert error.attempt.location.endswith(f"script.py:{line}"), (line, error)
    print(error)
    refused(lambda: compiled[(1, 1, 1)])
    refused(compiled._init_handles)
    assert guard.attempts == {"triton-load": 3} and not loads and not driver.launched
    guard.release()
    with no_compilation() as guard:
        fill[(1,)](Pointer(), 7, BLOCK=64)
    assert not guard.attempts and len(loads) == 1 and driver.launched == ["fill"]
    with no_compilation(**NO_LOAD) as guard:
        fill[(1,)](Pointer(), 7, BLOCK=64)
        compiled[(1, 1, 1)]
    assert not guard.attempts and len(loads) == 1, "it was loaded before"
    """
    said = run_triton(triton_kernel, SETUP, LOADING, checks)
    assert "triton-load was asked to load __main__.fill(x: *fp32 (divisible by 16), n: i32, BLOCK: 64, num_w" in said
    assert "Nothing may be loaded while a guard is armed." in said


def test_a_build_inside_an_allowed_or_counted_load_is_an_attempt_of_its_own(run_triton, triton_kernel: str) -> None:
    checks = """
    driver.launcher_cls = lambda src, metadata: building.compile_module_from_src(source, "launcher")
    with no_compilation() as guard:
        refused(lambda: fill[(1,)](Pointer(), 7, BLOCK=64))
    assert guard.attempts == {"triton-build": 1} and compiled.module is None and not loads
    with no_compilation(**NO_LOAD) as strict, no_compilation("count") as lenient:
        refused(lambda: fill[(1,)](Pointer(), 7, BLOCK=64))
    assert strict.attempts == {"triton-load": 1} and not lenient.attempts
    """
    run_triton(triton_kernel, SETUP, LOADING, MODULE.replace("\\\\n", "\\n"), checks)


ENTRIES = {
    "triton-autotune": "lambda: tuned[(1,)](Pointer(), 7)",
    "triton-build": "build",
    "triton-load": "compiled._init_handles",
}


@pytest.mark.parametrize("road", ENTRIES)
def test_every_thread_and_a_module_imported_again_are_watched(run_triton, triton_kernel: str, road: str) -> None:
    modules = {
        "triton-autotune": ("tuning", "triton.runtime.autotuner"),
        "triton-build": ("building", "triton.runtime.build"),
        "triton-load": ("compiling", "triton.compiler.compiler"),
    }
    variable, module = modules[road]
    again = {
        "triton-autotune": f"lambda: {variable}.Autotuner._bench(tuned, config=configs[0])",
        "triton-build": f"lambda: {variable}._build('answer', 'answer.c', '.', [], [], [], [])",
        "triton-load": f"lambda: {variable}.CompiledKernel._init_handles(compiled)",
    }
    checks = f"""
    import importlib, threading
    from concurrent.futures import ThreadPoolExecutor
    go, outcome = threading.Event(), []
    side = threading.Thread(target=lambda: (go.wait(60), outcome.append(refused({ENTRIES[road]}))))
    side.start()
    guard = Guard()
    guard.arm()
    go.set()
    side.join(60)
    assert outcome[0].attempt.road == {road!r}
    ThreadPoolExecutor(1).submit(refused, {ENTRIES[road]}).result()
    importlib.reload({variable})
    refused({again[road]})
    old = {variable}
    del sys.modules[{module!r}]
    {variable} = importlib.import_module({module!r})
    assert {variable} is not old
    refused({again[road]})
    assert guard.attempts == {{{road!r}: 4}}, guard.attempts
    guard.release()
    assert {road!r} not in installed_roads()
    """
    run_triton(triton_kernel, SETUP, TUNER, LOADING, MODULE.replace("\\\\n", "\\n"), checks)


def test_a_proof_finds_every_road_awake_and_leaves_no_count(run_triton, triton_kernel: str) -> None:
    checks = """
    roads = ("triton", "triton-autotune", "triton-build", "triton-load")
    assert not any(prove(road) for road in roads)
    with no_compilation("count") as outer, no_compilation() as guard:
        assert all(prove(road) is True for road in roads)
        assert not guard.attempts and not outer.attempts and traces() == (0, 0)
        for function in (tuning.Autotuner._bench, building._build, compiling.CompiledKernel._init_handles):
            function.__code__ = function.__wrapped__.__code__
        assert [prove(road) for road in roads] == [True, False, False, False]
    """
    run_triton(triton_kernel, SETUP, checks)


SERVED = """
from triton.runtime.cache import FileCacheManager
class Store(FileCacheManager):
    is_planfreeze_store = True
triton.knobs.cache.manager_class = Store
"""


def test_a_compile_that_a_store_serves_is_no_attempt_and_a_miss_is(run_triton, triton_kernel: str) -> None:
    checks = """
    fill.warmup(Pointer(), 7, BLOCK=64, grid=(1,))
    fill.device_caches.clear()
    with no_compilation() as guard:
        assert fill.warmup(Pointer(), 7, BLOCK=64, grid=(1,)).asm["cubin"]
        assert not guard.attempts
        before = cached_files(), len(started)
        line = sys._getframe().f_lineno + 1
        error = refused(lambda: fill.warmup(Pointer(), 7, BLOCK=128, grid=(1,)))
        assert guard.attempts == {"triton": 1} and (cached_files(), len(started)) == before
        assert error.attempt.location.endswith(f"script.py:{line}"), (line, error)
        assert "BLOCK: 128, num_warps: 4, num_stages: 3" in error.attempt.signature, error
        assert prove("triton") is True
    with no_compilation("count") as guard:
        fill.warmup(Pointer(), 7, BLOCK=128, grid=(1,))
    assert guard.attempts == {"triton": 1}, "ptxas, which follows, is part of it"
    """
    run_triton(triton_kernel, SETUP, SERVED, checks)


def test_ir_from_a_file_that_a_store_does_not_have_is_refused(run_triton, triton_kernel: str) -> None:
    checks = """
    stored = Path("stored.ttir")
    stored.write_text(triton.compile(make_source(), target=SM_90).asm["ttir"])
    before = cached_files(), len(started)
    with no_compilation() as guard:
        error = refused(triton.compile, str(stored), target=SM_90)
    assert error.attempt.kernel == "stored.ttir" and guard.attempts == {"triton": 1}
    assert (cached_files(), len(started)) == before
    assert triton.compile(str(stored), target=SM_90).asm["cubin"]
    with no_compilation() as guard:
        assert triton.compile(str(stored), target=SM_90).asm["cubin"]
    assert not guard.attempts
    """
    run_triton(triton_kernel, SETUP, SERVED, checks)
