"""kubectl exec plugin that prints an access token: `python -m xpk.capacity.gke.token`."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

from xpk.capacity.gke.cloud.client import Google
from xpk.capacity.gke.cloud.configuration import Endpoints
from xpk.model.errors import XpkError


def credential() -> str:
    """Return an ExecCredential with a token of this user. Raises AuthorizationError."""
    status, endpoints = dict[str, str](), Endpoints.read()
    if endpoints.gke:  # an emulator, whose API server accepts its own token
        status["token"] = endpoints.token
    else:
        status["token"], status["expirationTimestamp"] = Google(endpoints, pause=time.sleep).token()
    return json.dumps({"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status})


def main(read: Callable[[], str] = credential) -> int:
    """Print the credential; return the exit code. kubectl shows stderr."""
    try:
        print(read())
    except XpkError as error:
        print(f"error: {error.message}\nhint: {error.hint}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
