"""What to do next, for who types the bare name of the command: read from what is there."""

import re

__all__ = ["describe_next_steps"]

Step = tuple[str, str]


def describe_next_steps() -> str:
    """Say what is in the usual store, and with which commands to go on.

    Raises
    ------
    StoreTooNew, DamagedStore, StoreUnusable, DamagedPack, PackTooNew, UntrustedPack, HomeMissing, InvalidSetting
        The store is there and cannot be read, or the settings name none.
    """
    found, steps = find_next_steps()
    listed = "\n".join(f"  # {purpose}\n  {command}" for purpose, command in steps)
    return f"{found}\n\nWhat to do next:\n{listed}\n\nAll commands: planfreeze --help"


def find_next_steps() -> tuple[str, tuple[Step, ...]]:
    """Return what is in the usual store, and commands to go on with, each with what it is for."""
    from planfreeze.cache.readable import open_readable
    from planfreeze.errors import StoreMissing
    from planfreeze.settings import read_settings, store_path

    settings = read_settings()
    path = store_path(settings)
    try:
        store = open_readable(path, is_trusted=settings.is_store_trusted, trusted_keys=settings.trusted_keys)
        names = tuple(sorted(store.list_refs()))
        roots = {name: store.get_ref(name) for name in names}
    except StoreMissing:
        return f"There is no store at {path} yet.", build_steps()
    if not names:
        return f"The store {path} holds no frozen plan yet.", build_steps()
    pinned = [f"{name}@sha256:{roots[name]}" for name in names]
    count = "a frozen plan" if len(names) == 1 else f"{len(names)} frozen plans"
    return f"The store {path} holds {count}:\n  " + "\n  ".join(pinned), serve_steps(names[0], pinned[0])


def build_steps() -> tuple[Step, ...]:
    """Return how to come to a first plan; compilers are installed first where there are none."""
    from importlib.util import find_spec

    has_compilers = all(find_spec(name) is not None for name in ("triton", "cutlass"))
    install = (("install the compilers", "pip install 'planfreeze[build]'"),)
    return (
        *(() if has_compilers else install),
        ("see what a model of the catalog needs", "planfreeze plan --model ds41"),
        ("build it, without a GPU", "planfreeze build --model ds41"),
        ("or record what a program of your own launches", "planfreeze record -o kernels.json -- python run.py"),
    )


def serve_steps(name: str, pinned: str) -> tuple[Step, ...]:
    """Return what to do with a plan that is there: a program opens a model's itself, and is served a recording's."""
    is_models = re.search(r"-tp[0-9]+-sm_[0-9]+a$", name)
    serve = f"PLANFREEZE_PLAN={pinned} planfreeze run --" if is_models else f"planfreeze run --plan {name} --"
    return (
        ("prove that nothing is left to compile", f"planfreeze replay --plan {name}"),
        ("see whether serving would work here", "planfreeze doctor"),
        ("serve with every road to a compiler closed", f"{serve} python serve.py"),
        ("carry it to another machine", f"planfreeze pack --plan {name} -o {name}.pfz"),
    )
