"""Names of plans, and the commands that build the plans of these names."""

import re
import shlex

__all__ = ["FAMILY_OPTION", "build_arguments", "build_command", "plan_name", "recording_arguments"]

FAMILY_OPTION = "--family"


def plan_name(model: str, tp: int, arch: str) -> str:
    """Return the reference name of a plan; one that is no model's says nothing of ranks."""
    return f"{model}-tp{tp}-{arch}" if tp else f"{model}-{arch}"


def build_command(model: str, tp: int, arch: str, options: tuple[str, ...]) -> str:
    """Return the command that builds a plan; a later ``--model`` among the options counts, ``--family`` alone does."""
    stated = dict(zip(options[::2], options[1::2], strict=True))
    if FAMILY_OPTION in stated:
        return shlex.join(["planfreeze", "build", FAMILY_OPTION, stated[FAMILY_OPTION], "--arch", arch])
    arguments = ({"--model": model, "--tp": str(tp)} if tp else {}) | {"--arch": arch} | stated
    return shlex.join(["planfreeze", "build", *(part for pair in arguments.items() for part in pair)])


def build_arguments(name: str) -> tuple[str, ...] | None:
    """Return the build's arguments for a plan's reference name, or None when it is not one."""
    from planfreeze.entry_points import FAMILIES, has_entry_point  # not needed for a plan that is there

    found = re.fullmatch(r"(?P<model>.+)-tp(?P<tp>[0-9]+)-(?P<arch>sm_[0-9]+a)", name)
    families = found["model"].split("-and-") if found and found["tp"] == "1" else [""]
    if found and all(has_entry_point(FAMILIES, family) for family in families):
        return (FAMILY_OPTION, ",".join(families), "--arch", found["arch"])
    return found and ("--model", found["model"], "--tp", found["tp"], "--arch", found["arch"])


def recording_arguments(name: str) -> tuple[str, ...]:
    """Return the build's arguments for a name that is no model's plan: of a recording, its file, or nothing known."""
    if name.endswith(".json"):
        return ("--plan", name)
    found = re.fullmatch(r"(?P<stem>.+)-(?P<arch>sm_[0-9]+a)", name)
    return ("--plan", f"{found['stem']}.json", "--arch", found["arch"]) if found else ("--model", "MODEL", "--tp", "N")
