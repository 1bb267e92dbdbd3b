"""The Triton road: every way to lower is refused before a compiler starts, and works again after release."""

import pytest

ENTRIES = {
    "explicit": "lambda: triton.compile(make_source(), target=SM_90)",
    "explicit without target": "lambda: triton.compile(make_source())",
    "name bound before": "lambda: bound(make_source(), target=SM_90)",
    "module name bound before": "lambda: c.compile(make_source(), target=SM_90)",
    "jit call": "lambda: fill[(1,)](Pointer(), 7, BLOCK=64)",
    "warm-up": "lambda: fill.warmup(Pointer(), 7, BLOCK=64, grid=(1,))",
    "compiler kept by a kernel": "lambda: kept.compile(make_source(), target=SM_90)",
    "warm-up of a tuner": "lambda: tuned.warmup(Pointer(), 7, grid=(1,))",
    "tuner of one configuration": "lambda: tuned_to_one[(1,)](Pointer(), 7)",
    "heuristics": "lambda: guessed[(1,)](Pointer(), 7)",
    "Gluon call": "lambda: gluon_fill[(1,)](Pointer(), 7)",
    "Gluon source": "lambda: triton.compile(GluonASTSource(gluon_fill, {'x': '*fp32', 'n': 'i32'}), target=SM_90)",
    "ahead-of-time tool": "lambda: compile_kernel(CompileArgs('tool.py', 'fill', '*fp32:16, i32, 64', '1,1,1'))",
    "front end": "lambda: make_source().make_ir(SM_90, None, None, None, None)",
    "pool thread": "lambda: ThreadPoolExecutor(1).submit(triton.compile, make_source(), target=SM_90).result()",
    "user thread": "lambda: ThreadPoolExecutor(1).submit(lambda: triton.compile(make_source())).result()",
    "asynchronous": "asynchronous",
}

SETUP = """
from concurrent.futures import ThreadPoolExecutor
from planfreeze.guard import Guard, installed_roads, no_compilation, prove, self_test
"""

NAMES = """
from triton import compile as bound
import triton.compiler.compiler as c
use_driver()
kept = triton.jit(fill.fn)
kept.warmup(Pointer(), 7, BLOCK=32, grid=(1,))
configs = [triton.Config({"BLOCK": block}) for block in (64, 128)]
tuned = triton.autotune(configs, key=[])(triton.jit(fill.fn))
tuned_to_one = triton.autotune(configs[:1], key=[])(triton.jit(fill.fn))
guessed = triton.heuristics({"BLOCK": lambda arguments: 64})(triton.jit(fill.fn))
from triton.experimental import gluon
from triton.experimental.gluon._runtime import GluonASTSource
from triton.tools.compile import CompileArgs, compile_kernel
@gluon.jit
def gluon_fill(x, n):
    pass
Path("tool.py").write_text('''
import triton, triton.language as tl
@triton.jit
def fill(x, n, BLOCK: tl.constexpr):
    tl.store(x, n.to(tl.float32))
''')
def asynchronous():
    with ThreadPoolExecutor(1) as pool, triton.AsyncCompileMode(pool):
        fill.warmup(Pointer(), 7, BLOCK=64, grid=(1,))
heard = []
triton.knobs.compilation.listener = lambda **facts: heard.append(facts["cache_hit"])
before = traces()
"""


def test_every_entry_is_refused_before_any_work(run_triton, triton_kernel: str) -> None:
    checks = "".join(
        f"with no_compilation() as guard:\n"
        f"    error = refused({entry})\n"
        f"assert guard.attempts == {{'triton': 1}}, ({name!r}, guard.attempts)\n"
        f"assert error.attempt.kernel.endswith('fill'), ({name!r}, error)\n"
        f"assert 'script.py:' in error.attempt.location, ({name!r}, error)\n"
        f"assert traces() == before and not heard, {name!r}\n"
        for name, entry in ENTRIES.items()
    )
    run_triton(triton_kernel, SETUP, NAMES, checks)


def test_every_entry_compiles_again_after_release(run_triton, triton_kernel: str) -> None:
    checks = """
    code, defaults, attributes = bound.__code__, bound.__kwdefaults__, dict(bound.__dict__)
    path = list(sys.meta_path)
    with no_compilation():
        refused(fill.warmup, Pointer(), 7, BLOCK=64, grid=(1,))
        assert bound.__code__ is not code
    assert bound.__code__ is code and bound.__kwdefaults__ is defaults and bound.__dict__ == attributes
    assert sys.meta_path == path and installed_roads() == ()
    assert fill.warmup(Pointer(), 7, BLOCK=64, grid=(1,)).asm["cubin"]
    asynchronous()
    assert bound(make_source(128), target=SM_90).asm["cubin"]
    assert traces()[0] > before[0] and traces()[1] > before[1] and heard == [False, False]
    """
    run_triton(triton_kernel, SETUP, NAMES, checks)


