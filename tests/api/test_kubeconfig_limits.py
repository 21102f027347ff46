"""Kubeconfigs that would exhaust memory or time, and programs without credentials: one clear error, immediately."""

from __future__ import annotations

import json
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.api import hostile
from tests.api.hostile import JOBSET, sends, serving
from tests.api.scripted_server import kubeconfig
from xpk.api.kubefile import only_context
from xpk.api.kubernetes import KubernetesApi
from xpk.api.limits import Limits
from xpk.model.errors import AuthorizationError, MissingToolError, UsageError, XpkError

LAUGHS = "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 30))
GOOD = """
users: [{name: u, user: {token: t}}]
contexts: [{name: x, context: {cluster: c, user: u}}]
current-context: x
clusters: [{name: c, cluster: {server: "https://x"}}]
"""


@pytest.mark.parametrize(
    ("content", "tells"),
    [
        (LAUGHS, "more than 200000 values"),
        ("contexts: &a [*a]", "its alias 'a' refers to itself"),
        ("a: &a {b: {c: *a}}", "its alias 'a' refers to itself"),
        ("a: " + "[" * 5000, "nested more than 50 levels"),
        ("a: " + "{b: " * 5000, "nested more than 50 levels"),
        ("#" * (5 << 20), "larger than 4 MiB"),
        (GOOD.replace("name: x", "name: 5"), "contexts[0].name must be a string, got 5"),
        (GOOD.replace("name: c,", "name: null,"), "clusters[0].name must be a string, got None"),
        (GOOD.replace("token: t", "token: 123"), "users[0]: token must be a string, got a int"),
        (GOOD.replace("token: t", 'token: "SECRET\\nHost: evil"'), "users[0]: token has a line break"),
        (GOOD.replace("{token: t}", "[]"), "users[0].user must be a mapping"),
        (GOOD.replace("[{name: u, user: {token: t}}]", "7"), "users must be a list"),
        (GOOD.replace("[{name: u, user: {token: t}}]", "[7]"), "users[0].name must be a string"),
        (GOOD.replace('"https://x"', "{a: b}"), "clusters[0]: server must be a string"),
        (GOOD.replace("cluster: c,", "cluster: [],"), "contexts[0]: cluster must be a string, got a list"),
        (GOOD.replace("name: u, user:", "name: v, cluster: c, user:"), "context 'x' names user 'u', not found"),
        (GOOD.replace("current-context: x", "current-context: [1]"), "context '[1]' not found"),
        (GOOD.replace("name: x", 'name: "\\e[31mx"'), "context 'x' not found"),
        ("\x00", "cannot read kubeconfig"),
        ("2024-13-45: x", "cannot read kubeconfig"),
    ],
)  # fmt: skip
def test_a_malicious_kubeconfig_is_rejected(tmp_path: Path, content: str, tells: str) -> None:
    file = tmp_path / "config"
    file.write_text(content)
    begun = time.monotonic()
    for read in (lambda: only_context(None, {"KUBECONFIG": str(file)}), lambda: KubernetesApi(kubeconfig=file)):
        with pytest.raises(XpkError) as error:
            read()
        assert tells in error.value.message and str(file) in error.value.message, error.value.message
        assert error.value.hint and "SECRET" not in error.value.message and "\x1b" not in error.value.message
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/null", "/"])
def test_a_kubeconfig_that_is_not_a_file_is_rejected(place: str) -> None:
    with pytest.raises(UsageError, match=r"not a regular file|Is a directory") as error:
        KubernetesApi(kubeconfig=Path(place))
    assert error.value.hint


