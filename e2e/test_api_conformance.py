"""The cases that the embedded API passes, on a real API server."""

from __future__ import annotations

import os
import subprocess
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from e2e.api_server import api_server
from tests.local.conformance import CASES
from xpk.api.base import Obj, ObjectApi
from xpk.model.errors import MissingToolError

BINARIES = Path(os.environ.get("XPK_E2E_CACHE", Path.home() / ".cache" / "xpk-e2e")) / "bin"
TOOLS = Path(__file__).parent / "environment" / "tools"
pytestmark = pytest.mark.skipif(
    not (BINARIES / "kube-apiserver").exists(), reason="no kube-apiserver: run e2e/environment/up first"
)


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A server with Kueue's CRDs, but without JobSet's."""
    with api_server(tmp_path_factory.mktemp("server"), BINARIES) as made:
        _kubectl(made, "apply", "--server-side", *(part for file in _crds() for part in ("-f", str(file))))
        _kubectl(made, "wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        yield made


@pytest.fixture
def api(kubeconfig: Path) -> ObjectApi:
    """The API through our client."""
    from xpk.api.kubernetes import KubernetesApi

    return KubernetesApi(kubeconfig=kubeconfig)


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.__name__))
def test_conformance(api: ObjectApi, kubeconfig: Path, case: Callable[[ObjectApi, str], None]) -> None:
    namespace = f"case-{uuid.uuid4().hex[:8]}"
    _kubectl(kubeconfig, "create", "namespace", namespace)
    case(api, namespace)


def test_a_kind_that_is_not_installed_names_its_controller(api: ObjectApi) -> None:
    with pytest.raises(MissingToolError, match="JobSet is not installed"):
        api.list("JobSet")
    jobset: Obj = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "x"}, "spec": {}}
    with pytest.raises(MissingToolError, match="JobSet is not installed"):
        api.create(jobset)


def _crds() -> list[Path]:
    module = subprocess.run(
        ["go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/kueue"],
        cwd=TOOLS / "kueue", capture_output=True, text=True, check=True,
    )  # fmt: skip
    return sorted((Path(module.stdout.strip()) / "config" / "components" / "crd" / "bases").glob("*queues.yaml"))


def _kubectl(kubeconfig: Path, *arguments: str) -> None:
    subprocess.run(
        [str(BINARIES / "kubectl"), f"--kubeconfig={kubeconfig}", *arguments], check=True, capture_output=True
    )