def test_a_specialization_in_memory_is_allowed_and_one_on_disk_is_not(run_triton, triton_kernel: str) -> None:
    checks = """
    compiled = fill.warmup(Pointer(), 7, BLOCK=64, grid=(1,))
    heard.clear()
    with no_compilation() as guard:
        assert fill.warmup(Pointer(), 9, BLOCK=64, grid=(1,)) is compiled
        assert guard.attempts["triton"] == 0
        fill.device_caches.clear()
        refused(fill.warmup, Pointer(), 7, BLOCK=64, grid=(1,))
        assert guard.attempts["triton"] == 1 and not heard
    fill.warmup(Pointer(), 7, BLOCK=64, grid=(1,))
    assert heard == [True]
    """
    run_triton(triton_kernel, SETUP, NAMES, checks)


def test_a_refused_preload_works_after_release(run_triton, triton_kernel: str) -> None:
    checks = """
    stored = []
    triton.knobs.runtime.jit_cache_hook = lambda **facts: stored.append(facts["compile"]["specialization_data"])
    fill.warmup(Pointer(), 7, BLOCK=64, grid=(1,))
    fill.device_caches.clear()
    heard.clear()
    with no_compilation() as guard:
        error = refused(fill.preload, stored[0])
        assert "BLOCK: 64" in error.attempt.signature, error
    assert guard.attempts == {"triton": 1} and not heard
    assert fill.preload(stored[0]).asm["cubin"]
    """
    run_triton(triton_kernel, SETUP, NAMES, checks)


def test_hooks_of_others_keep_working(run_triton, triton_kernel: str) -> None:
    checks = """
    asked, finished = [], []
    hook = lambda **facts: asked.append(facts["fn"].name)
    after = lambda **facts: finished.append(facts["fn"].name)
    runtime, listener = triton.knobs.runtime, triton.knobs.compilation.listener
    runtime.jit_cache_hook, runtime.jit_post_compile_hook = hook, after
    with no_compilation():
        refused(fill.warmup, Pointer(), 7, BLOCK=64, grid=(1,))
        assert asked == ["fill"] and not finished and not heard
        assert runtime.jit_cache_hook is hook and runtime.jit_post_compile_hook is after
    with no_compilation("count"):
        fill.warmup(Pointer(), 7, BLOCK=64, grid=(1,))
    assert asked == ["fill", "fill"] and finished == ["fill"] and heard == [False]
    assert triton.knobs.compilation.listener is listener
    """
    run_triton(triton_kernel, SETUP, NAMES, checks)


def test_a_replaced_compile_function_is_guarded_too(run_triton, triton_kernel: str) -> None:
    checks = """
    def wrap(inner):
        def compile(*arguments, **options):
            return inner(*arguments, **options)
        return compile
    c.compile = wrap(c.compile)
    with no_compilation() as guard:
        refused(c.compile, make_source(), target=SM_90)
        triton.compile = wrap(triton.compile)
        refused(c.compile, make_source(), target=SM_90)
        assert guard.attempts == {"triton": 2}
        # The original under an old name is behind the user's wrapper: the front end is guarded.
        refused(bound, make_source(), target=SM_90)
    assert not heard and traces()[1] == before[1]
    assert triton.compile(make_source(), target=SM_90).asm["cubin"]
    """
    run_triton(triton_kernel, SETUP, NAMES, checks)


@pytest.mark.parametrize("mode", ["warn", "count"])
def test_other_modes_count_once_and_let_the_compile_go_on(run_triton, triton_kernel: str, mode: str) -> None:
    checks = f"""
    import warnings
    with warnings.catch_warnings(record=True) as caught, no_compilation({mode!r}) as guard:
        warnings.simplefilter("always")
        assert fill.warmup(Pointer(), 7, BLOCK=64, grid=(1,)).asm["cubin"]
    assert guard.attempts == {{"triton": 1}} and heard == [False]
    found = [str(w.message) for w in caught if w.filename.endswith("script.py")]
    assert len(found) == {int(mode == "warn")} and all("fill(" in text for text in found), found
    """
    run_triton(triton_kernel, SETUP, NAMES, checks)


