"""The CuTe road: explicit and implicit compiles are refused before tracing, and work again after release."""

import pytest

ENTRIES = {
    "explicit": ("host", "lambda: cute.compile(host, cutlass.Int64(0))"),
    "with options": ("host", "lambda: cute.compile[cute.OptLevel(2)](host, cutlass.Int64(0))"),
    "options bound before": ("host", "lambda: with_options(host, cutlass.Int64(0))"),
    "name bound before": ("host", "lambda: bound(host, cutlass.Int64(0))"),
    "to MLIR": ("host", "lambda: cute.compile.to_precompiled_mlir(host, cutlass.Int64(0))"),
    "implicit": ("greet", "lambda: greet(cutlass.Int32(3))"),
    "implicit, run before": ("warmed", "lambda: warmed(cutlass.Int32(3))"),
    "by the DSL object": ("warmed", "lambda: dsl._func(warmed.__wrapped__, cutlass.Int32(3))"),
    "callable instance": ("Launcher.__call__", "lambda: cute.compile(Launcher(), cutlass.Int64(0))"),
    "thread": ("greet", "lambda: ThreadPoolExecutor(1).submit(greet, cutlass.Int32(3)).result()"),
}

SETUP = """
from concurrent.futures import ThreadPoolExecutor
from planfreeze.guard import Guard, installed_roads, no_compilation, prove, self_test
"""

NAMES = """
from cutlass.cute import compile as bound
from cutlass.base_dsl.compiler import CompileCallable
with_options = cute.compile[cute.OptLevel(2)]
traced = []
class Launcher:
    @cute.jit
    def __call__(self, x: cutlass.Int64):
        traced.append("launcher")
        empty(x).launch(grid=(1, 1, 1), block=(32, 1, 1))
@cute.jit
def inner(count: cutlass.Int32):
    cute.printf("inner %d", count)
@cute.jit
def warmed(count: cutlass.Int32):
    traced.append("warmed")
    inner(count)
warmed(cutlass.Int32(1))
dsl = warmed.__wrapped__._dsl_object
traced.clear()
"""


def test_every_entry_is_refused_before_any_work(run_script, cute_kernel: str) -> None:
    checks = "".join(
        f"with no_compilation() as guard:\n"
        f"    error = refused({entry})\n"
        f"assert guard.attempts == {{'cute': 1}}, ({name!r}, guard.attempts)\n"
        f"assert error.attempt.kernel == '__main__.{kernel}', ({name!r}, error)\n"
        f"assert error.exit_code == 5 and not traced, {name!r}\n"
        for name, (kernel, entry) in ENTRIES.items()
    )
    untouched = "assert not hasattr(greet.__wrapped__, '_preprocessed')\n"
    run_script(cute_kernel, SETUP, NAMES, checks, untouched)


def test_everything_compiles_again_after_release(run_script, cute_kernel: str) -> None:
    checks = """
    code, compiler = CompileCallable._compile.__code__, cute.compile
    with no_compilation():
        refused(greet, cutlass.Int32(3))
        refused(cute.compile[cute.OptLevel(2)], host, cutlass.Int64(0))
        assert CompileCallable._compile.__code__ is not code
    assert CompileCallable._compile.__code__ is code and cute.compile is compiler is bound
    assert installed_roads() == ()
    greet(cutlass.Int32(3))
    for ask in (cute.compile, bound, with_options, cute.compile[cute.OptLevel(2)]):
        assert ask(host, cutlass.Int64(0)) is not None
    cute.compile(Launcher(), cutlass.Int64(0))
    assert traced == ["launcher"]
    """
    said = run_script(cute_kernel, SETUP, NAMES, checks)
    assert "called 3" in said


def test_a_compiled_function_may_be_called(run_script, cute_kernel: str) -> None:
    checks = """
    compiled = cute.compile(greet, cutlass.Int32(0))
    with no_compilation() as guard:
        compiled(cutlass.Int32(5))
    assert not guard.attempts
    """
    assert "called 5" in run_script(cute_kernel, SETUP, NAMES, checks)


@pytest.mark.parametrize("mode", ["warn", "count"])
def test_other_modes_count_once_and_let_the_compile_go_on(run_script, cute_kernel: str, mode: str) -> None:
    checks = f"""
    import warnings
    with warnings.catch_warnings(record=True) as caught, no_compilation({mode!r}) as guard:
        warnings.simplefilter("always")
        warmed(cutlass.Int32(4))
        assert guard.attempts == {{"cute": 1}}, guard.attempts
        assert cute.compile[cute.OptLevel(2)](host, cutlass.Int64(0)) is not None
    assert guard.attempts == {{"cute": 2}} and traced == ["warmed"]
    found = [w for w in caught if w.filename.endswith("script.py") and "cute was asked" in str(w.message)]
    assert len(found) == {2 * (mode == "warn")}, found
    """
    assert "inner 4" in run_script(cute_kernel, SETUP, NAMES, checks)


