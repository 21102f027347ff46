"""A real API server behind the clusters: node pools show up there as Node objects."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml
from kubernetes import client, config
from kubernetes.client.exceptions import ApiException
from urllib3 import Retry

from tools.gke_emulator.names import Target
from tools.gke_emulator.nodes import as_cube, node_object

_ACCOUNT = "gke-emulator-user"
_TOKEN_SECONDS = 24 * 3600
_THREADS = 8
# A server that is short of time does not fail operations, as with GKE. Objects that are created twice exist
# already (see `_once`), and those that are deleted twice are missing.
_PATIENT = Retry(
    total=8, backoff_factor=0.3, backoff_max=10.0, allowed_methods=None, status_forcelist=(429, 500, 502, 503, 504),
    raise_on_status=False,
)  # fmt: skip


class ApiServerNodes:
    """The nodes of all clusters on one API server, which a kubeconfig names."""

    def __init__(self, kubeconfig: Path, *, kwok: bool) -> None:
        self._kwok = kwok
        # Any: the client accepts plain objects as well as its own classes.
        settings: Any = client.Configuration()
        settings.retries = _PATIENT
        config.load_kube_config(str(kubeconfig), client_configuration=settings)  # type: ignore[no-untyped-call]
        self._core: Any = client.CoreV1Api(client.ApiClient(settings))
        cluster, user = _current(yaml.safe_load(kubeconfig.read_text(encoding="utf-8")))
        self.server = urlsplit(cluster["server"]).netloc
        self.authority = _content(kubeconfig, cluster, "certificate-authority")
        self._given = str(user.get("token", ""))
        self._workers = ThreadPoolExecutor(_THREADS, "gke-node")

    def add(self, cluster: Any, target: Target, pool: Any, names: list[str], *, provision_only: bool = False) -> None:
        """Ensure that nodes with these names exist, distributed over the pool's zones."""
        zones = list(pool.locations)

        def create(item: tuple[int, str]) -> None:
            node = node_object(target, pool, item[1], zones[item[0] % len(zones)], kwok=self._kwok)
            self._create(as_cube(node, target.path, item[0]) if provision_only else node)

        self._each(create, enumerate(names))

    def remove(self, target: Target, names: list[str]) -> None:
        """Delete nodes; missing ones are not an error."""
        self._each(self._delete, names)

    def token(self) -> str:
        """Return a bearer token of an administrator: the kubeconfig's, or one created for a service account."""
        if self._given:
            return self._given
        rights: Any = client.RbacAuthorizationV1Api(self._core.api_client)
        _once(lambda: self._core.create_namespaced_service_account("kube-system", {"metadata": {"name": _ACCOUNT}}))
        _once(lambda: rights.create_cluster_role_binding({
            "metadata": {"name": _ACCOUNT},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"},
            "subjects": [{"kind": "ServiceAccount", "name": _ACCOUNT, "namespace": "kube-system"}],
        }))  # fmt: skip
        asked = {"spec": {"expirationSeconds": _TOKEN_SECONDS, "audiences": []}}
        answer = self._core.create_namespaced_service_account_token(_ACCOUNT, "kube-system", asked)
        return str(answer.status.token)

    def close(self) -> None:
        """End the threads."""
        self._workers.shutdown()

    def _each(self, do: Callable[[Any], None], items: Iterable[Any]) -> None:
        for done in [self._workers.submit(do, item) for item in items]:
            done.result()

    def _create(self, node: dict[str, Any]) -> None:
        # The API server keeps the status of a Node that is created with one.
        _once(lambda: self._core.create_node(node))

    def _delete(self, name: str) -> None:
        try:
            self._core.delete_node(name)
        except ApiException as error:
            if error.status != 404:
                raise


def _once(create: Callable[[], Any]) -> None:
    """Create an object that may exist."""
    try:
        create()
    except ApiException as error:
        if error.status != 409:
            raise


def _current(kubeconfig: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    def named(kind: str, name: str) -> dict[str, Any]:
        return next(dict(entry[kind]) for entry in kubeconfig[f"{kind}s"] if entry["name"] == name)

    context = named("context", kubeconfig["current-context"])
    return named("cluster", context["cluster"]), named("user", context["user"])


def _content(kubeconfig: Path, section: dict[str, Any], key: str) -> bytes:
    if data := section.get(f"{key}-data"):
        return base64.b64decode(data)
    file: Path = kubeconfig.parent / section[key]
    return file.read_bytes()
