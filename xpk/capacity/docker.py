"""Docker and kind: the commands of the kind provider, and explanations of their failures."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from xpk.capacity.fencing.machines import Machine, MachineState
from xpk.capacity.nodes.out_of_service import parse_time
from xpk.model.errors import ConflictError, MissingToolError, XpkError
from xpk.proc import Result, Runner

_EXISTS = "already exist for a cluster with the name"  # kind's message about nodes
_OLDEST_KIND = (0, 20)
_READY = "180s"  # for the control plane; the wait for the other nodes comes later
_CONTROL_PLANE_SHARES = 8192  # of the CPUs when all are busy; a node has 1024
_CONTAINER = '{{.Name}}|{{.State.Status}}|{{.State.FinishedAt}}|{{index .Config.Labels "io.x-k8s.kind.cluster"}}'
_START_IT = "start it (`sudo systemctl start docker`), or use --provider local, which does not need Docker"
_HINTS = {  # by the programs' messages
    "permission denied": "add yourself to the group docker: `sudo usermod -aG docker $USER`, then log in again",
    "Cannot connect to the Docker daemon": _START_IT,
    "no space left on device": "`docker system df` shows what fills the disk",
    "failed to pull image": "`docker pull` of that image shows more; set XPK_KIND_NODE_IMAGE to a local image",
    "too many open files": "raise fs.inotify.max_user_instances and max_user_watches with `sudo sysctl -w`",
    "already allocated": "the port is in use: `docker ps` shows containers' ports",
}


class Engine:
    """The container engine of this machine, and its kind clusters."""

    def __init__(
        self, runner: Runner, environ: Mapping[str, str] = os.environ, *, user: str = "the kind provider"
    ) -> None:
        self._runner = runner
        self._environ = environ
        self._user = user

    def check_docker(self) -> None:
        """Raise MissingToolError unless Docker answers."""
        docker = self._run("docker", "version", "--format", "{{.Server.Version}}")
        if docker.exit_code:
            raise MissingToolError(
                f"Docker does not answer: {docker.last_line}",
                hint=_hint(docker, _START_IT),
            )

    def check(self) -> None:
        """Raise MissingToolError unless Docker answers and kind is recent enough."""
        self.check_docker()
        version = self._must("kind", "version", action="ask kind for its version").stdout
        match = re.search(r"v(\d+)\.(\d+)", version)
        if match and (int(match[1]), int(match[2])) < _OLDEST_KIND:
            raise MissingToolError(
                f"kind {match[0]} is too old: {'.'.join(map(str, _OLDEST_KIND))} or newer is needed",
                hint="see https://kind.sigs.k8s.io/docs/user/quick-start/#installation",
            )

    def clusters(self) -> list[str]:
        """Return the names of all kind clusters, including those that xpk did not create."""
        return self._must("kind", "get", "clusters", action="list kind clusters").stdout.split()

    def create(self, name: str, *, config: Path, kubeconfig: Path, image: str | None, retain: bool) -> None:
        """Create a cluster; remove the remains of a failed or interrupted attempt, unless `retain`.

        Raises ConflictError if nodes of this name exist, which stay: they belong to someone else.
        """
        argv = ["kind", "create", "cluster", "--name", name, "--config", str(config)]
        argv += ["--kubeconfig", str(kubeconfig), "--wait", _READY]
        argv += [*(["--image", image] if image else []), *(["--retain"] if retain else [])]
        try:
            # A separate network, so that it can be deleted with the cluster.
            env = {**self._environ, "KIND_EXPERIMENTAL_DOCKER_NETWORK": network_of(name)}
            created, action = self._run(*argv, env=env), f"create kind cluster '{name}'"
            if created.exit_code and _EXISTS in created.stderr:
                raise ConflictError(
                    f"cannot {action}: {_reason(created)}",
                    hint=f"choose another name, or `kind delete cluster --name {name}` first",
                )
            _checked(created, action)
            # Hosts that train would slow down the API server. Best effort: engines without root may be unable to.
            self._run("docker", "update", "--cpu-shares", str(_CONTROL_PLANE_SHARES), control_plane_of(name))
        except ConflictError:
            raise
        except BaseException:
            if not retain:
                with suppress(XpkError):  # report the first failure
                    self.delete(name, kubeconfig)
            raise

    def delete(self, name: str, kubeconfig: Path) -> None:
        """Remove a cluster's containers, volumes and network, and its entries in its own kubeconfig."""
        self._must("kind", "delete", "cluster", "--name", name, "--kubeconfig", str(kubeconfig), action="delete it")
        network = network_of(name)
        if self._run("docker", "network", "inspect", network).exit_code == 0:
            self._must("docker", "network", "rm", network, action=f"remove Docker network '{network}'")

    def empty_folder(self, cluster: str, folder: Path) -> None:
        """Remove files that pods wrote as other users from a folder that the nodes share. Best effort."""
        self._run("docker", "exec", control_plane_of(cluster), "find", str(folder), "-mindepth", "1", "-delete")

    def has_image(self, image: str) -> bool:
        """Return whether an image is in the local engine."""
        return self._run("docker", "image", "inspect", "--format", "{{.Id}}", image).exit_code == 0

    def build(self, image: str, folder: Path, arguments: Mapping[str, str], platform: str | None = None) -> None:
        """Build a folder's Dockerfile, for another platform with buildx. Raises XpkError with the build's last line."""
        flags = [part for key, value in arguments.items() for part in ("--build-arg", f"{key}={value}")]
        # Without --force-rm a failed build leaves a container behind.
        how = ("buildx", "build", "--load", "--platform", platform) if platform else ("build", "--force-rm")
        result = self._run("docker", *how, "--tag", image, *flags, str(folder))
        if result.exit_code:
            raise XpkError(
                f"cannot build image {image}: {_reason(result)}",
                hint="pass another base image (`xpk image build --base-docker-image`; for kind, XPK_BASE_IMAGE)",
            )

    def push(self, image: str) -> None:
        """Push an image of the local engine. Raises XpkError with the registry's message."""
        result = self._run("docker", "push", image)
        if result.exit_code:
            raise XpkError(
                f"cannot push image {image}: {result.last_line}",
                hint="log in to its registry: `docker login REGISTRY`, for Google Cloud `gcloud auth configure-docker`",
            )

    def load_archive(self, cluster: str, archive: Path) -> None:
        """Copy the images of a `docker save` archive into every node."""
        argv = ["kind", "load", "image-archive", str(archive), "--name", cluster]
        self._must(*argv, action=f"load {archive} into the nodes")

    def load(self, cluster: str, images: Sequence[str], nodes: Sequence[str]) -> None:
        """Copy images of the local engine into nodes; the nodes pull those that it lacks."""
        here = [image for image in images if self.has_image(image)]
        if here and nodes:
            argv = ["kind", "load", "docker-image", *here, "--name", cluster, "--nodes", ",".join(nodes)]
            self._must(*argv, action=f"load {', '.join(here)} into the nodes")

    def machines(self, cluster: str, nodes: Sequence[str]) -> dict[str, Machine]:
        """Return the containers of a kind cluster's nodes. Raises XpkError unless its control plane runs here.

        A container that is paused, or that Docker restarts, may continue: only one that has ended is gone.
        """
        control_plane = control_plane_of(cluster)
        argv = ("docker", "container", "inspect", "--format", _CONTAINER, control_plane, *nodes)
        result, machines = self._run(*argv), dict[str, Machine]()
        for line in result.stdout.splitlines():
            name, status, finished, owner = (*line.split("|"), "", "", "", "")[:4]
            if owner == cluster:
                machines[name.lstrip("/")] = _machine(status, finished)
        # Without it, another engine may have answered, which knows nothing of this cluster.
        if control_plane not in machines or machines[control_plane].state != MachineState.RUNNING:
            raise XpkError(
                f"cannot read the nodes of kind cluster '{cluster}' from Docker: {result.last_line or control_plane}",
                hint=_hint(result, f"`{result.command}` shows more"),
            )
        missing = set(re.findall(r"No such container: (\S+)", result.stderr)) - machines.keys()
        return {name: Machine(MachineState.GONE, "its container was removed") for name in missing} | machines

    def _run(self, *argv: str, env: Mapping[str, str] | None = None) -> Result:
        try:
            return self._runner.run(argv, env=env)
        except MissingToolError as error:
            where = {
                "docker": "https://docs.docker.com/engine/install/",
                "kind": "https://kind.sigs.k8s.io/docs/user/quick-start/#installation",
            }[argv[0]]
            raise MissingToolError(
                f"{self._user} needs `{argv[0]}`, which is not on PATH",
                hint=f"install it ({where}); --provider local needs neither Docker nor kind",
            ) from error

    def _must(self, *argv: str, action: str, env: Mapping[str, str] | None = None) -> Result:
        return _checked(self._run(*argv, env=env), action)