def test_the_message_shows_the_arguments_and_the_users_line(run_script, cute_kernel: str) -> None:
    checks = """
    from cutlass.cute.runtime import make_fake_compact_tensor
    @cute.jit
    def over(t: cute.Tensor, width: cutlass.Constexpr, count: cutlass.Int32):
        pass
    tensor = make_fake_compact_tensor(cutlass.Float32, (4, 8))
    with no_compilation():
        line = sys._getframe().f_lineno + 1
        error = refused(lambda: cute.compile[cute.OptLevel(2)](over, tensor, 16, cutlass.Int32(1)))
        assert error.attempt.location.endswith(f"script.py:{line}"), (line, error)
        print(error.attempt.signature)
        line = sys._getframe().f_lineno + 1
        error = refused(lambda: greet(cutlass.Int32(1)))
        assert error.attempt.location.endswith(f"script.py:{line}"), (line, error)
        print(error.attempt.signature)
        print(refused(Launcher(), cutlass.Int64(1)).attempt.signature)
        print(refused(cute.compile, Launcher(), cutlass.Int64(1)).attempt.signature)
        print(refused(cute.jit(lambda first, *more: None), 1, 2, cutlass.Int64(3)).attempt.signature)
    """
    explicit, implicit, *instances, variable = run_script(cute_kernel, SETUP, NAMES, checks).splitlines()[-5:]
    assert instances == ["x: Int64", "x: Int64"]
    assert variable == "first: 1, 2, Int64"
    assert explicit == "t: Float32(4, 8), width: 16, count: Int32, OptLevel: 2"
    assert implicit == "count: Int32"


def test_late_and_repeated_imports_are_guarded(run_script, cute_kernel: str) -> None:
    late = """
    guard = Guard()
    guard.arm()
    assert "cute" not in installed_roads() and "cutlass" not in sys.modules
    import cutlass
    assert "cute" in installed_roads()
    """
    again = """
    refused(cute.compile, host, cutlass.Int64(0))
    refused(greet, cutlass.Int32(1))
    import importlib, cutlass.base_dsl.compiler as module
    old = module.CompileCallable
    del sys.modules["cutlass.base_dsl.compiler"]
    module = importlib.import_module("cutlass.base_dsl.compiler")
    assert module.CompileCallable is not old
    refused(module.CompileCallable(), host, cutlass.Int64(0))
    refused(cute.compile, host, cutlass.Int64(0))
    assert guard.attempts == {"cute": 4}
    guard.release()
    greet(cutlass.Int32(7))
    """
    assert "called 7" in run_script(SETUP, late, cute_kernel, again)


def test_the_compiler_of_stored_artifacts_is_refused(run_script, cute_kernel: str) -> None:
    checks = """
    import cutlass.compiler as artifacts
    stored = cute.compile.to_precompiled_mlir(host, cutlass.Int64(0))
    compiler, target = artifacts.CuteCompiler(), artifacts.ArtifactType.CompiledMlir
    original = vars(artifacts.Compiler)["compile_to"]
    with no_compilation() as guard:
        refused(compiler.compile_to, stored, target)
        refused(artifacts.CuteCompiler().compile_to, stored, target)
    assert guard.attempts == {"cute": 2}
    assert vars(artifacts.Compiler)["compile_to"] is original
    assert compiler.compile_to(stored, target) is not None
    """
    run_script(cute_kernel, SETUP, NAMES, checks)


def test_a_proof_finds_the_guard_awake_and_leaves_no_count(run_script, cute_kernel: str) -> None:
    checks = """
    assert prove("cute") is False
    with no_compilation() as guard:
        assert prove("cute") is True and self_test()["cute"] is True
        assert not guard.attempts
        explicit, implicit = CompileCallable._compile, dsl._preprocess_and_replace_code
        explicit.__code__ = explicit.__wrapped__.__code__
        assert prove("cute") is True, "an explicit compile preprocesses, too"
        implicit.__code__ = implicit.__wrapped__.__code__
        assert prove("cute") is False
    """
    run_script(cute_kernel, SETUP, NAMES, checks)


def test_the_constants_of_an_instance_are_facts_of_its_compile(run_script, cute_kernel: str) -> None:
    checks = """
    class Sized(Launcher):
        def __init__(self, width, mode):
            self.width, self.mode, self.shape = width, mode, (1, 2)
    with no_compilation():
        for call in (
            lambda: cute.compile(Sized(8, "plain"), cutlass.Int64(1)),
            lambda: Sized(8, "plain")(cutlass.Int64(1)),
            lambda: cute.compile(Sized(8, "plain").__call__, cutlass.Int64(1)),
        ):
            print(refused(call).attempt.facts)
    """
    said = run_script(cute_kernel, SETUP, NAMES, checks).splitlines()[-3:]
    assert said == ["(('x', 'Int64'), ('width', '8'), ('mode', \"'plain'\"))"] * 3
