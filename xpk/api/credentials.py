"""Credentials from an exec plugin of a kubeconfig."""

from __future__ import annotations

import base64
import json
import os
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from xpk.api.limits import Limits
from xpk.model.errors import AuthorizationError, MissingToolError, TimedOutError, XpkError
from xpk.model.terminal import printable
from xpk.proc import run_limited

_INTERACTIVE_SECONDS = 300.0  # time limit with a user at a terminal
_MAX_BYTES = 1 << 20
_EARLY_SECONDS = 60.0  # renewed this long before they expire
_HINT = "log in again with your cluster provider's command"


class CredentialPlugin:
    """A program that prints an ExecCredential. It runs once, and again when the credential has expired."""

    def __init__(self, plugin: Mapping[str, Any], cluster: Mapping[str, Any], limits: Limits) -> None:
        self._limits = limits
        args, env = plugin.get("args") or [], plugin.get("env") or []
        if not isinstance(plugin.get("command"), str) or not plugin["command"]:
            raise _wrong("its exec has no command")
        if not isinstance(args, list) or not all(isinstance(argument, str) for argument in args):
            raise _wrong("its exec.args must be strings")
        if not isinstance(env, list) or not all(_is_variable(variable) for variable in env):
            raise _wrong("its exec.env must have a name and a value for each variable")
        self._argv = [plugin["command"], *args]
        self._version = str(plugin.get("apiVersion") or "")
        self._interactive = plugin.get("interactiveMode") != "Never" and bool(sys.stdin and sys.stdin.isatty())
        spec: dict[str, Any] = {"interactive": self._interactive}
        if plugin.get("provideClusterInfo"):
            spec["cluster"] = _cluster_info(cluster)
        info = {"apiVersion": self._version, "kind": "ExecCredential", "spec": spec}
        self._environ = {**os.environ, **{variable["name"]: variable["value"] for variable in env}}
        self._environ["KUBERNETES_EXEC_INFO"] = json.dumps(info)
        self._status: dict[str, Any] = {}
        self._ran = 0.0

    def user(self) -> dict[str, str]:
        """Return the credential in the form of a kubeconfig's user."""
        if not self._status or (self._is_over() and time.monotonic() - self._ran > self._limits.renewal_seconds):
            self._status = self._run()
            self._ran = time.monotonic()
        if self._status.get("token"):
            return {"token": str(self._status["token"])}
        return {
            f"client-{key.lower()}-data": base64.b64encode(str(self._status[f"client{key}Data"]).encode()).decode()
            for key in ("Certificate", "Key")
        }

    def _is_over(self) -> bool:
        ends = self._status.get("expirationTimestamp")
        return bool(ends) and (_time(ends) - datetime.now(UTC)).total_seconds() < _EARLY_SECONDS

    def _run(self) -> dict[str, Any]:
        name = printable(self._argv[0], limit=200)
        seconds = _INTERACTIVE_SECONDS if self._interactive else self._limits.credential_seconds
        try:
            done = run_limited(
                self._argv, env=self._environ, seconds=seconds, max_bytes=_MAX_BYTES, interactive=self._interactive
            )
        except MissingToolError as error:
            message = f"cannot get the credentials of the kubeconfig: {error.message}"
            raise MissingToolError(message, hint="install that program") from error
        except TimedOutError as error:
            raise AuthorizationError(
                f"cannot get the credentials of the kubeconfig: '{name}' timed out after {seconds:g}s",
                hint=f"run it by hand: {printable(' '.join(self._argv), limit=200)}",
            ) from error
        except XpkError as error:
            raise _failed(name, "cannot be used: " + printable(error.message, limit=300)) from error
        if done.exit_code:
            raise _failed(name, f"failed with exit code {done.exit_code}: {printable(done.last_line, limit=300)}")
        try:
            answer = json.loads(done.stdout)
        except (ValueError, RecursionError) as error:
            raise _failed(name, "did not print JSON") from error
        status = answer.get("status") if isinstance(answer, dict) else None
        if not isinstance(status, dict) or not _has_credentials(status):
            raise _failed(name, "printed an ExecCredential without a token or a certificate with its key")
        if self._version and answer.get("apiVersion") != self._version:
            version = printable(str(answer.get("apiVersion")), limit=80)
            raise _failed(name, f"printed an ExecCredential of {version}, the kubeconfig names {self._version}")
        return status


def check_token(token: str) -> None:
    """Raise AuthorizationError for a token that an HTTP header cannot contain. The token is not shown."""
    if not token.isascii() or not token.isprintable():
        raise AuthorizationError(
            "invalid token in the kubeconfig: it has a line break or another control character", hint=_HINT
        )


def _has_credentials(status: Mapping[str, Any]) -> bool:
    ends = status.get("expirationTimestamp")
    try:
        if ends is not None:
            _time(ends)
    except ValueError:
        return False
    if isinstance(status.get("token"), str) and status["token"]:
        check_token(status["token"])
        return True
    return all(isinstance(status.get(f"client{part}Data"), str) for part in ("Certificate", "Key"))


def _time(text: object) -> datetime:
    moment = datetime.fromisoformat(str(text))
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _is_variable(value: object) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) and "\0" not in value[key] for key in ("name", "value")
    )


def _cluster_info(cluster: Mapping[str, Any]) -> dict[str, Any]:
    extensions = cluster.get("extensions") or []
    config = next(
        (
            extension.get("extension")
            for extension in extensions
            if isinstance(extension, dict) and extension.get("name") == "client.authentication.k8s.io/exec"
        ),
        None,
    )
    fields = {key: value for key, value in cluster.items() if key != "extensions"}
    return {**fields, "config": config} if config is not None else fields


def _wrong(problem: str) -> XpkError:
    return XpkError(f"cannot use the kubeconfig: {problem}", hint="`kubectl config view` shows it")


def _failed(name: str, problem: str) -> AuthorizationError:
    return AuthorizationError(f"cannot get the credentials of the kubeconfig: '{name}' {problem}", hint=_HINT)
