"""Every PLANFREEZE_* environment variable, with its type and default. Nobody else reads the environment."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from planfreeze.errors import HomeMissing, InvalidSetting

__all__ = ["Settings", "read_settings", "store_path", "toolchain_cache", "user_cache"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Settings of this process.

    Parameters
    ----------
    store : Path, optional
        ``PLANFREEZE_STORE``: the store; None means the user's cache directory.
    plans : tuple of str
        ``PLANFREEZE_PLAN``: frozen plans to serve, comma separated, each a reference name, a root digest, or
        both as ``NAME@sha256:ROOT``.
    is_csf_inline : bool
        ``PLANFREEZE_CSF_INLINE``: 0 keeps compressed scales out of the kernels (per-call expansion). Default 1.
    is_store_trusted : bool
        ``PLANFREEZE_TRUST_STORE``: 1 takes unpinned plans from the store whoever owns it. Default 0.
    trusted_keys : tuple of Path
        ``PLANFREEZE_TRUSTED_KEYS``: files of Ed25519 public keys in PEM form, comma separated. With any, a pack is
        taken only when one of them signed it.
    csf_inline_max_tokens : int
        ``PLANFREEZE_CSF_INLINE_MAX_TOKENS``: largest capacity whose grouped kernels read scales inline.
    """

    store: Path | None = None
    plans: tuple[str, ...] = ()
    is_store_trusted: bool = False
    trusted_keys: tuple[Path, ...] = ()
    is_csf_inline: bool = True
    csf_inline_max_tokens: int = 1536


def read_settings(environ: Mapping[str, str] = os.environ) -> Settings:
    """Read the settings.

    Raises
    ------
    InvalidSetting
        A variable does not have its type.
    """
    store = environ.get("PLANFREEZE_STORE")
    return Settings(
        store=Path(store) if store else None,
        plans=tuple(name for name in environ.get("PLANFREEZE_PLAN", "").split(",") if name),
        is_store_trusted=read_switch(environ, "PLANFREEZE_TRUST_STORE", "0"),
        trusted_keys=read_paths(environ, "PLANFREEZE_TRUSTED_KEYS"),
        is_csf_inline=read_switch(environ, "PLANFREEZE_CSF_INLINE", "1"),
        csf_inline_max_tokens=read_count(environ, "PLANFREEZE_CSF_INLINE_MAX_TOKENS", "1536"),
    )


def store_path(settings: Settings) -> Path:
    """Return the store: the one that is set, else one in the user's cache directory.

    Raises
    ------
    HomeMissing
        None is set and the user has no home.
    """
    return settings.store or user_cache() / "store"


def toolchain_cache() -> Path:
    """Return the directory that remembers compiler fingerprints; where there is no home, one that keeps nothing."""
    try:
        return user_cache() / "toolchains"
    except HomeMissing:
        return Path(os.devnull, "toolchains")


def user_cache() -> Path:
    """Return the user's cache directory of planfreeze.

    Raises
    ------
    HomeMissing
        The user has no home, as an arbitrary user of a container.
    """
    from platformdirs import user_cache_path  # slow to import, needed only without PLANFREEZE_STORE

    try:
        path = user_cache_path("planfreeze")
    except RuntimeError as error:
        raise HomeMissing(os.geteuid()) from error
    if not path.is_absolute():  # what older versions of platformdirs make of a home that is not there
        raise HomeMissing(os.geteuid())
    return path


def read_switch(environ: Mapping[str, str], name: str, default: str) -> bool:
    value = environ.get(name, default)
    if value not in ("0", "1"):
        raise InvalidSetting(name, value, "0 or 1")
    return value == "1"


def read_count(environ: Mapping[str, str], name: str, default: str) -> int:
    value = environ.get(name, default)
    if not value.isascii() or not value.isdigit() or len(value) > 10:
        raise InvalidSetting(name, value, "a whole number from 0 to 9999999999")
    return int(value)


def read_paths(environ: Mapping[str, str], name: str) -> tuple[Path, ...]:
    value = environ.get(name, "")
    paths = tuple(Path(path.strip()) for path in value.split(",") if path.strip())
    if value and not paths:
        raise InvalidSetting(name, value, "one or more files, comma separated")
    return paths
