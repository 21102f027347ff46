"""A user's program, run once on the head, with RAY_ADDRESS and the shipped code."""

import os
import signal
import subprocess
from collections.abc import Sequence

from trainer.errors import ExitCode
from trainer.telemetry.metrics import say
from xpk_ray.launcher import Launcher, Work, join_ray
from xpk_ray.shipping import program_environment, shipped_code

_POLL_SECONDS = 0.1


def program(argv: Sequence[str]) -> Work:
    """Return the work of running `argv` on the head; its exit code becomes that of all hosts.

    A SIGTERM to any host is forwarded to the program, which can save during the grace period.
    """

    def run(launcher: Launcher) -> int:
        variables = program_environment(shipped_code(join_ray(launcher)), launcher.environ)
        environment = {**launcher.environ, "RAY_ADDRESS": launcher.head, **variables}
        child = subprocess.Popen(list(argv), env=environment, process_group=0)
        launcher.children.append(child)
        is_forwarded = False
        while (code := child.poll()) is None:
            if launcher.stopping.wait(_POLL_SECONDS) and not is_forwarded:
                is_forwarded = True
                os.killpg(child.pid, signal.SIGTERM)
            elif is_forwarded:
                try:
                    child.wait(_POLL_SECONDS)
                except subprocess.TimeoutExpired:
                    continue
        code = code if code >= 0 else 128 - code
        if code == ExitCode.PREEMPTED and not launcher.stopping.is_set():
            say(f"{launcher.name}: the program exited with {code}, but no host was asked to end")
            return ExitCode.CRASH  # PREEMPTED would not count as a failure
        if code and not is_forwarded:
            say(f"{launcher.name}: the program exited with {code}")
        return code

    return run
