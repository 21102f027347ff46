"""Plans show every request, and only the limits that need attention."""

from __future__ import annotations

import contextlib
import os
import pty
import subprocess
import sys
import termios
from pathlib import Path

import pytest

from xpk.capacity.gke.desired.limits import Limit, lines_of
from xpk.capacity.gke.request.options import GkeOptions
from xpk.capacity.options import CREATE, ControllerOptions
from xpk.cli.main import main
from xpk.model.options import options_of

BASE = "cluster create c --project=p --zone=us-central1-a --tpu-type=v6e-16 --num-slices=2 --dry-run"
CAPACITY = {"--on-demand", "--spot", "--reservation=r", "--flex", "--flex --queued-provisioning"}
CAPACITY |= {"--reservation=r --sub-slicing"}
OTHERS = {
    "--gke-version=1.34", "--release-channel=stable", "--default-pool-cpu-machine-type=n1-standard-8",
    "--default-pool-cpu-num-nodes=3", "--host-maintenance-interval=PERIODIC", "--private",
    "--authorized-networks=10.0.0.0/8", "--enable-private-endpoint", "--private --private-endpoint-subnetwork=s",
    "--private --enable-master-global-access", "--network=n", "--subnetwork=s", "--enable-gcsfuse-csi-driver",
    "--enable-gcpfilestore-csi-driver", "--enable-parallelstore-csi-driver", "--enable-pd-csi-driver",
    "--enable-lustre-csi-driver", "--enable-lustre-csi-driver --enable-legacy-lustre-port",
    "--enable-autoprovisioning", "--enable-autoprovisioning --autoprovisioning-min-chips=16",
    "--enable-autoprovisioning --autoprovisioning-max-chips=64", "--enable-autoprovisioning "
    "--autoprovisioning-max-cpu=64", "--enable-autoprovisioning --autoprovisioning-max-memory=64",
    "--custom-cluster-arguments=--labels=a=b", "--custom-nodepool-arguments=--disk-size=200",
    "--custom-tpu-nodepool-arguments=--disk-size=300", "--ignore-nodepool-creation-errors", "--roll-back",
    "--max-pods-per-node=32", "--output-root=gs://b/p", "--node-scopes=storage-full", "--disable-workload-identity",
}  # fmt: skip
# These options give the location, are compared with the result, or control the speed.
NOT_SHOWN = {"--project", "--zone", "--region", "--at-once", "--timeout", "--max-cost", "--prices"}
NOT_SHOWN |= {"--trainer-image", "--gpudirect-manifests"}
NOT_SHOWN |= {"--super-slicing"}  # of tpu7x only: test_super_slicing.py
DEFAULT = {"--enable-workload-identity"}


def test_every_flag_shows_in_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XPK_STATE_DIR", str(tmp_path))
    monkeypatch.setenv("XPK_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("CLOUDSDK_CONFIG", str(tmp_path))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "none.json"))

    def plan(flags: str) -> str:
        assert main([*BASE.split(), *flags.split()]) == 0, capsys.readouterr().err
        return capsys.readouterr().out

    plans = {flags: plan(flags) for flags in CAPACITY} | {flags: plan(f"--spot {flags}") for flags in OTHERS}
    same = [(one, two) for one in plans for two in plans if one < two and plans[one] == plans[two]]
    assert same == []
    tried = {word.partition("=")[0] for flags in plans for word in flags.split()}
    flags = {option.flag for _, option in options_of(GkeOptions) if CREATE in option.commands}
    assert flags - {option.flag for _, option in options_of(ControllerOptions)} - tried == NOT_SHOWN | DEFAULT


def test_a_plan_fits_the_terminal(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 60))
    names = ("XPK_STATE_DIR", "XPK_CONFIG_DIR", "CLOUDSDK_CONFIG", "GOOGLE_APPLICATION_CREDENTIALS")
    env = {**os.environ, **dict.fromkeys(names, str(tmp_path / "none"))}
    env.pop("COLUMNS", None)
    argv = [sys.executable, "-m", "xpk", *BASE.split(), "--spot", "--private"]
    with subprocess.Popen(argv, stdin=theirs, stdout=theirs, stderr=subprocess.DEVNULL, env=env) as process:
        os.close(theirs)
        text = b""
        with contextlib.suppress(OSError):  # Linux's way to detect that no process writes to the file
            while part := os.read(ours, 4096):
                text += part
    os.close(ours)
    lines = text.decode().splitlines()
    assert process.returncode == 0 and len(lines) > 15
    assert max(map(len, lines)) <= 60, lines
    assert "us-central1-a" in " ".join(lines), "names are not split"


def test_satisfied_limits_are_one_line() -> None:
    held, short, unknown = Limit("a", 1, 2), Limit("b", 1_000, 2, "fewer"), Limit("c", 3, None, "ask for more")
    assert lines_of([held, short, held, unknown]) == [
        "2 limits checked: ok",
        "b: needs 1,000 of 2: too little (fewer)",
        "c: needs 3, available: unknown",
    ]
    assert lines_of([held]) == ["1 limit checked: ok"] and lines_of([]) == []
