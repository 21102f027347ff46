"""API servers that are gone, are somebody else, or stop in the middle; kubeconfigs that are none."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.api.scripted_server import Script, kubeconfig, serving
from xpk.api.kubernetes import KubernetesApi
from xpk.api.paths import access_review
from xpk.jobs.outage import SIGNS
from xpk.model.errors import AuthorizationError, MissingToolError, NotFoundError, UnavailableError, XpkError
from xpk.testing import FakeRunner

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
JOBSET = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "w"}, "spec": {}}
LOGIN = "<html><head><title>Log in to the proxy</title></head></html>"
EMPTY = {"metadata": {"resourceVersion": "1"}, "items": []}


def api(folder: Path, server: str) -> KubernetesApi:
    """Return a client that does not pause between attempts."""
    return KubernetesApi(kubeconfig=kubeconfig(folder, server), pause=lambda seconds: None)


def said(error: pytest.ExceptionInfo[XpkError]) -> str:
    return error.value.message


@pytest.mark.parametrize("status", [200, 302, 403, 404, 502])
def test_a_proxy_that_returns_an_html_page_is_reported(tmp_path: Path, status: int) -> None:
    with serving(Script({"*": [(status, LOGIN)]})) as server, pytest.raises(XpkError) as error:
        api(tmp_path, server).list("Pod")
    assert "it sent a web page, 'Log in to the proxy'" in said(error) and "HTTPS_PROXY" in error.value.hint


def test_an_html_page_instead_of_a_watch_is_reported(tmp_path: Path) -> None:
    with serving(Script({"*": [(200, LOGIN)]})) as server, pytest.raises(XpkError, match="web page"):
        list(api(tmp_path, server).watch("Pod", timeout=1))


@pytest.mark.parametrize(
    ("server", "tells"),
    [
        ("https://127.0.0.1:1", "connection refused"),
        ("https://no-such-host.invalid", "its name does not resolve"),
    ],
)
def test_an_unreachable_server_is_reported(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], server: str, tells: str
) -> None:
    with pytest.raises(XpkError) as error:
        api(tmp_path, server).list("Pod")
    assert tells in said(error) and server in said(error) and error.value.hint
    assert capfd.readouterr() == ("", ""), "messages of the client library are suppressed"


def test_tls_to_a_plain_http_server_is_reported(tmp_path: Path) -> None:
    with serving(Script({})) as server, pytest.raises(XpkError, match="it does not use TLS"):
        api(tmp_path, server.replace("http:", "https:")).list("Pod")


@pytest.mark.parametrize("method", ["list", "create"])
def test_a_request_is_repeated_if_the_connection_closes_before_it_is_sent(tmp_path: Path, method: str) -> None:
    """A load balancer or Docker's port forwarding closes connections while an API server restarts."""
    calls = 0

    def hang_up() -> None:
        nonlocal calls
        with suppress(OSError):  # the end of the test
            while True:
                connection, _ = listener.accept()
                calls += 1
                connection.recv(4096)
                connection.close()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=hang_up, daemon=True).start()
        client = api(tmp_path, f"https://127.0.0.1:{listener.getsockname()[1]}")
        with pytest.raises(UnavailableError, match="it closed the connection"):
            client.list("Pod") if method == "list" else client.create(JOBSET)
    assert calls == 6


def test_a_create_is_not_repeated_if_the_connection_is_lost(tmp_path: Path) -> None:
    script = Script({"*": [None]})
    with serving(script) as server, pytest.raises(XpkError, match="the request may have been carried out"):
        api(tmp_path, server).create(JOBSET)
    assert script.asked == [f"POST {JOBSETS}"]


def test_a_request_is_repeated_once_the_server_is_back(tmp_path: Path) -> None:
    busy = {"kind": "Status", "message": "storage is (re)initializing"}
    with serving(Script({"*": [None, (429, busy), (503, busy), (200, EMPTY)]})) as server:
        assert api(tmp_path, server).list("Pod") == []


@pytest.mark.parametrize("status", [408, 504])
def test_an_overloaded_server_counts_as_unreachable(tmp_path: Path, status: int) -> None:
    """Commands survive it like an outage; exit code 124 is reserved for the user's own --timeout."""
    late = (status, {"kind": "Status", "reason": "Timeout", "message": "the server was unable to answer in time"})
    with serving(Script({"*": [late, late, (200, EMPTY)]})) as server:
        assert api(tmp_path, server).list("Pod") == []
    with serving(Script({"*": [late]})) as server, pytest.raises(UnavailableError, match="timed out") as error:
        api(tmp_path, server).list("Pod")
    assert isinstance(error.value, SIGNS) and error.value.exit_code == 1


