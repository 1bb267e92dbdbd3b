"""The roads of torch: compiles and recompiles, Inductor, and extensions are refused before tracing, ninja and gcc."""

import pytest

pytest.importorskip("torch")

SETUP = """
import logging, warnings
from concurrent.futures import ThreadPoolExecutor
from planfreeze.guard import Guard, installed_roads, no_compilation, prove
here = Path.cwd()
os.environ |= {"TORCHINDUCTOR_CACHE_DIR": str(here / "inductor"), "TORCH_EXTENSIONS_DIR": str(here / "extensions")}
COMPILERS = ("gcc", "g++", "c++", "ninja", "cc")
def compilers():
    found = [str(name) for name in started if str(name).rpartition("/")[2] in COMPILERS]
    started.clear()
    return found
"""

DYNAMO = """
import torch
graphs = []
def backend(graph, inputs):
    graphs.append(graph)
    return graph.forward
def scale(x, n):
    return (x * n).sum()
compiled = torch.compile(scale, backend=backend, dynamic=False)
four, five = torch.ones(4), torch.ones(5)
assert compiled(four, 2) == 8 and len(graphs) == 1
def line():
    return sys._getframe(1).f_lineno
"""


def test_a_first_compile_and_a_recompile_are_refused_and_compiled_calls_run(run_script) -> None:
    checks = """
    fresh = torch.compile(lambda x: x + 1, backend=backend)
    model = torch.compile(torch.nn.Linear(4, 4), backend=backend)
    with no_compilation() as guard:
        assert compiled(four, 2) == 8
        here_, error = line(), refused(lambda: compiled(five, 2))
        assert error.attempt.kernel == "__main__.scale" and error.attempt.location.endswith(f"script.py:{here_}")
        assert "x: torch.float32(5,), n: 2; recompile because" in error.attempt.signature
        assert "expected 4, actual 5" in error.attempt.signature, error
        assert "n == 2" in refused(compiled, four, 3).attempt.signature
        assert "recompile" not in refused(fresh, four).attempt.signature
        error = refused(model, four)
        assert error.attempt.kernel.startswith("torch.nn.modules.linear.Linear"), error
        assert "torch.float32(4,)" in error.attempt.signature, error
        refused(lambda: ThreadPoolExecutor(1).submit(compiled, five, 2).result())
        refused(lambda: torch._dynamo.optimize(backend)(scale)(five, 2))
        assert compiled(four, 2) == 8
    assert guard.attempts["torch-compile"] >= 6 and set(guard.attempts) == {"torch-compile"}
    assert len(graphs) == 1
    assert compiled(five, 2) == 10 and fresh(four).sum() == 8 and len(graphs) == 3
    """
    run_script(SETUP, DYNAMO, checks)


@pytest.mark.parametrize("mode", ["warn", "count"])
def test_other_modes_count_and_compile(run_script, mode: str) -> None:
    checks = f"""
    with warnings.catch_warnings(record=True) as caught, no_compilation({mode!r}) as guard:
        warnings.simplefilter("always")
        assert compiled(five, 2) == 10 and compiled(five, 2) == 10
    assert guard.attempts == {{"torch-compile": 1}} and len(graphs) == 2
    assert len([w for w in caught if "torch-compile was asked" in str(w.message)]) == {int(mode == "warn")}
    """
    run_script(SETUP, DYNAMO, checks)


def test_the_programs_stance_stays_and_its_refusals_are_attempts(run_script) -> None:
    checks = """
    from torch._dynamo import eval_frame
    original = eval_frame._callback_from_stance
    stance = torch.compiler.set_stance
    with no_compilation() as guard:
        with stance("fail_on_recompile"):
            assert compiled(four, 2) == 8
            error = refused(compiled, five, 2)
            assert "expected 4, actual 5" in error.attempt.signature
            assert isinstance(error.__context__, RuntimeError)
            assert eval_frame._stance.stance == "fail_on_recompile"
        with stance("force_eager"):
            assert compiled(five, 2) == 10
        with stance("eager_on_recompile"):
            assert compiled(five, 3) == 15
        assert guard.attempts == {"torch-compile": 1}
    with no_compilation("count") as guard, stance("fail_on_recompile"):
        try:
            compiled(five, 2)
        except RuntimeError as error:
            assert "fail_on_recompile" in str(error)
        assert compiled(four, 2) == 8
    assert guard.attempts == {"torch-compile": 1} and len(graphs) == 1
    assert eval_frame._callback_from_stance is original
    """
    run_script(SETUP, DYNAMO, checks)


def test_graphs_without_kernels_are_allowed(run_script) -> None:
    checks = """
    model = torch.nn.Linear(4, 4)
    with no_compilation() as guard:
        for is_strict in (False, True):
            assert torch.export.export(model, (four,), strict=is_strict) is not None
        assert torch.jit.trace(model, four)(four).shape == (4,)
        assert torch.fx.symbolic_trace(model)(four).shape == (4,)
    assert not guard.attempts
    """
    run_script(SETUP, DYNAMO, checks)


