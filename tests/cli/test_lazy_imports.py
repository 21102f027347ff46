"""A command imports neither other commands nor other providers: imports are most of a short command's time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import sys
from xpk.cli.main import main
main(sys.argv[1:])
print(*sys.modules)
"""


def test_a_list_imports_nothing_of_other_commands_and_providers(tmp_path: Path) -> None:
    folder = tmp_path / "state" / "kind" / "dev"
    folder.mkdir(parents=True)
    (folder / "kubeconfig").write_text(
        "current-context: x\n"
        "contexts: [{name: x, context: {cluster: c}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:9'}}]\n"
    )
    environ = {**os.environ, "XPK_STATE_DIR": str(tmp_path / "state"), "XPK_CONFIG_DIR": str(tmp_path / "config")}
    argv = [sys.executable, "-c", PROGRAM, "workload", "list", "--cluster", "dev", "--timeout", "1s"]
    done = subprocess.run(argv, env=environ, capture_output=True, text=True, check=True)
    assert "--timeout requires" in done.stderr
    imported = done.stdout.split()
    assert "xpk.cli.workload.list" in imported
    assert not {"xpk.cli.workload.create", "xpk.client", "xpk.capacity.gke.provider", "kubernetes"} & {*imported}


def test_a_cluster_loads_only_its_provider(tmp_path: Path) -> None:
    (tmp_path / "kind" / "dev").mkdir(parents=True)
    program = "import sys; from xpk.capacity.provider import provider_of; print(provider_of('dev').name, *sys.modules)"
    environ = {**os.environ, "XPK_STATE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, check=True)
    provider, *imported = done.stdout.split()
    assert provider == "kind" and "xpk.capacity.gke.provider" not in imported


def test_the_api_server_is_reached_without_the_models_of_all_kinds() -> None:
    """Importing them takes half a second; only a connection to a pod's port needs some."""
    program = "import sys, xpk.api.kubernetes; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    imported = done.stdout.split()
    assert "kubernetes.client.api_client" in imported
    assert not [name for name in imported if name.startswith(("kubernetes.client.models.v1", "kubernetes.client.api."))]
