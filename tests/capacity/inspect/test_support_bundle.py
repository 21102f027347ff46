"""A support bundle has everything that can be read, without secrets."""

from __future__ import annotations

import threading

import pytest

from xpk.capacity.inspect.support_bundle import bundle, of_cluster, of_workload
from xpk.capacity.inspect.versions import of_cluster as versions_of
from xpk.model.errors import AuthorizationError
from xpk.model.redaction import redact, redacted
from xpk.testing import FakeApi


def test_sections_are_read_concurrently_and_failures_are_explained() -> None:
    both = threading.Barrier(2, timeout=20)

    def wait() -> dict[str, str]:
        both.wait()
        return {"a": "b\x1b[31m"}

    def refused() -> None:
        raise AuthorizationError("not authorized: password=hunter2")

    text = bundle({"one": wait, "two": wait, "three": refused})
    assert text.index("one") < text.index("two") < text.index("three")
    assert "not read: not authorized" in text and "hunter2" not in text and "\x1b" not in text


def test_a_minimal_cluster_gives_a_bundle() -> None:
    sections = of_cluster(FakeApi()) | of_workload(FakeApi(), "w", "default")
    text = bundle(sections)
    assert all(title in text for title in ("nodes", "ClusterQueue objects", "Kueue: deployment", "JobSet w"))
    assert text.count("not read:") == 4, text


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("HF_TOKEN=abc123 next", "abc123"),
        ('{"api_key": "abc 123"}', "abc 123"),
        ("--password 'x' password: hunter2", "hunter2"),
        ("Authorization: Bearer abcdef123456", "abcdef123456"),
        ("https://user:pw123@host/x", "pw123"),
        ("token hf_abcdefghijklmnop here", "hf_abcdefghijklmnop"),
        ("train --api-key Y9z --steps 5", "Y9z"),
        ("train --db-pass=hunter2", "hunter2"),
        ("ENCRYPTION_KEY=k33p DB_PASS='a b' run", "k33p"),
        ("ENCRYPTION_KEY=k33p DB_PASS='a b' run", "a b"),
        ("curl https://hooks.slack.com/services/T0/B0/xyz", "xyz"),
        ("ya29.a0AfH6SMBabcdef", "ya29.a0AfH6SMBabcdef"),
        ("-----BEGIN RSA PRIVATE KEY-----\nMIIE\n-----END RSA PRIVATE KEY-----", "MIIE"),
    ],
)
def test_secrets_are_redacted(text: str, secret: str) -> None:
    assert secret not in redact(text) and "[redacted]" in redact(text)


def test_objects_keep_non_secret_fields() -> None:
    pod = {
        "metadata": {"name": "p", "managedFields": [1], "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "{x}", "xpk.dev/user": "ann",
        }},
        "spec": {
            "serviceAccountName": "xpk-sa",
            "tolerations": [{"key": "google.com/tpu", "operator": "Exists"}],
            "containers": [{
                "args": ["train", "--password", "hunter2", "--tokenizer", "gpt2"],
                "env": [
                    {"name": "WANDB_API_KEY", "value": "k"},
                    {"name": "SLACK_WEBHOOK", "value": "https://h/1"},
                    {"name": "PLAIN", "value": "of the user"},
                    {"name": "XPK_NUM_SLICES", "value": "5"},
                ],
            }],
        },
    }  # fmt: skip
    result = redacted(pod)
    assert result["spec"]["containers"][0]["env"] == [
        {"name": "WANDB_API_KEY", "value": "[redacted]"},
        {"name": "SLACK_WEBHOOK", "value": "[redacted]"},
        {"name": "PLAIN", "value": "[redacted]"},
        {"name": "XPK_NUM_SLICES", "value": "5"},
    ]
    assert result["spec"]["containers"][0]["args"] == ["train", "--password", "[redacted]", "--tokenizer", "gpt2"]
    assert result["spec"]["tolerations"] == [{"key": "google.com/tpu", "operator": "Exists"}]
    assert result["metadata"]["annotations"]["xpk.dev/user"] == "ann" and "managedFields" not in result["metadata"]
    assert "{x}" not in str(result) and result["spec"]["serviceAccountName"] == "xpk-sa"


def test_versions_of_a_cluster() -> None:
    class Server(FakeApi):
        def server_version(self) -> str:
            return "v1.34.3"

    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "kueue-controller-manager", "namespace": "kueue-system"},
        "spec": {"template": {"spec": {"containers": [{"name": "manager", "image": "r/kueue:v0.16.0"}]}}},
    }
    result = {item.name: item.version for item in versions_of(lambda: Server([deployment]))}
    assert result == {"API server": "v1.34.3", "JobSet": "not installed", "Kueue": "0.16.0"}
