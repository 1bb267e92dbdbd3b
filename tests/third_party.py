"""The example package of somebody else, installed into a folder as pip does."""

import json
import os
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "examples" / "third_party"
VARIANTS = {
    "sample_softmax": 7,
    "sample_matmul": 4,
    "sample_layer_norm": 16,
    "sample_scale_add": 2,
    "sample_gemm": 2,
}


@dataclass(frozen=True)
class Installation:
    """A copy of the example, installed with its entry points in a folder of its own."""

    folder: Path
    toolchains: Path

    def run(self, *command: str, status: int = 0) -> subprocess.CompletedProcess[str]:
        """Run Python with the copy on its path."""
        folders = (str(self.folder), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")]))
        done = subprocess.run(
            [sys.executable, *command],
            cwd=self.folder,
            env={
                **os.environ,
                "PYTHONPATH": os.pathsep.join(folders),
                "XDG_CACHE_HOME": str(self.folder / "cache"),
                "CUDA_VISIBLE_DEVICES": "",
            },
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == status, done.stdout + done.stderr
        return done

    def planfreeze(self, *arguments: str, status: int = 0) -> Any:
        """Run the command line and return what it printed as JSON."""
        return json.loads(self.run("-m", "planfreeze", *arguments, "--json", status=status).stdout)

    def refused(self, *arguments: str, status: int) -> str:
        """Run the command line, which has to refuse, and return what it says."""
        return self.run("-m", "planfreeze", *arguments, status=status).stderr

    def edit(self, module: str, old: str, new: str) -> None:
        """Change the text of a module."""
        path = self.folder / "sample_kernels" / f"{module}.py"
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))

    def keys(self, *names: str) -> dict[str, str]:
        """The key of every planned program, by what it is."""
        script = (
            "import sys, json; from pathlib import Path; from planfreeze.explanations import find_family; "
            "from planfreeze.keyed import key_plan; from planfreeze.plans import plan_families; "
            "from planfreeze.target import target; names = sys.argv[1:]; "
            "plan = plan_families([find_family(n) for n in names], names, target=target('sm_90a')); "
            f"print(json.dumps({{p.name: p.key.digest for p in key_plan(plan, Path({str(self.toolchains)!r}))}}))"
        )
        found: dict[str, str] = json.loads(self.run("-c", script, *names).stdout)
        return found


def install(folder: Path, toolchains: Path) -> Installation:
    """Install the example into a folder, as pip does, without building a wheel."""
    shutil.copytree(EXAMPLE / "sample_kernels", folder / "sample_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    write_distribution(folder, project["name"], project["entry-points"])
    (folder / "cache" / "planfreeze").mkdir(parents=True)
    (folder / "cache" / "planfreeze" / "toolchains").symlink_to(toolchains)
    return Installation(folder, toolchains)


def write_distribution(folder: Path, name: str, groups: Mapping[str, Mapping[str, str]]) -> None:
    """Write the metadata of an installed distribution with entry points."""
    info = folder / f"{name.replace('-', '_')}-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0.1.0\n")
    lines = [f"[{group}]\n" + "".join(f"{key} = {value}\n" for key, value in e.items()) for group, e in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines))