def test_the_message_names_kernel_road_line_and_specialization(run_triton, triton_kernel: str) -> None:
    checks = """
    with no_compilation(explain=lambda attempt: f"Nearest is {attempt.kernel}-128."):
        line = sys._getframe().f_lineno + 1
        error = refused(lambda: triton.compile(make_source(), target=SM_90, options={"num_warps": 2}))
    print(error)
    assert error.exit_code == 5
    assert error.attempt.location.endswith(f"script.py:{line}"), (line, error)
    """
    said = run_triton(triton_kernel, SETUP, NAMES, checks)
    assert "triton was asked to compile __main__.fill(" in said
    assert "x: *fp32 (divisible by 16), n: i32, BLOCK: 64, num_warps: 2, target: cuda:90" in said
    assert "Nearest is __main__.fill-128. Run: planfreeze build" in said


def test_ir_read_from_a_file_is_refused_too(run_triton, triton_kernel: str) -> None:
    checks = """
    source = Path("stored.ttir")
    source.write_text(triton.compile(make_source(), target=SM_90).asm["ttir"])
    before = traces()
    with no_compilation() as guard:
        error = refused(triton.compile, str(source), target=SM_90)
    assert error.attempt.kernel == "stored.ttir" and guard.attempts == {"triton": 1}
    assert traces() == before
    assert triton.compile(str(source), target=SM_90).asm["cubin"]
    """
    run_triton(triton_kernel, SETUP, NAMES, checks)


def test_jit_attempts_show_what_the_call_was_specialized_on(run_triton, triton_kernel: str) -> None:
    checks = """
    with no_compilation():
        print(refused(fill.warmup, Pointer(), 1, BLOCK=64, grid=(1,)).attempt.signature)
        print(refused(fill.warmup, Pointer(), 32, BLOCK=64, grid=(1,)).attempt.signature)
    """
    ones, aligned = run_triton(triton_kernel, SETUP, NAMES, checks).splitlines()
    assert ones.startswith("x: *fp32 (divisible by 16), n: 1, BLOCK: 64, num_warps: 4,")
    assert aligned.startswith("x: *fp32 (divisible by 16), n: i32 (divisible by 16), BLOCK: 64, num_warps: 4,")


def test_late_and_repeated_imports_are_guarded(run_triton, triton_kernel: str) -> None:
    late = """
    guard = Guard()
    guard.arm()
    assert "triton" not in installed_roads() and "triton" not in sys.modules
    import triton.compiler.compiler as first
    assert {"triton", "triton-load"} <= set(installed_roads())
    assert "planfreeze" not in type(first.__loader__).__module__ and first.__spec__.loader is first.__loader__
    """
    again = """
    old = triton.compile
    refused(triton.compile, make_source(), target=SM_90)
    import importlib
    reloaded = importlib.reload(first)
    refused(reloaded.compile, make_source(), target=SM_90)
    refused(old, make_source(), target=SM_90)
    del sys.modules["triton.compiler.compiler"], sys.modules["triton.compiler"]
    import triton.compiler.compiler as second
    assert second is not first
    refused(second.compile, make_source(), target=SM_90)
    assert guard.attempts == {"triton": 4} and traces() == (0, 0)
    guard.release()
    # A reload gives the old function the module's new classes.
    ASTSource = first.ASTSource
    assert old(make_source(), target=SM_90).asm["cubin"]
    assert guard.attempts == {"triton": 4}
    """
    run_triton(SETUP, late, triton_kernel, again)


def test_a_proof_finds_the_guard_awake_and_leaves_no_count(run_triton, triton_kernel: str) -> None:
    checks = """
    assert prove("triton") is False
    with no_compilation("count") as outer, no_compilation() as guard:
        assert prove("triton") is True and self_test()["triton"] is True
        assert not guard.attempts and not outer.attempts
        triton.compile.__code__ = triton.compile.__wrapped__.__code__
        assert prove("triton") is True, "the front end is a second line"
        front_end = sys.modules["triton.compiler.code_generator"].ast_to_ttir
        front_end.__code__ = front_end.__wrapped__.__code__
        assert prove("triton") is False
    """
    run_triton(triton_kernel, SETUP, NAMES, checks)


def test_an_unknown_version_is_refused_instead_of_unwatched(run_triton, triton_kernel: str) -> None:
    checks = """
    from planfreeze.errors import UnwatchableRoad
    kept = c.compile
    del c.compile
    guard = Guard()
    try:
        guard.arm()
    except UnwatchableRoad as error:
        assert "triton.compiler.compiler:compile" in str(error)
    else:
        raise AssertionError("armed without its door")
    assert not guard.is_armed and installed_roads() == ()
    c.compile = kept
    with no_compilation():
        refused(triton.compile, make_source(), target=SM_90)
    """
    run_triton(triton_kernel, SETUP, NAMES, checks)
