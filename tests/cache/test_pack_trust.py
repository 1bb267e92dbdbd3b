"""Whose packs are trusted: those that nobody else can write, or that are pinned."""

import os
from pathlib import Path

import pytest

from planfreeze.cache.pack import Pack
from planfreeze.errors import (
    UntrustedStore,
)

from .packs import WHOLE

as_root = pytest.mark.skipif(os.geteuid() != 0, reason="making another user's files takes root")


def distrust(path: Path) -> str:
    try:
        Pack.open(path).check_trust()
    except UntrustedStore as error:
        assert error.exit_code == 4
        return error.reason
    return ""


@pytest.mark.parametrize("mode", [0o666, 0o646, 0o777])
def test_an_unpinned_pack_that_others_can_write_is_not_trusted(path: Path, mode: int) -> None:
    assert distrust(path) == ""
    path.chmod(mode)
    assert "can be written by others" in distrust(path)
    Pack.open(path, is_trusted=True).check_trust()


def test_a_pack_in_a_folder_others_can_write_is_not_trusted(path: Path) -> None:
    path.parent.chmod(0o777)
    assert "can be written by others" in distrust(path)
    path.parent.chmod(0o1777)
    assert distrust(path) == "", "in a sticky folder nobody can exchange it"


@as_root
def test_a_pack_or_link_of_another_user_is_not_trusted(path: Path) -> None:
    link = path.with_name("link")
    link.symlink_to(path.name)
    assert distrust(link) == ""
    os.lchown(link, 54321, 54321)
    assert "belongs to user 54321" in distrust(link)
    os.chown(path, 54321, 54321)
    assert "belongs to user 54321" in distrust(path)


@as_root
def test_the_open_file_is_judged_and_not_what_lies_at_its_path_by_now(path: Path) -> None:
    os.chown(path, 54321, 54321)
    pack = Pack.open(path)
    path.rename(path.with_name("moved"))
    path.write_bytes(WHOLE)
    with pytest.raises(UntrustedStore, match="54321"):
        pack.check_trust()