def test_a_controller_of_another_version_is_not_reported_as_missing(tmp_path: Path) -> None:
    missing = (404, {"kind": "Status", "message": "the server could not find the requested resource"})
    group = {"kind": "APIGroup", "versions": [{"version": "v1beta1"}, {"version": "v1alpha1"}]}
    with serving(Script({"*": [missing], "GET /apis/kueue.x-k8s.io": [(200, group)]})) as server:
        with pytest.raises(MissingToolError, match="it serves v1beta1, v1alpha1, and v1beta2 is needed"):
            api(tmp_path, server).list("Workload")
        with pytest.raises(MissingToolError, match="JobSet is not installed"):
            api(tmp_path, server).list("JobSet")


def test_create_requests_strict_field_validation(tmp_path: Path) -> None:
    message = 'strict decoding error: unknown field "spec.coordinator"'
    script = Script({"*": [(400, {"kind": "Status", "message": message})]})
    with serving(script) as server, pytest.raises(MissingToolError, match=r"it does not know spec\.coordinator"):
        api(tmp_path, server).create(JOBSET)


@pytest.mark.parametrize(
    ("content", "tells"),
    [
        (b"{{{ no yaml", "cannot read kubeconfig"),
        (b"only words", "is not a kubeconfig"),
        (b"", "has no current one"),
        (b"\xff\xfe\x00\x01", "cannot read kubeconfig"),
        (None, "no kubeconfig found"),
    ],
)
def test_an_invalid_kubeconfig_is_reported(tmp_path: Path, content: bytes | None, tells: str) -> None:
    file = tmp_path / "config"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(XpkError) as error:
        KubernetesApi(kubeconfig=file)
    assert tells in said(error) and str(file) in said(error) and error.value.hint


def test_a_kubeconfig_that_is_a_folder_or_has_no_url_is_reported(tmp_path: Path) -> None:
    with pytest.raises(XpkError, match="Is a directory"):
        KubernetesApi(kubeconfig=tmp_path)
    with pytest.raises(XpkError, match="'nonsense' is not a URL"):
        KubernetesApi(kubeconfig=kubeconfig(tmp_path, "nonsense"))


def test_the_error_for_a_missing_context_lists_the_existing_ones(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="context 'prod' not found") as error:
        KubernetesApi(kubeconfig=kubeconfig(tmp_path, "https://x"), context="prod")
    assert error.value.hint == "choose from x"


def test_unavailable_credentials_are_reported(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program: dict[str, Any] = {"apiVersion": "client.authentication.k8s.io/v1", "command": "no-such-plugin", "args": []}
    with pytest.raises(MissingToolError, match="no-such-plugin"):
        KubernetesApi(kubeconfig=kubeconfig(tmp_path, "https://x", exec=program))
    assert capfd.readouterr() == ("", "")


def test_exec_needs_kubectl(tmp_path: Path) -> None:
    api = KubernetesApi(kubeconfig=kubeconfig(tmp_path, "https://x"), runner=FakeRunner(missing=["kubectl"]))
    pod = {"metadata": {"name": "p", "namespace": "default"}, "status": {"phase": "Running"}}
    with pytest.raises(MissingToolError, match="program 'kubectl' not found") as error:
        api.exec(pod, ["ls"])
    assert error.value.exit_code == 7 and error.value.hint


@pytest.mark.parametrize("allowed", [True, False])
def test_an_access_review_has_no_name(allowed: bool, tmp_path: Path) -> None:
    meta = {"creationTimestamp": None, "managedFields": [{"manager": "xpk"}]}
    review = {"kind": "SelfSubjectAccessReview", "metadata": meta, "status": {"allowed": allowed}}
    with serving(Script({"*": [(201, review)]})) as server:
        api = KubernetesApi(kubeconfig=kubeconfig(tmp_path, server))
        assert api.create(access_review(verb="list", resource="nodes"))["status"]["allowed"] is allowed


def test_an_access_review_without_a_status_is_reported(tmp_path: Path) -> None:
    with serving(Script({"*": [(201, {"kind": "SelfSubjectAccessReview", "metadata": {}})]})) as server:
        api = KubernetesApi(kubeconfig=kubeconfig(tmp_path, server))
        with pytest.raises(XpkError, match="it sent a SelfSubjectAccessReview without a status"):
            api.create(access_review(verb="list", resource="nodes"))


def test_a_failing_program_is_distinguished_from_a_forbidden_one(tmp_path: Path) -> None:
    pod = {"metadata": {"name": "p", "namespace": "default"}, "status": {"phase": "Running"}}
    for allowed in (True, False):
        review = {"kind": "SelfSubjectAccessReview", "status": {"allowed": allowed}}
        with serving(Script({"*": [(201, review)]})) as server:
            api = KubernetesApi(kubeconfig=kubeconfig(tmp_path, server), runner=FakeRunner({"kubectl": 1}))
            if allowed:
                assert api.exec(pod, ["false"]) == 1
            else:
                with pytest.raises(AuthorizationError, match="cannot create pods/exec in namespace 'default'"):
                    api.exec(pod, ["false"])
