"""kubectl exec plugin that prints an access token: `python -m xpk.capacity.gke.token`."""

from __future__ import annotations

import json
import os
import time

from xpk.capacity.gke.client import Google


def credential() -> str:
    """Return an ExecCredential with a token of this user. Raises AuthorizationError."""
    status: dict[str, str] = {}
    if os.environ.get("XPK_GKE_ENDPOINT"):  # an emulator, whose API server accepts its own token
        status["token"] = os.environ.get("XPK_GKE_TOKEN", "none")
    else:
        status["token"], status["expirationTimestamp"] = Google(os.environ, pause=time.sleep).token()
    return json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})


if __name__ == "__main__":
    print(credential())