def _checked(result: Result, action: str) -> Result:
    """Return the result of a program. Raises XpkError if it has failed."""
    if result.exit_code:
        raise XpkError(f"cannot {action}: {_reason(result)}", hint=_hint(result, f"`{result.command}` shows more"))
    return result


def _machine(status: str, finished: str) -> Machine:
    """Return the state of a node's container."""
    if status in ("exited", "dead"):
        return Machine(MachineState.GONE, "its container has ended", parse_time(finished))
    state = MachineState.RUNNING if status in ("running", "paused") else MachineState.UNKNOWN
    return Machine(state, f"its container is {status}")


def control_plane_of(cluster: str) -> str:
    """Return the name of the node of a kind cluster's control plane, which is also that of its container."""
    return f"{cluster}-control-plane"


def network_of(cluster: str) -> str:
    """Return the name of a cluster's Docker network."""
    return f"xpk-{cluster}"


def _reason(result: Result) -> str:
    """Return the line with the cause: kind's begins with ERROR, and other lines may follow it."""
    lines = result.stderr.splitlines()
    return next((line.strip() for line in lines if line.startswith("ERROR")), result.last_line)


def _hint(result: Result, otherwise: str) -> str:
    """Return the hint for a known failure of a program."""
    return next((hint for text, hint in _HINTS.items() if text in result.stderr), otherwise)
