"""kubectl exec plugin that prints an access token: `python -m xpk.capacity.gke.token`."""

from __future__ import annotations

import json
import time

from xpk.capacity.gke.cloud.client import Google
from xpk.capacity.gke.cloud.configuration import Endpoints


def credential() -> str:
    """Return an ExecCredential with a token of this user. Raises AuthorizationError."""
    status, endpoints = dict[str, str](), Endpoints.read()
    if endpoints.gke:  # an emulator, whose API server accepts its own token
        status["token"] = endpoints.token
    else:
        status["token"], status["expirationTimestamp"] = Google(endpoints, pause=time.sleep).token()
    return json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})


if __name__ == "__main__":
    print(credential())
