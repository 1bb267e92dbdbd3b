"""The text of PTX, instruction by instruction."""

import re
from dataclasses import dataclass


@dataclass
class Instruction:
    guard: str | None
    op: list[str]
    operands: list[str]
    text: str


def parse(text: str) -> Instruction:
    guard = None
    if text.startswith("@"):
        guard, text = text[1:].split(" ", 1)
    name, _, rest = text.partition(" ")
    operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^,\s]+", rest)
    return Instruction(guard, name.split("."), operands, text)
