"""Counters as Prometheus reads them: its text format, version 0.0.4."""

from collections.abc import Iterable, Mapping

__all__ = ["expose_counter", "expose_gauge"]

Samples = Iterable[tuple[Mapping[str, str], int]]
# A name or value of a label, and the help text, are one line each.
ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})
HELP_ESCAPES = str.maketrans({"\\": "\\\\", "\n": "\\n"})


def expose_counter(name: str, meaning: str, samples: Samples) -> str:
    """Return a counter, one sample per set of labels; ``_total`` is put behind its name."""
    return expose(f"{name}_total", "counter", meaning, samples)


def expose_gauge(name: str, meaning: str, samples: Samples) -> str:
    """Return a gauge, one sample per set of labels."""
    return expose(name, "gauge", meaning, samples)


def expose(name: str, kind: str, meaning: str, samples: Samples) -> str:
    lines = [f"# HELP {name} {meaning.translate(HELP_ESCAPES)}", f"# TYPE {name} {kind}"]
    for labels, value in samples:
        spelled = ",".join(f'{label}="{text.translate(ESCAPES)}"' for label, text in labels.items())
        lines.append(f"{name}{{{spelled}}} {value}" if spelled else f"{name} {value}")
    return "\n".join(lines) + "\n"
