"""Missing, stopped, old, full or interrupted Docker and kind: one line, a next step, and no remains."""

from __future__ import annotations

from pathlib import Path

import pytest

from xpk.capacity.docker import Engine
from xpk.model.errors import ConflictError, MissingToolError, XpkError
from xpk.proc import Result
from xpk.testing import Answer, FakeRunner


def failing(said: str) -> Answer:
    """Return a program that fails with a message."""
    return lambda argv: Result(argv, 1, "", said)


def create(engine: Engine, folder: Path) -> None:
    engine.create("dev", config=folder / "c", kubeconfig=folder / "k", image=None, retain=False)


@pytest.mark.parametrize("program", ["docker", "kind"])
def test_a_missing_program_is_reported(program: str) -> None:
    with pytest.raises(MissingToolError, match=f"needs `{program}`, which is not on PATH") as error:
        Engine(FakeRunner({"kind version": "kind v0.30.0"}, missing=[program])).check()
    assert "--provider local" in error.value.hint


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is it running?", "systemctl start"),
        ("permission denied while trying to connect to the docker API at unix:///var/run/docker.sock", "usermod"),
    ],
)
def test_an_unresponsive_docker_is_reported(said: str, hint: str) -> None:
    with pytest.raises(MissingToolError, match="Docker does not answer") as error:
        Engine(FakeRunner({"docker version": failing(said)})).check()
    assert hint in error.value.hint


@pytest.mark.parametrize(
    ("said", "hint"),
    [
        ('ERROR: failed to create cluster: failed to pull image "kindest/node:v9": not found', "XPK_KIND_NODE_IMAGE"),
        ("ERROR: failed to create cluster: write /x: no space left on device", "docker system df"),
        ("ERROR: failed to create cluster: something new", "kind create cluster --name dev"),
    ],
)
def test_a_failed_create_leaves_nothing(tmp_path: Path, said: str, hint: str) -> None:
    runner = FakeRunner({"kind create cluster": failing(said), "docker network inspect": 0})
    with pytest.raises(XpkError, match="cannot create kind cluster 'dev'") as error:
        create(Engine(runner), tmp_path)
    assert hint in error.value.hint
    assert runner.ran("kind delete cluster --name dev") and runner.ran("docker network rm xpk-dev")


def test_nodes_that_someone_else_has_created_meanwhile_stay(tmp_path: Path) -> None:
    said = 'ERROR: failed to create cluster: node(s) already exist for a cluster with the name "dev"'
    runner = FakeRunner({"kind create cluster": failing(said)})
    with pytest.raises(ConflictError, match="already exist"):
        create(Engine(runner), tmp_path)
    assert runner.ran("kind delete") == []


def test_ctrl_c_leaves_nothing(tmp_path: Path) -> None:
    def press(argv: tuple[str, ...]) -> str:
        raise KeyboardInterrupt

    runner = FakeRunner({"kind create cluster": press, "docker network inspect": 0})
    with pytest.raises(KeyboardInterrupt):
        create(Engine(runner), tmp_path)
    assert runner.ran("kind delete cluster --name dev") and runner.ran("docker network rm xpk-dev")


def test_a_docker_failure_during_cleanup_does_not_hide_the_error(tmp_path: Path) -> None:
    gone = "Cannot connect to the Docker daemon"
    runner = FakeRunner({"kind create cluster": failing("ERROR: lost the node"), "kind delete": failing(gone)})
    with pytest.raises(XpkError, match="lost the node"):
        create(Engine(runner), tmp_path)
