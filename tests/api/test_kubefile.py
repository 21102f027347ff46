"""Extraction of one context from one or several kubeconfig files, with absolute paths."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from tests.api.kubeconfigs import kubeconfig
from xpk.api.kubeconfig import new_client
from xpk.api.kubefile import only_context
from xpk.model.errors import NotFoundError, UsageError, XpkError


def write(file: Path, content: object) -> Path:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return file


def test_only_the_named_context_and_its_secrets_are_copied(tmp_path: Path) -> None:
    one = write(tmp_path / "a" / "config", kubeconfig("dev", current="dev"))
    two = write(tmp_path / "b" / "config", kubeconfig("prod", current="prod"))
    environ = {"KUBECONFIG": f"{one}:{tmp_path / 'gone'}:{two}"}
    result = only_context("prod", environ)
    assert result["current-context"] == "prod"
    assert [user["user"]["token"] for user in result["users"]] == ["secret of prod"]
    assert result["clusters"][0]["cluster"]["certificate-authority"] == str(tmp_path / "b" / "ca.crt")
    assert only_context(None, environ)["current-context"] == "dev", "the first file takes precedence"


@pytest.mark.parametrize(
    ("content", "context", "says"),
    [
        (kubeconfig("dev"), None, "no current one"),
        (kubeconfig("dev"), "prod", "context 'prod' not found"),
        ("a: [", None, "cannot read kubeconfig"),
        ("- a", None, "is not a kubeconfig"),
        ({**kubeconfig("dev"), "users": None}, "dev", "names user 'dev-u', not found in kubeconfig "),
    ],
)
def test_problems_are_reported_in_one_line(tmp_path: Path, content: object, context: str | None, says: str) -> None:
    with pytest.raises(XpkError, match=says) as caught:
        only_context(context, {"KUBECONFIG": str(write(tmp_path / "config", content))})
    assert isinstance(caught.value, NotFoundError | UsageError)
    assert caught.value.hint


def test_no_kubeconfig(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no kubeconfig found"):
        only_context(None, {"KUBECONFIG": str(tmp_path / "none")})


def test_a_context_needs_neither_a_user_nor_to_be_the_current_one(tmp_path: Path) -> None:
    """`kubectl proxy` does not authenticate users; merged kubeconfigs have no current context."""
    config = {
        "contexts": [{"name": "proxy", "context": {"cluster": "c"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://localhost:8001"}}],
    }
    file = tmp_path / "config"
    file.write_text(yaml.safe_dump(config))
    assert only_context("proxy", {"KUBECONFIG": str(file)})["clusters"][0]["name"] == "c"
    assert new_client(file, "proxy").configuration.host == "http://localhost:8001"
    with pytest.raises(XpkError, match="gone"):
        new_client(file, "gone")
