"""A connection to a port of a pod, through the API server."""

from __future__ import annotations

import re
from typing import cast

from kubernetes.client import ApiClient, CoreV1Api
from kubernetes.client.exceptions import ApiException
from kubernetes.stream import portforward

from xpk.api.base import Connection, Obj
from xpk.model.errors import AuthorizationError, ConflictError, XpkError

_MISSING_VERB = re.compile(r"cannot (\w+) resource")  # Kubernetes releases check different verbs


def open_port(client: ApiClient, pod: Obj, port: int) -> Connection:
    """Return a connection to `port` of a running pod.

    Raises AuthorizationError if that is forbidden, ConflictError if the pod is not running, XpkError otherwise.
    """
    meta = pod["metadata"]
    # The library modifies its client during the call, so each connection uses its own client.
    core = CoreV1Api(ApiClient(client.configuration))
    try:
        forward = portforward(
            core.connect_get_namespaced_pod_portforward, meta["name"], meta["namespace"], ports=str(port)
        )
    except ApiException as error:
        reason = str(error.reason)
        if "Handshake status 403" in reason:
            verb = match[1] if (match := _MISSING_VERB.search(reason)) else "get"
            raise AuthorizationError(
                f"permission denied: you cannot {verb} pods/portforward in namespace '{meta['namespace']}'",
                hint="`xpk docs permissions` lists the required roles",
            ) from error
        if "Handshake status 4" in reason:
            raise ConflictError(
                f"pod '{meta['name']}' is not running", hint="`xpk workload status` shows why"
            ) from error
        raise XpkError(
            f"cannot reach pod '{meta['name']}' through the API server: {reason.splitlines()[0]}", hint="try again"
        ) from error
    return cast(Connection, forward.socket(port))
