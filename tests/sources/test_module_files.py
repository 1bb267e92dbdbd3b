"""Where modules would be loaded from, by names that a plan states."""

import pytest

from planfreeze.module_files import find_module


@pytest.mark.parametrize("name", ["..etc", "../../etc", ".", "", "no_such_module", "no_such_package.module"])
def test_a_name_that_no_module_has_is_found_nowhere(name: str) -> None:
    assert find_module(name, {}) is None
