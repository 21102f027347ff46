"""Controllers and the API server fail while a run trains: nothing is lost, and watching commands continue."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from e2e.drill import SECONDS, STEPS, start
from e2e.harness import Workload
from e2e.kind_cluster import AWAY_SECONDS, XPK, Place
from tests import waiting


@dataclass(slots=True)
class Watched:
    """A run, the commands that watch it, and the containers of its hosts."""

    place: Place
    run: Workload
    commands: dict[str, subprocess.Popen[bytes]]
    containers: dict[str, str]

    def said(self, command: str, stream: str = "out") -> str:
        """Return the output of a command."""
        return output(self.place, command, stream).read_text(encoding="utf-8")


def output(place: Place, command: str, stream: str) -> Path:
    """Return the file of a command's output."""
    return place.folder / f"steady-{command}.{stream}"


@pytest.fixture(scope="module")
def watched(place: Place) -> Iterator[Watched]:
    """Return a run without allowed restarts, with `wait` and `logs -f` on it."""
    run = start(place, "steady", max_restarts=0)
    run.await_(lambda: len(run.steps) > 2, SECONDS)
    commands = {}
    for name, options in {"wait": ["--timeout", "15m"], "logs": ["--follow"]}.items():
        argv = [*XPK, "workload", name, run.name, "--cluster", place.cluster, *options]
        with output(place, name, "out").open("wb") as out, output(place, name, "err").open("wb") as err:
            commands[name] = subprocess.Popen(argv, env=place.lab.environ, stdout=out, stderr=err)
    workload = Watched(place, run, commands, containers_of(place, run))
    run.await_(lambda: workload.said("wait", "err") + workload.said("wait") != "" != workload.said("logs"), SECONDS)
    yield workload
    for command in commands.values():
        command.kill()
        command.wait()
    assert place.await_controllers(), "the tests of other files need them"
    place.end(run.name)


def containers_of(place: Place, run: Workload) -> dict[str, str]:
    """Return the container of each pod of a run."""
    query = ("get", "pods", "-l", f"jobset.sigs.k8s.io/jobset-name={run.name}", "-o", "json")
    pods = json.loads(place.kubectl(*query))["items"]
    return {pod["metadata"]["uid"]: pod["status"]["containerStatuses"][0]["containerID"] for pod in pods}


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a killed component is available again."""
    waiting.until(condition, seconds=AWAY_SECONDS, every=1.0, report=lambda: f"{what} is not back")


def goes_on(watched: Watched) -> None:
    """Check that the same processes finish further steps."""
    run, reached = watched.run, len(watched.run.steps)
    run.await_(lambda: len(run.steps) > min(reached + 3, STEPS - 1), SECONDS)
    assert containers_of(watched.place, run) == watched.containers
    assert {line["attempt"] for line in run.steps} == {0}


# First, because it may be away for as long as most of the run takes.
def test_the_api_server_is_killed(watched: Watched) -> None:
    place, run = watched.place, watched.run

    def run_continues() -> None:
        run.read()
        reached = len(run.steps)

        def has_continued() -> bool:
            run.read()
            return len(run.steps) > min(reached + 1, STEPS - 1)

        waiting.until(has_continued, seconds=SECONDS, report=lambda: f"no step after {reached}")

    place.kill_component("kube-system", "component=kube-apiserver", while_stopped=run_continues)
    until(lambda: place.kubectl("get", "--raw", "/readyz") == "ok", "the API server")
    goes_on(watched)


@pytest.mark.parametrize("controller", ["jobset", "kueue"])
def test_a_controller_is_killed(watched: Watched, controller: str) -> None:
    watched.place.kill_component(f"{controller}-system", "control-plane=controller-manager")
    goes_on(watched)


def test_nothing_was_lost(watched: Watched, calm: Workload) -> None:
    run, place = watched.run, watched.place
    assert watched.commands["wait"].wait(SECONDS) == 0, watched.said("wait", "err")
    run.read()
    assert run.losses == calm.losses and run.lost_steps == 0
    assert run.describe()["restarts"] == 0
    assert watched.commands["logs"].wait(60) == 0, watched.said("logs", "err")
    assert "Traceback" not in watched.said("logs", "err")
    followed = Counter(watched.said("logs").splitlines())
    kept = Counter(place.xpk("workload", "logs", run.name, "--cluster", place.cluster).stdout.splitlines())
    assert followed == kept, "every line once"
    assert place.await_controllers()
