"""The pytest plugin and single tests that must not compile, in runs of pytest of their own."""

import re
import tomllib

import pytest

from .conftest import ROOT, TRY_IN_CHILD

pytest_plugins = ["pytester"]


def test_the_entry_point_is_the_plugin() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["pytest11"] == {"planfreeze": "planfreeze.pytest_plugin"}


def test_the_plugin_imports_nothing_else_until_it_is_used(interpreter) -> None:
    loaded = interpreter.run(
        """
        import sys, pytest
        before = set(sys.modules)
        import planfreeze.pytest_plugin
        print(*sorted(set(sys.modules) - before))
        """
    )
    assert loaded.split() == ["planfreeze", "planfreeze.pytest_plugin"]


def test_a_run_without_guards_imports_no_guard(run_plain) -> None:
    outcome = run_plain("import sys\ndef test_loaded(): assert 'planfreeze.pytest_plugin.witness' not in sys.modules")
    assert outcome.status == 0, outcome.text


def test_a_marked_test_that_swallows_a_refusal_fails_with_the_attempt(run_plain, pytester: pytest.Pytester) -> None:
    outcome = run_plain(
        """
        import pytest
        from conftest import try_to_compile
        @pytest.mark.no_compilation
        def test_swallowed():
            try_to_compile()
            try_to_compile()
        @pytest.mark.no_compilation
        def test_innocent(): pass
        """
    )
    assert outcome.status == 1
    assert "FAILED test_inner.py::test_swallowed" in outcome.text and "1 failed, 1 passed" in outcome.text
    assert re.search(
        r"triton was asked to compile toys\.add_triton\.add_kernel\(.*block: 128.*\(2 times\)", outcome.text
    )
    assert list((pytester.path / "triton").rglob("*.cubin")) == []


def test_the_fixture_gives_the_guard_and_fails_the_test_with_the_attempt(run_plain) -> None:
    outcome = run_plain(
        """
        from conftest import try_to_compile
        def test_counted(no_compilation):
            assert sum(no_compilation.attempts.values()) == 0
            try_to_compile()
            assert no_compilation.attempts["triton"] == 1
        def test_innocent(no_compilation): pass
        """
    )
    assert (outcome.status, "1 failed, 1 passed" in outcome.text) == (1, True)
    assert outcome.text.count("was asked to compile") >= 1
    assert "add_kernel" in outcome.text


def test_the_fixture_watches_what_other_fixtures_do_after_it(run_plain) -> None:
    outcome = run_plain(
        """
        import pytest
        from conftest import try_to_compile
        @pytest.fixture
        def before(no_compilation): try_to_compile()
        @pytest.fixture
        def after(no_compilation):
            yield
            try_to_compile()
        def test_before(before): pass
        def test_after(after): pass
        """
    )
    assert (outcome.status, "1 failed, 1 passed, 1 error" in outcome.text) == (1, True)


def test_a_test_that_skips_after_it_tried_fails_and_one_that_fails_shows_the_attempt(run_plain) -> None:
    outcome = run_plain(
        """
        import pytest
        from conftest import try_to_compile
        pytestmark = pytest.mark.no_compilation
        def test_skipped():
            try_to_compile()
            pytest.skip("no compiler")
        def test_failed():
            try_to_compile()
            assert 1 == 2
        """
    )
    assert "2 failed" in outcome.text
    assert "assert 1 == 2" in outcome.text
    assert outcome.text.count("was asked to compile") >= 2


def test_an_attempt_in_a_child_process_of_a_marked_test_fails_it(run_plain) -> None:
    outcome = run_plain(
        f"""
        import pytest
        @pytest.mark.no_compilation
        def test_child():
            {TRY_IN_CHILD.strip().replace(chr(10), "; ")}
        """
    )
    assert "1 failed" in outcome.text
    assert "add_kernel" in outcome.text


def test_a_test_may_compile_where_nothing_forbids_it(run_plain, pytester: pytest.Pytester) -> None:
    outcome = run_plain("from conftest import *\ndef test_compile(): try_to_compile()")
    assert (outcome.status, "planfreeze replay" in outcome.text) == (0, False)
    assert len(list((pytester.path / "triton").rglob("*.cubin"))) == 1