def test_a_moderate_number_of_aliases_is_accepted(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(
        "me: &me {token: t}\n"
        + GOOD.replace("{token: t}", "*me")
        + "extensions: [*me, *me]\n"
    )  # fmt: skip
    assert only_context(None, file=file)["users"] == [{"name": "u", "user": {"token": "t"}}]


@pytest.mark.parametrize("content", ["t1\n", "  t1  "])
def test_a_token_file_may_end_with_a_newline(tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    api = KubernetesApi(kubeconfig=kubeconfig(tmp_path, "https://x", tokenFile="token"))
    assert api._client.configuration.api_key == {"BearerToken": "Bearer t1"}


def test_a_token_file_with_two_lines_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("SECRET\nHost: evil")
    with pytest.raises(AuthorizationError, match="invalid token") as error:
        KubernetesApi(kubeconfig=kubeconfig(tmp_path, "https://x", tokenFile="token"))
    assert "SECRET" not in error.value.message


def plugin(folder: Path, program: str, server: str = "https://x", **more: Any) -> Path:
    """Write a kubeconfig with a Python program that prints credentials."""
    (folder / "plugin.py").write_text(program)
    args = [str(folder / "plugin.py")]
    return kubeconfig(
        folder,
        server,
        exec={"apiVersion": "client.authentication.k8s.io/v1", "command": sys.executable, "args": args, **more},
    )


def credential(**status: str) -> str:
    """Return a program that prints credentials and counts its runs in a file."""
    printed = {"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": status}
    return (
        "import json, os, sys\n"
        "with open(__file__ + '.runs', 'a') as runs: runs.write('x')\n"
        f"found = {printed!r}\n"
        "print(json.dumps(found))\n"
    )


@pytest.mark.parametrize(
    ("program", "tells"),
    [
        ("raise SystemExit(3)", "failed with exit code 3"),
        ("import sys; sys.exit('log in \\x1b[31mfirst')", "log in first"),
        ("print('garbage')", "did not print JSON"),
        ("print('[' * 100000)", "did not print JSON"),
        ("print('{}')", "without a token"),
        ("print('[1]')", "without a token"),
        ("print('{\"status\": {\"token\": 5}}')", "without a token"),
        (credential(token="t", expirationTimestamp="soon"), "without a token"),
        (credential(token="SECRET\n"), "invalid token"),
        (credential(token="t").replace("k8s.io/v1", "k8s.io/v1\\x1b"), "names client.authentication.k8s.io/v1"),
        ("while True: print('x' * 65536)", "printed more than"),
    ],
)  # fmt: skip
def test_a_program_without_credentials_in_its_output_is_reported(tmp_path: Path, program: str, tells: str) -> None:
    with pytest.raises(AuthorizationError) as error:
        KubernetesApi(kubeconfig=plugin(tmp_path, program))
    assert tells in error.value.message and error.value.hint, error.value.message
    assert "\x1b" not in error.value.message and "SECRET" not in error.value.message


def test_a_hung_credential_program_times_out(tmp_path: Path) -> None:
    begun = time.monotonic()
    with pytest.raises(AuthorizationError, match=r"timed out after 0\.3s") as error:
        KubernetesApi(
            kubeconfig=plugin(tmp_path, "import time; time.sleep(100)"), limits=Limits(credential_seconds=0.3)
        )
    assert time.monotonic() - begun < 10 and "plugin.py" in error.value.hint


@pytest.mark.parametrize(
    "changes", [{"command": ""}, {"command": 5}, {"args": "x"}, {"args": [1]}, {"env": ["x"]}, {"env": [{"name": "a"}]}]
)
def test_an_invalid_program_name_is_reported(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(XpkError, match=r"its exec") as error:
        KubernetesApi(kubeconfig=plugin(tmp_path, "", **changes))
    assert error.value.hint


def test_a_missing_or_forbidden_program_is_reported(tmp_path: Path) -> None:
    with pytest.raises(MissingToolError, match="no-such-plugin") as error:
        KubernetesApi(kubeconfig=plugin(tmp_path, "", command="./no-such-plugin"))
    assert str(tmp_path) in error.value.message, "the program is looked up next to the kubeconfig"
    with pytest.raises(AuthorizationError, match="cannot run"):
        KubernetesApi(kubeconfig=plugin(tmp_path, "", command=str(tmp_path / "plugin.py")))


@pytest.mark.parametrize("lives", [3, 600, None])
def test_a_credential_program_is_run_once_for_many_requests(tmp_path: Path, lives: int | None) -> None:
    """Some programs print credentials that are valid for less than a minute."""
    ends = {} if lives is None else {"expirationTimestamp": (datetime.now(UTC) + timedelta(seconds=lives)).isoformat()}
    with serving(sends(200, JOBSET)) as (server, seen):
        api = KubernetesApi(kubeconfig=plugin(tmp_path, credential(token="t", **ends), server))
        for _ in range(20):
            api.get("JobSet", "w")
    assert len(seen) == 20 and (tmp_path / "plugin.py.runs").read_text() == "x"


def test_credentials_that_have_expired_are_renewed(tmp_path: Path) -> None:
    tokens: list[str] = []

    def mode(request: hostile.Request) -> None:
        tokens.append(str(request.headers["Authorization"]))
        request.send(200, JOBSET)

    program = credential(token="t", expirationTimestamp=datetime.now(UTC).isoformat()).replace(
        "print(", "found['status']['token'] += str(os.path.getsize(__file__ + '.runs'))\nprint("
    )
    with serving(mode) as (server, _):
        api = KubernetesApi(kubeconfig=plugin(tmp_path, program, server), limits=Limits(renewal_seconds=0.0))
        for _ in range(2):
            api.get("JobSet", "w")
    assert tokens == ["Bearer t2", "Bearer t3"]


def test_a_credential_program_may_return_a_certificate_and_receive_the_cluster(tmp_path: Path) -> None:
    program = credential(clientCertificateData="CERT", clientKeyData="KEY") + (
        "open(__file__ + '.info', 'w').write(os.environ['KUBERNETES_EXEC_INFO'] + os.environ['MORE'])\n"
    )
    env = [{"name": "MORE", "value": "!"}]
    api = KubernetesApi(kubeconfig=plugin(tmp_path, program, provideClusterInfo=True, env=env))
    configuration = api._client.configuration
    assert Path(configuration.cert_file).read_text() == "CERT" and Path(configuration.key_file).read_text() == "KEY"
    report = (tmp_path / "plugin.py.info").read_text()
    assert report.endswith("!") and json.loads(report[:-1])["spec"]["cluster"] == {"server": "https://x"}


def test_a_kubeconfig_is_read_as_written(tmp_path: Path) -> None:
    file = kubeconfig(tmp_path, "https://x", token="t")
    assert only_context("x", file=file) == {**yaml.safe_load(file.read_text())}
