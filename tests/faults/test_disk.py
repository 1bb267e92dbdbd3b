"""The disk that fails on demand sees what really happens: compared with strace where that is installed."""

import errno
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

PUBLISH = """
import importlib.util, json, sys
from pathlib import Path
spec = importlib.util.spec_from_file_location("disk", sys.argv[1])
disk = importlib.util.module_from_spec(spec)
sys.modules["disk"] = disk
spec.loader.exec_module(disk)
from planfreeze.cache.store import Store
watched = disk.Disk(root=Path(sys.argv[2]), has_flushes=True)
with watched.mounted():
    store = Store.open(watched.root / "deep" / "store", writable=True)
    key = store.put_blob(b"data")
    with store.lock_key(key, 5):
        store.put_record(key, b"record")
    store.put_note(key, b"note")
    store.set_ref("name", store.put_plan(b"plan"))
    store.quarantine("blob", key, "test")
    Store.open(watched.root / "deep" / "store").get_record(key)
print(json.dumps([operation.call for operation in watched.operations]))
"""
SAME = {
    **{"mkdir": "mkdir", "write": "write", "fsync": "fsync", "linkat": "link", "link": "link", "unlink": "unlink"},
    **{"rename": "rename", "renameat": "rename", "unlinkat": "unlink", "flock": "lock"},
}


@pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed")
def test_no_change_of_a_store_passes_the_disk_by(tmp_path: Path) -> None:
    root, trace = tmp_path / "disk", tmp_path / "trace"
    traced_by = ["strace", "-y", "-e", "trace=%file,%desc", "-o", str(trace)]
    done = subprocess.run(
        [*traced_by, sys.executable, "-c", PUBLISH, str(Path(__file__).with_name("disk.py")), str(root)],
        env={"PYTHONPATH": str(ROOT), "PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    seen = Counter(re.findall(r'"([a-z ]+)"', done.stdout))
    seen["lock"] += seen.pop("unlock", 0)
    traced: Counter[str] = Counter()
    for line in trace.read_text(errors="replace").splitlines():
        call = line.partition("(")[0]
        if str(root) not in line or re.search(r" = -1 (ENOENT|EEXIST)", line):
            continue
        if call == "openat":
            traced["open to write" if re.search("O_WRONLY|O_RDWR|O_CREAT", line) else "open to read"] += 1
        elif call in SAME:
            traced[SAME[call]] += 1
    compared = ["mkdir", "write", "fsync", "link", "unlink", "rename", "lock", "open to write"]
    assert {name: seen[name] for name in compared} == {name: traced[name] for name in compared}
    assert min(seen[name] for name in compared) > 0


def test_faults_come_when_they_are_asked_for_and_the_system_comes_back(disk, tmp_path: Path) -> None:
    real = os.write
    path = tmp_path / "file"
    torn = disk.Disk(root=tmp_path, meet=disk.tear(1, errno.EIO))
    with torn.mounted():
        handle = os.open(path, os.O_WRONLY | os.O_CREAT)
        with pytest.raises(OSError, match="Input/output error"):
            os.write(handle, b"0123456789")
        assert os.write(handle, b"more") == 4
    assert os.write is real
    assert path.read_bytes() == b"01234more"
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.close(handle)
    killed = disk.Disk(root=tmp_path, meet=disk.kill(0))
    with killed.mounted():
        for _ in range(2):
            with pytest.raises(disk.KilledError):
                path.unlink()
    assert path.exists()
    elsewhere = disk.Disk(root=tmp_path / "elsewhere", meet=disk.fail(0, errno.EIO, is_lasting=True))
    with elsewhere.mounted():
        path.unlink()
    assert elsewhere.operations == []
