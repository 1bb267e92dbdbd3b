import os
import signal
import time
from pathlib import Path


def play(mode):
    if mode == "raise":
        raise ArithmeticError("this kernel has no solution")
    if mode == "print":
        print("printed by a kernel", flush=True)
        os.write(1, b"written by a kernel")
    if mode == "read":
        input("a question nobody answers")
    if mode == "show":
        raise RuntimeError("".join(f"<{k}={v}>" for k, v in os.environ.items()) + f"<hash={hash('a')}>")
    if mode == "exit":
        os._exit(3)
    if mode == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if mode == "close":
        os.closerange(3, 64)
    if mode in ("close", "wait"):
        Path(os.environ["HOME"], "waiting").write_text(str(os.getpid()))
        time.sleep(3600)
