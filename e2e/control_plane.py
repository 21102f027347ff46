"""Kubernetes without kubelets on this machine: an API server, its controllers, a scheduler, and KWOK for nodes."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from e2e.api_server import BINARIES, NO_FLAGS, api_server, end

PROGRAMS = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kwok")
_STAGES = Path(__file__).parents[1] / "tools" / "gke_emulator" / "kwok.yaml"
# Controllers for Jobs and their pods; Deployments are not run, because no node could run their pods.
CONTROLLERS = (
    "job-controller",
    "garbage-collector-controller",
    "pod-garbage-collector-controller",
    "ttl-after-finished-controller",
    "node-lifecycle-controller",
    "taint-eviction-controller",
    "namespace-controller",
)


@contextmanager
def control_plane(folder: Path, flags: Mapping[str, Sequence[str]] = NO_FLAGS) -> Iterator[Path]:
    """Run the control plane with its state in `folder`; yield its kubeconfig.

    `flags`: further ones by program; they override those of this file.
    """
    with ExitStack() as stack:
        kubeconfig = stack.enter_context(api_server(folder, BINARIES, flags=flags))
        alone = (f"--kubeconfig={kubeconfig}", "--leader-elect=false", "--secure-port=0")
        # Nodes of a busy KWOK must not count as dead.
        of_manager = (f"--controllers={','.join(CONTROLLERS)}", "--node-monitor-grace-period=1h")
        for name, arguments in (("kube-controller-manager", (*alone, *of_manager)), ("kube-scheduler", alone)):
            argv = [str(BINARIES / name), *arguments, *flags.get(name, ())]
            stack.enter_context(running(argv, folder / f"{name}.log"))
        stack.enter_context(kwok(kubeconfig, folder / "kwok.log", flags.get("kwok", ())))
        yield kubeconfig


@contextmanager
def kwok(kubeconfig: Path, log: Path, flags: Sequence[str] = ()) -> Iterator[None]:
    """Run KWOK for the nodes with its annotation."""
    selector = "--manage-nodes-with-annotation-selector=kwok.x-k8s.io/node=fake"
    argv = [str(BINARIES / "kwok"), f"--kubeconfig={kubeconfig}", f"--config={_STAGES}", selector, *flags]
    with running(argv, log):
        yield


@contextmanager
def running(argv: Sequence[str], log: Path) -> Iterator[None]:
    """Run a program until the end of a block."""
    with log.open("wb") as out:
        process = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        yield
    finally:
        end(process)