def test_errors_that_torch_suppresses_are_counted_and_compile_nothing(run_script) -> None:
    checks = """
    logging.disable(logging.CRITICAL)
    torch._dynamo.config.suppress_errors = True
    with no_compilation() as guard:
        assert compiled(five, 2) == 10
    assert guard.attempts == {"torch-compile": 1} and len(graphs) == 1
    """
    run_script(SETUP, DYNAMO, checks)


def test_torch_imported_after_arming_is_watched(run_script) -> None:
    checks = """
    guard = Guard()
    guard.arm()
    assert "torch" not in sys.modules
    import torch
    error = refused(torch.compile(lambda x: x + 1, backend="eager"), torch.ones(4))
    assert error.attempt.road == "torch-compile"
    assert prove("torch-compile") is True and prove("inductor") is True and prove("cpp-extension") is True
    assert prove("torch-cuda") is True
    assert guard.attempts == {"torch-compile": 1} and compilers() == []
    guard.release()
    assert torch.compile(lambda x: x + 1, backend="eager")(torch.ones(4)).sum() == 8
    assert prove("torch-compile") is False
    """
    run_script(SETUP, checks)


def test_inductor_compiles_through_gcc_unguarded_and_starts_none_guarded(run_script) -> None:
    setup = """
    import torch
    torch._inductor.config.cpp_cache_precompile_headers = False
    def model(x):
        return (x.sin() * x).sum()
    compiled = torch.compile(model, dynamic=False)
    x, other = torch.ones(64, requires_grad=True), torch.ones(65, requires_grad=True)
    graph = torch.fx.symbolic_trace(lambda x: (x.sin() + 1).sum())
    """
    checks = """
    with no_compilation() as guard:
        assert refused(compiled, x).attempt.road == "torch-compile"
        assert "sin" in refused(torch._inductor.compile, graph, [torch.ones(3)]).attempt.kernel
        exported = torch.export.export(torch.nn.Linear(2, 2), (torch.ones(1, 2),))
        assert refused(torch._inductor.aoti_compile_and_package, exported).attempt.road == "inductor"
        refused(torch._inductor.codecache.CppCodeCache.load, "extern void kernel() {}")
        refused(torch._inductor.async_compile.AsyncCompile().cpp_pybinding, [], "#error")
        assert guard.attempts == {"torch-compile": 1, "inductor": 4}, guard.attempts
    assert compilers() == [] and not list(here.rglob("*.so"))
    loss = compiled(x)
    assert compilers(), "gcc makes the kernel of the CPU"
    with no_compilation() as guard:
        assert compiled(x) == loss and not guard.attempts
        # Torch puts off the backward graph until it is asked for.
        error = refused(compiled(x).backward)
        assert error.attempt.road == "inductor" and "cos" in error.attempt.kernel, error
        assert "script.py:" in error.attempt.location, error
    assert compilers() == []
    compiled(x).backward()
    assert x.grad is not None and compilers()
    with no_compilation() as guard:
        compiled(x).backward()
    assert not guard.attempts
    """
    run_script(SETUP, setup, checks)


def test_jobs_of_workers_that_were_started_before_are_refused(run_script) -> None:
    checks = """
    import operator, torch
    from torch._inductor.compile_worker.subproc_pool import SubprocPool
    pool = SubprocPool(1)
    try:
        assert pool.submit(operator.add, 1, 2).result(60) == 3
        with no_compilation() as guard:
            assert "add in a worker" in refused(pool.submit, operator.add, 1, 2).attempt.kernel
        assert guard.attempts == {"inductor": 1}
        assert pool.submit(operator.add, 2, 2).result(60) == 4
    finally:
        pool.shutdown()
    """
    run_script(SETUP, checks)


def test_an_extension_is_built_unguarded_and_loads_again_guarded(run_script) -> None:
    checks = """
    from ctypes import CDLL
    from torch.utils.cpp_extension import load_inline
    source = 'extern "C" int add(int a, int b) { return a + b; }'
    def load(text):
        # Without torch's headers, which take most of a minute.
        return load_inline("planfreeze_sum", text, is_python_module=False, no_implicit_headers=True)
    started.clear()
    with no_compilation() as guard:
        error = refused(load, source)
        assert error.attempt.kernel == "planfreeze_sum" and error.attempt.road == "cpp-extension"
        assert "script.py:" in error.attempt.location
        # A refusal leaves torch in no belief that it has built.
        refused(load, source)
    assert guard.attempts == {"cpp-extension": 2} and compilers() == [] and not list(here.rglob("*.so"))
    assert CDLL(load(source)).add(1, 2) == 3
    assert any("ninja" in name for name in compilers())
    with no_compilation() as guard:
        assert CDLL(load(source)).add(2, 3) == 5 and not guard.attempts
        refused(load, source + "\\n")
    """
    run_script(SETUP, checks)
