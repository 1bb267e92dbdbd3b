"""The command line over a store: exit statuses, messages, and what it imports."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from .command_line import DS41, FAMILIES, MODEL, ROOT, run, spawn

# A replay proves the roads of every framework that is found; test_build_to_launch.py has one with all of them.
pytestmark = pytest.mark.usefixtures("hide_frameworks")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = tmp_path_factory.mktemp("cli") / "store"
    status, stdout, stderr = run("build", *MODEL, "--store", store, "--json")
    assert status == 0, stderr
    assert json.loads(stdout)["compiled"] == len(FAMILIES)
    return store


@pytest.fixture
def store(built: Path, tmp_path: Path) -> Path:
    return shutil.copytree(built, tmp_path / "store")


def test_a_built_plan_replays(store: Path) -> None:
    status, stdout, stderr = run("replay", *MODEL, "--store", store, "--json")
    assert status == 0, stderr
    found = json.loads(stdout)
    assert (found["resolved"], found["missing"], found["damaged"], found["compiled"]) == (5, [], [], 0)


def test_a_replay_by_name_pinned_to_its_root_needs_no_model(store: Path) -> None:
    root = json.loads(run("build", *MODEL, "--store", store, "--json")[1])["plans"][0]["root"]
    assert run("replay", "--plan", f"ds41-tp4-sm_90a@sha256:{root}", "--store", store)[0] == 0
    # As of a variable that nobody has set: not all plans that are there.
    assert run("replay", "--plan", "", "--store", store)[0] == 2
    status, _, stderr = run("replay", "--plan", f"ds41-tp4-sm_90a@sha256:{'0' * 64}", "--store", store)
    assert status == 3
    assert "ds41-tp4-sm_90a" in stderr


def test_a_missing_record_exits_3_and_names_program_and_build_command(store: Path) -> None:
    record = next((store / "records").glob("*/*"))
    record.unlink()
    status, stdout, stderr = run("replay", *MODEL, "--store", store, "--json")
    assert status == 3
    (missing,) = json.loads(stdout)["missing"]
    assert missing.partition("(")[0] in FAMILIES
    assert missing in stderr
    assert f"planfreeze build {' '.join(MODEL)} --store {store}" in stderr


@pytest.mark.parametrize("folder", ["objects", "records", "plans"])
def test_a_flipped_byte_exits_4(store: Path, folder: str) -> None:
    damaged = next(path for path in (store / folder).rglob("*") if path.is_file())
    data = bytearray(damaged.read_bytes())
    data[len(data) // 2] ^= 1
    damaged.chmod(0o644)
    damaged.write_bytes(data)
    status, _, stderr = run("replay", *MODEL, "--store", store)
    assert status == 4
    if folder != "plans":
        assert any(f"{family}(" in stderr for family in FAMILIES)


def test_a_build_repairs_what_is_damaged(store: Path) -> None:
    damaged = next((store / "objects").glob("*/*"))
    damaged.chmod(0o644)
    damaged.write_bytes(b"")
    assert json.loads(run("build", *MODEL, "--store", store, "--json")[1])["compiled"] == 1
    assert run("replay", *MODEL, "--store", store)[0] == 0


def test_a_plan_that_asks_for_more_than_was_built_exits_3(store: Path) -> None:
    status, stdout, _ = run("replay", *DS41, "--store", store, "--json")
    assert status == 3
    assert any("micro_fc1" in name for name in json.loads(stdout)["missing"])


def test_a_plan_that_was_never_frozen_exits_3(store: Path) -> None:
    status, _, stderr = run("replay", "--model", "kimi_k3", "--tp", "16", "--arch", "sm_90a", "--store", store)
    assert status == 3
    assert "planfreeze build --model kimi_k3 --tp 16 --arch sm_90a" in stderr


def test_no_store_exits_3_and_a_newer_one_4(store: Path, tmp_path: Path) -> None:
    assert run("replay", *MODEL, "--store", tmp_path / "nowhere")[0] == 3
    (store / "format").chmod(0o644)
    (store / "format").write_text((store / "format").read_text().replace("1", "999"))
    status, _, stderr = run("replay", *MODEL, "--store", store)
    assert status == 4
    assert "999" in stderr
    assert run("build", *MODEL, "--store", store)[0] == 4


def test_a_missing_compiler_exits_6_and_names_the_extra(tmp_path: Path) -> None:
    hide = tmp_path / "sitecustomize.py"
    hide.write_text(
        "import importlib.metadata as m\n"
        "found = m.distribution\n"
        "def distribution(name):\n"
        "    if name in ('triton', 'nvidia-cutlass-dsl'): raise m.PackageNotFoundError(name)\n"
        "    return found(name)\n"
        "m.distribution = distribution\n"
    )
    done = spawn("build", *MODEL, "--store", tmp_path / "store", PYTHONPATH=str(tmp_path))
    assert done.returncode == 6
    assert "planfreeze[build]" in done.stderr


def test_loading_on_a_machine_without_a_device_exits_6(store: Path) -> None:
    done = spawn("replay", *MODEL, "--store", store, "--device", CUDA_VISIBLE_DEVICES="", PYTHONPATH=str(ROOT))
    assert done.returncode == 6
    assert "no CUDA device" in done.stderr


def test_explain_shows_the_key_and_finds_a_stored_payload(store: Path) -> None:
    status, stdout, _ = run(
        "explain", "topk_sum", "hidden=5120", "top_k=6", "--arch", "sm_90a", "--store", store, "--json"
    )
    (found,) = json.loads(stdout)["programs"]
    assert (status, found["stored"], found["nearest"]) == (0, True, "")
    assert found["labels"]["arch"] == "sm_90a"
    assert {"family", "payload", "sources", "toolchain"} <= set(found["labels"])


def test_explain_names_the_nearest_stored_payload_with_the_fields_that_differ(store: Path) -> None:
    status, stdout, _ = run("explain", "topk_sum", "hidden=5120", "top_k=8", "--arch", "sm_90a", "--store", store)
    assert status == 3
    assert "top_k: 6 -> 8" in stdout


@pytest.mark.parametrize(
    "fields", [["hidden=5120"], ["hidden=5120", "top_k=6", "colour=1"], ["hidden"], ["hidden=a", "top_k=6"]]
)
def test_explain_refuses_fields_the_payload_does_not_have(store: Path, fields: list[str]) -> None:
    status, _, stderr = run("explain", "topk_sum", *fields, "--arch", "sm_90a", "--store", store)
    assert status == 2
    assert "topk_sum" in stderr


def test_explain_of_an_unknown_family_exits_3(store: Path) -> None:
    assert run("explain", "no_such_family", "--arch", "sm_90a", "--store", store)[0] == 3


@pytest.mark.parametrize("arguments", [("plan", *MODEL), ("build", *MODEL), ("replay", *MODEL), ("--help",)])
def test_no_command_imports_a_compiler_when_nothing_is_to_compile(store: Path, arguments: tuple[str, ...]) -> None:
    where = () if arguments[0] in ("plan", "--help") else ("--store", store)
    script = (
        "import sys, atexit\n"
        "def report():\n"
        "    heavy = {'triton', 'cutlass', 'torch', 'cuda'} & {name.partition('.')[0] for name in sys.modules}\n"
        "    sys.stderr.write(f'heavy: {sorted(heavy)}')\n"
        "atexit.register(report)\n"
        f"sys.argv = ['planfreeze', *{[*map(str, (*arguments, *where))]!r}]\n"
        "from planfreeze.cli import main\n"
        "main()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.endswith("heavy: []")


@pytest.mark.parametrize("command", ["plan", "build", "replay"])
def test_a_recording_of_nothing_exits_3_without_an_architecture_too(tmp_path: Path, store: Path, command: str) -> None:
    parts = ("archs", "programs", "choices", "refused")
    content = {"magic": "planfreeze recording", "format": 1, **{part: [] for part in parts}, "unused": 0}
    recording = {**content, "versions": {}, "environment": {}, "source_roots": ["."]}
    (tmp_path / "run.json").write_text(json.dumps(recording))
    where = () if command == "plan" else ("--store", store)
    status, _, stderr = run(command, "--plan", tmp_path / "run.json", *where)
    assert status == 3 and "launched no Triton or CuTe program" in stderr


def test_a_pin_without_a_digest_is_refused_and_trusts_nothing(store: Path) -> None:
    store.chmod(0o777)
    assert run("replay", "--plan", "ds41-tp4-sm_90a", "--store", store)[0] == 4
    assert run("replay", "--plan", "ds41-tp4-sm_90a@sha256:", "--store", store)[0] == 2


def test_a_pinned_plan_survives_the_next_build_of_its_name(store: Path) -> None:
    root = json.loads(run("build", *MODEL, "--store", store, "--json")[1])["plans"][0]["root"]
    pinned = ("replay", "--plan", f"ds41-tp4-sm_90a@sha256:{root}", "--store", store)
    other = ("--model", "ds41", "--tp", "1", "--arch", "sm_90a", "--capacity", "64", "--ids", "int32")
    moved = run("build", *other, "--arms", "native", "--store", store)
    (store / "refs" / "ds41-tp4-sm_90a").write_bytes((store / "refs" / "ds41-tp1-sm_90a").read_bytes())
    assert moved[0] == 0
    assert run(*pinned)[0] == 0
    (store / "refs" / "ds41-tp4-sm_90a").unlink()
    assert run(*pinned)[0] == 0


def test_a_root_digest_alone_proves_an_untrusted_store(store: Path) -> None:
    root = json.loads(run("build", *MODEL, "--store", store, "--json")[1])["plans"][0]["root"]
    store.chmod(0o777)
    assert run("replay", "--plan", root, "--store", store)[0] == 0


def test_the_command_in_an_error_carries_options_and_file(tmp_path: Path, store: Path) -> None:
    model = tmp_path / "my model.toml"
    model.write_text(
        'hidden = 256\nintermediate = 128\nexperts = 4\ntop_k = 2\nweight_format = "mxfp4"\nname = "mine"\n'
    )
    status, _, stderr = run("replay", "--model", model, "--arch", "sm_90a", "--capacity", "64,128", "--store", store)
    assert status == 3
    assert "planfreeze build --model 'my model.toml' --tp 1 --arch sm_90a --capacity 64,128" in stderr


def test_a_program_the_plan_lacks_is_told_from_one_the_store_lacks(store: Path) -> None:
    _, stdout, _ = run("replay", *DS41, "--store", store, "--json")
    assert all(name.endswith(": not in the frozen plan") for name in json.loads(stdout)["missing"])
    assert run("build", *MODEL, "--arch", "sm_90a", "--capacity", "8", "--store", store)[0] == 0
    status, stdout, stderr = run("replay", *MODEL, "--arch", "sm_90a", "--capacity", "8,64", "--store", store, "--json")
    resolved, lacking = json.loads(stdout)["resolved"], len(json.loads(stdout)["missing"])
    assert status == 3 and lacking > 0 and f"{lacking} of {resolved + lacking} programs of" in stderr


def test_text_that_looks_like_markup_is_shown_as_it_is(store: Path) -> None:
    from planfreeze.reports import print_table

    assert run("explain", "topk_sum", "hidden=[/b]", "top_k=6", "--store", store)[0] == 2
    print_table("[/b]", ("[bold]",), (("[build]",),))
