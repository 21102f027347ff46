"""The user's kubeconfig, read into a client's configuration, and what can be wrong with it."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from kubernetes import client, config

from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, XpkError

_HINT = "`kubectl config view` shows it; without one KUBECONFIG or ~/.kube/config is read"


def new_client(kubeconfig: Path | None, context: str | None) -> client.ApiClient:
    """Return a client for a context. Raises XpkError, NotFoundError, AuthorizationError or MissingToolError."""
    file = str(kubeconfig) if kubeconfig else None
    named = f"kubeconfig {kubeconfig}" if kubeconfig else "kubeconfig"
    configuration = client.Configuration()
    configuration.retries = False  # we try again ourselves, and say nothing meanwhile
    try:
        with _listening() as heard:
            if context:
                _check_context(file, context, named)
            config.load_kube_config(config_file=file, context=context, client_configuration=configuration)  # type: ignore[no-untyped-call]
    except config.ConfigException as error:
        raise XpkError(f"cannot use the {named}: {_first_line(error)}", hint=_HINT) from error
    except (OSError, ValueError, TypeError, KeyError, AttributeError, yaml.YAMLError) as error:
        raise XpkError(f"the {named} is damaged: {_first_line(error)}", hint=_HINT) from error
    if not str(configuration.host).startswith(("https://", "http://")):
        raise XpkError(f"the {named} is damaged: its server '{configuration.host}' is not a URL", hint=_HINT)
    if heard:
        # The program that fetches credentials has failed; the client would go on as nobody.
        missing = "No such file" in heard[0] or "not found" in heard[0]
        kind = MissingToolError if missing else AuthorizationError
        raise kind(
            f"cannot get the credentials that the {named} names: {heard[0]}",
            hint="install the program it names" if missing else "log in again, as your cluster's provider says",
        )
    return client.ApiClient(configuration)


def _check_context(file: str | None, context: str, named: str) -> None:
    try:
        contexts, _ = config.list_kube_config_contexts(config_file=file)  # type: ignore[no-untyped-call]
    except config.ConfigException:  # also for want of a current context, which nobody has asked for
        return
    there = [str(each["name"]) for each in contexts or []]
    if context not in there:
        raise NotFoundError(
            f"there is no context '{context}' in the {named}", hint=f"there are: {', '.join(there) or 'none'}"
        )


@contextmanager
def _listening() -> Iterator[list[str]]:
    """Collect the errors that the client library only logs."""
    heard: list[str] = []

    class Collector(logging.Handler):
        """Keeps what it is given."""

        def emit(self, record: logging.LogRecord) -> None:
            heard.append(record.getMessage())

    handler = Collector(logging.ERROR)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield heard
    finally:
        root.removeHandler(handler)


def _first_line(error: Exception) -> str:
    if isinstance(error, OSError):
        return str(error.strerror)
    if isinstance(error, TypeError | KeyError | AttributeError):
        return "it does not have the form of a kubeconfig"
    return (str(error).splitlines() or [type(error).__name__])[0].removeprefix("Invalid kube-config file. ")
