"""Every PLANFREEZE_* environment variable, with its type and default. Nobody else reads the environment."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple, cast, get_args

from planfreeze import errors

__all__ = [
    "GuardSettings",
    "InheritedSettings",
    "Mode",
    "Settings",
    "read_code_generation",
    "read_guard_settings",
    "read_inherited_settings",
    "read_settings",
    "store_path",
    "toolchain_cache",
    "user_cache",
]

Mode = Literal["raise", "warn", "count", "off"]


class Settings(NamedTuple):
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
    csf_inline_max_tokens : int, optional
        ``PLANFREEZE_CSF_INLINE_MAX_TOKENS``: largest capacity whose grouped kernels read scales inline. Default: the
        one measured for the architecture.
    """

    store: Path | None = None
    plans: tuple[str, ...] = ()
    is_store_trusted: bool = False
    trusted_keys: tuple[Path, ...] = ()
    is_csf_inline: bool = True
    csf_inline_max_tokens: int | None = None


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
        csf_inline_max_tokens=read_count(environ, "PLANFREEZE_CSF_INLINE_MAX_TOKENS"),
    )


class GuardSettings(NamedTuple):
    """What a process is asked to guard, by the one that started it.

    Parameters
    ----------
    mode : str, optional
        ``PLANFREEZE_GUARD``: raise, warn, count or off; None where the variable is not set.
    allowed : frozenset of str
        ``PLANFREEZE_GUARD_ALLOWED``: roads to let pass, comma separated.
    log : Path, optional
        ``PLANFREEZE_GUARD_LOG``: file to which armed guards add every attempt.
    """

    mode: Mode | None = None
    allowed: frozenset[str] = frozenset()
    log: Path | None = None


def read_guard_settings(environ: Mapping[str, str] = os.environ) -> GuardSettings:
    """Read the settings of guards.

    Raises
    ------
    InvalidSetting
        ``PLANFREEZE_GUARD`` is not a mode.
    """
    mode, log = environ.get("PLANFREEZE_GUARD"), environ.get("PLANFREEZE_GUARD_LOG")
    if mode and mode not in get_args(Mode):
        raise errors.InvalidSetting("PLANFREEZE_GUARD", mode, "raise, warn, count or off")
    return GuardSettings(
        mode=cast("Mode", mode) if mode else None,
        allowed=frozenset(name for name in environ.get("PLANFREEZE_GUARD_ALLOWED", "").split(",") if name),
        log=Path(log).absolute() if log else None,
    )


class InheritedSettings(NamedTuple):
    """What a process is asked for by the command that started it.

    Parameters
    ----------
    plan : str, optional
        ``PLANFREEZE_SERVE``: frozen plan that compilers' own runtimes are served from.
    store : Path, optional
        ``PLANFREEZE_STORE``: where it is; None means the user's cache directory.
    is_store_trusted : bool
        ``PLANFREEZE_TRUST_STORE``: 1 takes the plan without a root digest, whoever owns the store.
    log : Path, optional
        ``PLANFREEZE_SERVE_LOG``: file to which every program that is served is added.
    folder : Path, optional
        ``PLANFREEZE_RECORD``: folder to which every process writes what it launches.
    """

    plan: str | None
    store: Path | None
    is_store_trusted: bool
    log: Path | None
    folder: Path | None


def read_inherited_settings(environ: Mapping[str, str] = os.environ) -> InheritedSettings:
    """Read what a process is asked for by the command that started it.

    Raises
    ------
    InvalidSetting
        A variable does not have its type.
    """
    settings = read_settings(environ)
    log, folder = environ.get("PLANFREEZE_SERVE_LOG"), environ.get("PLANFREEZE_RECORD")
    return InheritedSettings(
        plan=environ.get("PLANFREEZE_SERVE") or None,
        store=settings.store,
        is_store_trusted=settings.is_store_trusted,
        log=Path(log) if log else None,
        folder=Path(folder) if folder else None,
    )


# Variables by which Triton and its backend make other code; each is part of what a recorded program was made of.
CODE_GENERATION = (
    "PTXAS_OPTIONS",
    "TRITON_DEBUG",
    "TRITON_DEFAULT_FP_FUSION",
    "TRITON_DISABLE_LINE_INFO",
    "TRITON_F32_DEFAULT",
    "TRITON_FORCE_DISABLE_FP_FUSION",
    "TRITON_LIBDEVICE_PATH",
    "TRITON_OVERRIDE_ARCH",
    "TRITON_PTXAS_BLACKWELL_PATH",
    "TRITON_PTXAS_PATH",
    "USE_IR_LOC",
)


def read_code_generation(environ: Mapping[str, str] = os.environ) -> tuple[tuple[str, str], ...]:
    """Return the variables of code generation that are set to something, sorted by name."""
    return tuple((name, environ[name]) for name in CODE_GENERATION if environ.get(name))


def store_path(settings: Settings | InheritedSettings) -> Path:
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
    except errors.HomeMissing:
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
        raise errors.HomeMissing(os.geteuid()) from error
    if not path.is_absolute():  # what older versions of platformdirs make of a home that is not there
        raise errors.HomeMissing(os.geteuid())
    return path


def read_switch(environ: Mapping[str, str], name: str, default: str) -> bool:
    value = environ.get(name, default)
    if value not in ("0", "1"):
        raise errors.InvalidSetting(name, value, "0 or 1")
    return value == "1"


def read_count(environ: Mapping[str, str], name: str) -> int | None:
    value = environ.get(name)
    if value is None:
        return None
    if not value.isascii() or not value.isdigit() or len(value) > 10:
        raise errors.InvalidSetting(name, value, "a whole number from 0 to 9999999999")
    return int(value)


def read_paths(environ: Mapping[str, str], name: str) -> tuple[Path, ...]:
    value = environ.get(name, "")
    paths = tuple(Path(path.strip()) for path in value.split(",") if path.strip())
    if value and not paths:
        raise errors.InvalidSetting(name, value, "one or more files, comma separated")
    return paths
