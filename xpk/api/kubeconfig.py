"""A client for a context of the user's kubeconfig, and errors for invalid ones."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kubernetes import client, config

from xpk.api.credentials import CredentialPlugin, check_token
from xpk.api.kubefile import only_context
from xpk.api.limits import DEFAULT, Limits
from xpk.model.errors import AuthorizationError, UsageError, XpkError
from xpk.model.terminal import printable

_HINT = "`kubectl config view` shows it; without one KUBECONFIG or ~/.kube/config is read"
_MAX_TOKEN_BYTES = 1 << 20


def new_client(kubeconfig: Path | None, context: str | None, limits: Limits = DEFAULT) -> client.ApiClient:
    """Return a client for a context. Raises XpkError, NotFoundError, AuthorizationError or MissingToolError."""
    named = f"kubeconfig {kubeconfig}" if kubeconfig else "kubeconfig"
    chosen = only_context(context, file=kubeconfig)
    cluster = chosen["clusters"][0]["cluster"]
    user: dict[str, Any] = next((entry["user"] for entry in chosen.get("users", [])), {})
    if not str(cluster.get("server") or "").startswith(("https://", "http://")):
        raise XpkError(f"the {named} is damaged: its server '{cluster.get('server')}' is not a URL", hint=_HINT)
    plugin = None
    if user.get("tokenFile") and not user.get("token"):
        user["token"] = _token_of(Path(user.pop("tokenFile")))
    elif isinstance(user.get("exec"), dict) and not user.get("token"):
        plugin = CredentialPlugin(user.pop("exec"), cluster, limits)
        user.update(plugin.user())
    configuration = client.Configuration()
    configuration.retries = False  # Transport retries; the client must not log its own retries
    try:
        with _listening() as messages:
            config.load_kube_config_from_dict(chosen, client_configuration=configuration, persist_config=False)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise XpkError(f"cannot use the {named}: {_first_line(error)}", hint=_HINT) from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise XpkError(f"the {named} is damaged: {_first_line(error)}", hint=_HINT) from error
    if messages:  # the client would continue without credentials
        raise AuthorizationError(
            f"cannot get the credentials of the {named}: {printable(messages[0], limit=300)}",
            hint="log in again with your cluster provider's command",
        )
    check_token(str(configuration.api_key.get("BearerToken", "")))
    if plugin:
        configuration.refresh_api_key_hook = _renewal(plugin)
    return client.ApiClient(configuration)


def _renewal(plugin: CredentialPlugin) -> Any:
    def renew(configuration: client.Configuration) -> None:
        if token := plugin.user().get("token"):
            configuration.api_key["BearerToken"] = f"Bearer {token}"

    return renew


def _token_of(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            return opened.read(_MAX_TOKEN_BYTES).decode().strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"cannot read the kubeconfig's tokenFile {file}: {why}", hint=_HINT) from error


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Collect the errors that the client library only logs."""
    messages: list[str] = []

    class Collector(logging.Handler):
        """Log handler that collects records."""

        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    handler = Collector(logging.ERROR)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield messages
    finally:
        root.removeHandler(handler)


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    if isinstance(error, TypeError | KeyError | AttributeError):
        return "it does not have the form of a kubeconfig"
    lines = str(error).splitlines() or [type(error).__name__]
    return printable(lines[0].removeprefix("Invalid kube-config file. "), limit=300)
