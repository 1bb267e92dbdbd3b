"""Reports of diagnoses: as text for people and as JSON for programs."""

import sys
from typing import Any

from planfreeze.doctor.diagnosis import Diagnosis, Finding
from planfreeze.reports import print_table

__all__ = ["diagnosis_json", "diagnosis_text"]


def diagnosis_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Return a diagnosis."""
    machine = diagnosis.machine
    return {
        "status": diagnosis.status,
        "versions": dict(machine.versions),
        "driver": machine.driver,
        "cuda": machine.cuda,
        "devices": [{"name": gpu.name, "capability": list(gpu.capability)} for gpu in machine.gpus],
        "tools": dict(machine.tools),
        "roads": dict(diagnosis.roads),
        "unseen": [unseen._asdict() for unseen in diagnosis.unseen],
        "store": diagnosis.store,
        "plans": list(diagnosis.plans),
        "problems": [describe(finding) for finding in diagnosis.findings if finding.level == "problem"],
        "notes": [describe(finding) for finding in diagnosis.findings if finding.level == "note"],
    }


def describe(finding: Finding) -> dict[str, str]:
    return {"what": finding.what, "advice": finding.advice}


def diagnosis_text(diagnosis: Diagnosis) -> None:
    """Print a diagnosis."""
    machine = diagnosis.machine
    devices = [f"{gpu.name} (compute capability {gpu.capability[0]}.{gpu.capability[1]})" for gpu in machine.gpus]
    facts = [
        *((name, version or "not installed") for name, version in machine.versions),
        ("driver", f"{machine.driver or 'none'}, CUDA {machine.cuda or 'none'}"),
        ("devices", "; ".join(devices) or "none"),
        *((tool, path or "not found") for tool, path in machine.tools),
        ("store", diagnosis.store),
        *(("plan", plan) for plan in diagnosis.plans),
    ]
    print_table("This machine", ("", ""), facts)
    print_table("Roads to a compiler", ("road", "guard"), list(diagnosis.roads.items()))
    print_table("What no guard sees", ("", "because"), [(unseen.name, unseen.reason) for unseen in diagnosis.unseen])
    for finding in diagnosis.findings:
        advice = f" -> {finding.advice}" if finding.advice else ""
        sys.stdout.write(f"{finding.level}: {finding.what}{advice}\n")
    works = "works here" if diagnosis.status == 0 else "does not work here: see the problems"
    sys.stdout.write(f"frozen serving {works}\n")
