"""Random content in place of the user's files: each file is read, or rejected in one line, immediately."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz.conftest import CommandLine
from tests.fuzz.counts import inputs
from tests.fuzz.inputs import COMMANDS, TEXTS, WORDS
from tests.fuzz.mutations import damaged
from xpk.api.kubefile import only_context
from xpk.api.kubernetes import KubernetesApi
from xpk.model.errors import XpkError

CREATE = ("workload", "create", "wx", "--cluster", "fz", "--dry-run")
# Commands named by a kubeconfig or a spec are never run: no request is sent, and runs are dry.
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(TEXTS[:-1]) | WORDS
KUBECONFIG_KEYS = ["apiVersion", "kind", "clusters", "contexts", "users", "current-context", "name", "cluster", "user",
                   "context", "namespace", "server", "token", "exec", "command", "args", "env", "certificate-authority",
                   "certificate-authority-data", "client-certificate", "client-key", "tokenFile", "auth-provider",
                   "insecure-skip-tls-verify", "proxy-url", "tls-server-name"]  # fmt: skip
FIELDS = [item.opts[0].removeprefix("--") for item in COMMANDS["workload create"].params]
KEYS = ["cluster", "priority", "num-slices", "zone", "project", "provider", "output-root", "tpu-type", "x"]


def trees(keys: list[str]) -> st.SearchStrategy[Any]:
    """Return a strategy of nested values with keys of a file's format."""
    return st.recursive(
        SCALARS,
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(keys) | WORDS, inner, max_size=4),
        max_leaves=12,
    )


def as_yaml(tree: Any) -> bytes:
    return yaml.safe_dump(tree, allow_unicode=True).encode("utf-8", "surrogatepass")


def entry(section: str, body: str) -> st.SearchStrategy[dict[str, Any]]:
    """Return a section of a kubeconfig whose first entry has a name and invalid fields."""
    fields = st.dictionaries(st.sampled_from(KUBECONFIG_KEYS), SCALARS | trees(KUBECONFIG_KEYS), max_size=4)
    return fields.map(lambda odd: {section: [{"name": "x", body: {"cluster": "x", "user": "x", **odd}}]})


KUBECONFIGS = trees(KUBECONFIG_KEYS) | st.builds(
    lambda *sections: {"current-context": "x"} | sections[0] | sections[1] | sections[2],
    entry("clusters", "cluster"), entry("contexts", "context"), entry("users", "user"),
)  # fmt: skip
SPECIFICATIONS = st.dictionaries(st.sampled_from(FIELDS), SCALARS | trees(FIELDS), max_size=4) | trees(FIELDS)
SETTINGS = st.lists(
    st.tuples(st.sampled_from(KEYS), SCALARS).map(lambda pair: f"{pair[0]} = {pair[1]!r}\n"), max_size=4
)
VARIABLES = st.lists(st.tuples(WORDS, st.sampled_from(TEXTS) | WORDS).map("=".join), max_size=4)


def encoded(lines: list[str]) -> bytes:
    return "\n".join(lines).encode("utf-8", "surrogatepass")


@inputs(0.02)
@given(content=damaged(KUBECONFIGS.map(as_yaml)))
def test_kubeconfigs(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    file = tmp_path_factory.getbasetemp() / "kubeconfig"
    file.write_bytes(content)
    readers: list[Callable[[], object]] = [
        lambda: only_context(None, {"KUBECONFIG": str(file)}), lambda: KubernetesApi(kubeconfig=file)
    ]  # fmt: skip
    for read in readers:
        began = time.process_time()
        with suppress(XpkError):
            read()
        assert time.process_time() - began < 5


@inputs(0.0125)
@given(content=damaged(SETTINGS.map(encoded)))
def test_preferences(command_line: CommandLine, content: bytes) -> None:
    file = command_line.folder / "config" / "preferences.toml"
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    command_line.check("workload", "list", "--cluster", "fz")


@inputs(0.0125)
@given(content=damaged(VARIABLES.map(encoded)))
def test_files_of_variables(command_line: CommandLine, content: bytes) -> None:
    (command_line.folder / "work" / "variables").write_bytes(content)
    command_line.check(*CREATE, "--command", "true", "--env-file", "variables")


@inputs(0.02)
@given(content=damaged(SPECIFICATIONS.map(as_yaml)))
def test_specifications(command_line: CommandLine, content: bytes) -> None:
    file = Path(command_line.folder / "work" / "specification")
    file.write_bytes(content)
    command_line.check(*CREATE, "--command", "true", "-f", str(file))
