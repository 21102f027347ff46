"""Errors of real API servers become one line, an exit code and a next step."""

from __future__ import annotations

import json

import pytest

from xpk.api.server_errors import explain
from xpk.model.errors import (
    AuthorizationError,
    ConflictError,
    MissingToolError,
    NotAuthorized,
    NotFoundError,
    QuotaExceeded,
    UnavailableError,
    UsageError,
    XpkError,
)

JOBSETS = "/apis/jobset.x-k8s.io/v1alpha2/namespaces/default/jobsets"
JOBSET = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": {"name": "w"}}


@pytest.mark.parametrize(
    ("status", "said", "kind", "tells"),
    [
        (401, "Unauthorized", AuthorizationError, "invalid credentials"),
        (
            403,
            'jobsets.jobset.x-k8s.io is forbidden: User "bob" cannot create resource "jobsets" in API group '
            '"jobset.x-k8s.io" in the namespace "default"',
            NotAuthorized,
            "user 'bob' cannot create jobsets.jobset.x-k8s.io in namespace 'default'",
        ),
        (
            403,
            'nodes is forbidden: User "bob" cannot list resource "nodes" in API group "" at the cluster scope',
            NotAuthorized,
            "user 'bob' cannot list nodes in the whole cluster",
        ),
        (
            403,
            'admission webhook "vjobset.kb.io" denied the request: too long',
            UsageError,
            "too long (webhook vjobset",
        ),
        (403, 'pods "w" is forbidden: exceeded quota: compute, requested: cpu=2', QuotaExceeded, "exceeded quota"),
        (403, 'pods "w" is forbidden: violates PodSecurity "restricted:latest"', UsageError, "pod security"),
        (
            403,
            "unable to create new content in namespace x because it is being terminated",
            ConflictError,
            "is being deleted",
        ),
        (404, 'namespaces "nope" not found', NotFoundError, "namespace 'nope' not found"),
        (404, "the server could not find the requested resource", MissingToolError, "JobSet is not installed"),
        (404, 'jobsets.jobset.x-k8s.io "w" not found', NotFoundError, "JobSet 'w' not found"),
        (
            400,
            'JobSet in version "v1alpha2" cannot be handled as a JobSet: strict decoding error: unknown field '
            '"spec.failurePolicy.rules[0].onJobFailureMessagePatterns"',
            MissingToolError,
            "too old: it does not know spec.failurePolicy.rules[0].onJobFailureMessagePatterns",
        ),
        (422, 'JobSet.jobset.x-k8s.io "w" is invalid: spec: immutable', UsageError, "is invalid"),
        (
            500,
            'Internal error occurred: failed calling webhook "mjobset.kb.io": failed to call webhook: Post '
            '"https://jobset-webhook-service.jobset-system.svc:443/mutate?timeout=10s": dial tcp: connection refused',
            MissingToolError,
            "JobSet does not answer, so the cluster cannot accept JobSet 'w': dial tcp: connection refused",
        ),
        (
            500,
            'Internal error occurred: failed calling webhook "mworkload.kb.io": failed to call webhook: Post '
            '"https://kueue-webhook-service.kueue-system.svc:443/mutate?timeout=10s": no endpoints available',
            MissingToolError,
            "Kueue does not answer",
        ),
        (
            500,
            'Internal error occurred: failed calling webhook "policy.corp": failed to call webhook: Post '
            '"https://policy.corp-system.svc:443/?timeout=10s": context deadline exceeded',
            MissingToolError,
            "policy.corp does not answer, so the cluster cannot accept JobSet 'w': context deadline exceeded",
        ),
        (500, "etcdserver: mvcc: database space exceeded", XpkError, "store (etcd) is full"),
        (500, "rpc error", UnavailableError, "the cluster failed on JobSet 'w'"),
        (503, "", UnavailableError, "HTTP 503"),
        (504, "", UnavailableError, "timed out on JobSet 'w': HTTP 504; the request may have been carried out"),
        (408, "", UnavailableError, "timed out"),
    ],
)
def test_refusals(status: int, said: str, kind: type[XpkError], tells: str) -> None:
    error = explain(status, json.dumps({"message": said}), "POST", JOBSETS, JOBSET)
    assert type(error) is kind and tells in error.message, error.message
    assert error.hint and "\n" not in error.message


def test_hints_name_the_next_step() -> None:
    def hint(said: str, status: int = 500) -> str:
        return explain(status, json.dumps({"message": said}), "GET", f"{JOBSETS}/w").hint

    service = 'Post "https://kueue-webhook-service.kueue-system.svc:443/x": refused'
    assert "--namespace kueue-system" in hint(
        f'failed calling webhook "mjobset.kb.io": failed to call webhook: {service}'
    )
    forbidden = 'User "a" cannot get resource "pods/log" in API group "" in the namespace "ml"'
    assert "`kubectl auth can-i get pods/log --namespace ml`" in hint(forbidden, 403)
    assert "`xpk docs permissions`" in hint(forbidden, 403)
