"""What a process of farmd starts for a pod ends in time, also before it became a program however it forks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from farmd.agent import group

FOLDER = Path(group.__file__).parent

HOPPERS = """
import os, sys, time
for _ in range(30):
    if os.fork() == 0:
        while os.getppid() != int(sys.argv[1]):
            pass  # until it is adopted
        give_up = time.monotonic() + 20
        while time.monotonic() < give_up:
            if os.fork():
                os._exit(0)
            os.setsid()
        os._exit(0)
"""


def run(code: str, *arguments: str) -> str:
    """What a fresh process with the modules of shims prints."""
    head = (
        f"import os, signal, sys; sys.path.append({str(FOLDER)!r}); import group, stages; me = os.getpid()\n"
    )
    head += "signal.pthread_sigmask(signal.SIG_BLOCK, {15, signal.SIGCHLD})\n"
    command = [sys.executable, "-I", "-c", head + code, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def test_children_that_fork_and_end_all_the_time_are_ended_however_many_there_were() -> None:
    code = """
group.adopt()
if os.fork() == 0:
    os.execv(sys.executable, [sys.executable, "-I", "-c", sys.argv[1], str(me)])
while len(open(f"/proc/self/task/{me}/children").read().split()) < 500:
    pass
print(group.end_children(), open(f"/proc/self/task/{me}/children").read().split())
"""
    assert run(code, HOPPERS) == "True []\n"


def test_descendants_in_sessions_of_their_own_are_ended_however_deep_they_are() -> None:
    code = """
import time
group.adopt()
read, write = os.pipe()
if os.fork() == 0:
    for _ in range(200):
        os.setsid()
        if os.fork():
            time.sleep(30)
            os._exit(0)
    os.write(write, b"x")
    time.sleep(30)
    os._exit(0)
os.read(read, 1)
print(group.end_children(0.2), open(f"/proc/self/task/{me}/children").read().split())
"""
    assert run(code) == "True []\n"


def test_output_that_never_ends_of_what_cannot_be_killed_holds_up_no_shim_and_is_told() -> None:
    # A file without an end stands in for the pipe of a process that the kernel does not let it kill.
    code = """
import shim
class Log:
    parts = 0
    def write(self, part):
        self.parts, self.last = self.parts + 1, part
        if self.parts > 1000:
            sys.exit("it reads without an end")
log = Log()
group.end_children = lambda: False
shim.sweep(2**22 - 1, os.open("/dev/zero", os.O_RDONLY), log, "")
print(log.last.decode().strip())
"""
    assert run(code) == "farmd: error: processes of this workload are left: they could not be killed\n"


def test_a_command_of_init_that_hangs_before_it_is_a_program_ends_at_its_timeout(tmp_path: Path) -> None:
    # A control group whose file lets nobody write: the child stands in open().
    os.mkfifo(tmp_path / "cgroup.procs")
    code = """
spec = {"default_signals": [], "enter": sys.argv[1], "argv": ["true"]}
step = {"argv": ["true"], "timeout": 0.3}
group.adopt()
print(stages._try(spec, step, {15}, None), open(f"/proc/self/task/{me}/children").read().split())
"""
    assert run(code, str(tmp_path)) == "(-9, 'it did not finish within 0.3 s') []\n"


def test_a_command_of_init_that_cannot_begin_says_why() -> None:
    code = """
spec = {"default_signals": [], "limits": [], "user": None, "cwd": "/", "env": {}}
step = {"argv": ["/nothing/here"], "timeout": 20}
print(stages._try(spec, step, {15}, None))
"""
    assert run(code) == "(127, 'command /nothing/here: No such file or directory')\n"
