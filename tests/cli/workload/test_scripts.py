"""`xpk workload create --script-dir`: on local clusters with real processes, elsewhere by its calls."""

from __future__ import annotations

import base64
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.conftest import Xpk
from tests.cli.workload.descriptions import described, is_running
from xpk.jobs.create.options import files_here

ROOT = Path(__file__).resolve().parents[3]
ALWAYS = "import helper, os, time; print(helper.VERSION, os.environ['XPK_RESTART_ATTEMPT'], flush=True)\n"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a program of two files."""
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "train.py").write_text(f"{ALWAYS}if os.environ['XPK_RESTART_ATTEMPT'] == '0': time.sleep(60)\n")
    (folder / "helper.py").write_text("VERSION = 'one'\n")
    return folder


def test_later_edits_reach_neither_a_running_nor_a_restarting_workload(dev: Xpk, project: Path) -> None:
    create = ("workload", "create", "--script-dir", "project", "--command", "python train.py", "--max-restarts", "1")
    assert "code shipped: 2 files" in dev(*create, "run").err
    hosts = described(dev, "run", is_running)["hosts"]
    (project / "helper.py").write_text("VERSION = 'two'\n")
    (project / "train.py").unlink()
    os.kill(hosts[0]["pid"], signal.SIGKILL)
    assert dev("workload", "wait", "run", "--timeout", "30").code == 0
    lines = dev("workload", "logs", "run", "--no-prefix").out.split("\n")
    assert sorted(filter(None, lines)) == ["one 1", "one 1"]


def test_files_of_the_current_folder_are_absent_unless_shipped(dev: Xpk, tmp_path: Path) -> None:
    (tmp_path / "train.sh").write_text("pwd; ls -A; touch mark\n")
    create = ("workload", "create", "--wait")
    refused = dev(*create, "one", "--command", "bash train.sh")
    assert refused.code == 8 and "'train.sh' is not shipped; --script-dir . ships it" in refused.err
    assert dev(*create, "two", "--command", "ls -A").code == 0
    assert dev("workload", "logs", "two", "--no-prefix").out == ""
    assert dev("config", "set", "script-dir", ".").code == 0
    shipped = dev(*create, "three", "--command", "ls train.sh")
    assert shipped.code == 0 and "code shipped" in shipped.err and "not shipped;" not in shipped.err


@pytest.mark.parametrize(
    ("command", "found"),
    [
        ("python train.py --lr 1", ["train.py"]),
        ("set -e; ./train.py; echo", ["./train.py"]),
        ("python -m train", ["train"]),
        ("python -m json.tool config=lib/x.yaml 'not closed", ["lib/x.yaml"]),
        ("python /train.py lib train", []),
    ],
)
def test_a_command_that_names_local_files_gets_a_warning(
    command: str, found: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "lib").mkdir()
    for name in ("train.py", "lib/x.yaml"):
        (tmp_path / name).touch()
    assert files_here([command]) == found


def test_unchanged_code_is_not_shipped_again(dev: Xpk, project: Path, state: Path) -> None:
    create = ("workload", "create", "--script-dir", str(project), "--command", "true")
    assert "code shipped" in dev(*create, "one").err and "code unchanged, not shipped again" in dev(*create, "two").err
    (project / "helper.py").write_text("VERSION = 'two'\n")
    assert "code shipped" in dev(*create, "three").err
    assert len(list((state / "clusters" / "dev" / "output" / ".code").iterdir())) == 2


def test_the_bundled_trainer_reads_files_of_the_folder(dev: Xpk, project: Path) -> None:
    (project / "mine.yaml").write_text("model: {layers: 1}\nrun: {steps: 2}\ndata: {path: stdlib}\n")
    create = ("workload", "create", "lm", "--script-dir", str(project), "--dry-run", "--")
    (manifest,) = yaml.safe_load_all(dev(*create, "--config", "./mine.yaml").out)
    container = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    assert container["workingDir"].endswith(manifest["metadata"]["annotations"]["xpk.dev/code"])
    (project / "mine.yaml").write_text("model: {layers: -1, size: 3}\n")
    refused = dev(*create, "--config", "./mine.yaml")
    assert refused.code == 2 and "model.size" in refused.err
    assert dev(*create, "--config", "./yours.yaml").code == 2


@dataclass(frozen=True, slots=True)
class Counted:
    """The command line in its own process, on a cluster that counts calls."""

    folder: Path

    def xpk(self, *arguments: str, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command."""
        path = os.pathsep.join([str(ROOT), str(self.folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        env = {**os.environ, "PYTHONPATH": path, "COUNTED_FOLDER": str(self.folder)}
        argv = [sys.executable, "-m", "xpk", *arguments]
        done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False, cwd=self.folder)
        assert done.returncode == code, done.stderr
        return done

    @property
    def noted(self) -> dict[str, Any]:
        """Return the record of the last command."""
        found: dict[str, Any] = json.loads((self.folder / "calls.json").read_text())
        return found

    def add(self, obj: dict[str, Any]) -> None:
        """Add an object to the existing ones."""
        state = self.folder / "objects.json"
        state.write_text(json.dumps([*json.loads(state.read_text()), obj]))

    def objects(self, kind: str) -> list[dict[str, Any]]:
        """Return the objects of a kind that are there."""
        return [obj for obj in json.loads((self.folder / "objects.json").read_text()) if obj["kind"] == kind]


@pytest.fixture
def counted(state: Path, tmp_path: Path) -> Counted:
    """Return a cluster that counts calls."""
    metadata = tmp_path / "counted-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: counted\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text("[xpk.providers]\ncounted = tests.cli.counted:CountedProvider\n")
    (tmp_path / "shared").mkdir()
    return Counted(tmp_path)


CREATE = ("workload", "create", "--cluster", "counted", "--script-dir", "project")


@pytest.mark.parametrize("size", [0, 2 << 20], ids=["configmap", "shared-folder"])
def test_create_makes_few_calls_and_starts_no_process(counted: Counted, project: Path, size: int) -> None:
    (project / "weights").write_bytes(os.urandom(size))
    command = ("--command", "python train.py")
    kinds = [("one", False), ("two", False), ("one", True)]
    for name, again in kinds:
        if again:
            counted.xpk("workload", "delete", name, "--cluster", "counted", "--no-wait")
            (counted.folder / "shared" / name).mkdir()
            (counted.folder / "shared" / name / "metrics.jsonl").write_text("{}\n")
        words_printed = counted.xpk(*CREATE, name, *command, *(["--fresh"] if again else [])).stderr
        assert ("code unchanged" in words_printed) is ((name, again) != kinds[0])
        # A Secret of the deleted workload, which Kubernetes has not removed yet, takes two more calls.
        assert len(counted.noted["calls"]) <= (11 if again else 8), counted.noted["calls"]
        assert counted.noted["started"] == []
    assert len(counted.objects("ConfigMap")) == (0 if size else 1)
    assert len(list((counted.folder / "shared").glob("one.*"))) == 1


DISPATCH = {
    "apiVersion": "kueue.x-k8s.io/v1beta2",
    "kind": "AdmissionCheck",
    "metadata": {"name": "dispatch"},
    "spec": {"controllerName": "kueue.x-k8s.io/multikueue"},
}


def test_a_dry_run_warns_of_a_queue_of_multikueue(counted: Counted, project: Path) -> None:
    command = ("lm", "--command", "true")
    assert "would fail" not in counted.xpk(*CREATE, *command, "--dry-run").stderr
    (queue,) = counted.objects("ClusterQueue")
    queue["spec"]["admissionChecksStrategy"] = {"admissionChecks": [{"name": "dispatch"}]}
    for obj in (queue, DISPATCH):
        counted.add(obj)
    planned = counted.xpk(*CREATE, *command, "--dry-run")
    refusal = "queue 'multislice-queue' of cluster 'counted' dispatches workloads to other clusters by MultiKueue"
    assert f"warning: without --dry-run, this command would fail: {refusal}" in planned.stderr
    assert "kind: JobSet" in planned.stdout
    for option in (["--dry-run=server"], []):
        refused = counted.xpk(*CREATE, *command, *option, code=2)
        assert f"error: {refusal}" in refused.stderr and refused.stdout == ""
    assert counted.objects("JobSet") == []


MOUNT = ("--mount", "source=data,target=/data", "--mount", "source=gs://bucket/tokens,target=/tokens,readonly")
CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "data", "namespace": "default"},
    "spec": {"accessModes": ["ReadWriteMany"]},
}
DRIVER = {"apiVersion": "storage.k8s.io/v1", "kind": "CSIDriver", "metadata": {"name": "gcsfuse.csi.storage.gke.io"}}


def test_mounts_are_checked_first_with_few_calls_and_shown_in_describe(counted: Counted, project: Path) -> None:
    command = ("lm", "--command", "true", *MOUNT)
    assert "PersistentVolumeClaim 'data' not found" in counted.xpk(*CREATE, *command, code=3).stderr
    assert counted.objects("JobSet") == []
    counted.add(CLAIM)
    refused = counted.xpk(*CREATE, *command, code=7).stderr
    assert len(refused.splitlines()) == 2 and "cannot mount gs://bucket/tokens" in refused
    assert counted.objects("JobSet") == []
    counted.add(DRIVER)
    counted.xpk(*CREATE, *command)
    kinds = [(verb, kind) for verb, kind, _ in counted.noted["calls"]]
    for_mounts = [("list", "PersistentVolumeClaim"), ("get", "CSIDriver")]
    # Code and both kinds of storage together: their checks are additional.
    assert [item for item in kinds if item in for_mounts] == for_mounts and len(kinds) - len(for_mounts) <= 8
    counted.xpk("workload", "create", "plain", "--cluster", "counted", "--command", "true", *MOUNT)
    assert len(counted.noted["calls"]) <= 8
    words_printed = counted.xpk("workload", "describe", "lm", "--cluster", "counted").stdout
    assert (
        "  mounts     /data from claim data\n             /tokens from gs://bucket/tokens, read-only\n" in words_printed
    )
    (shown, _) = json.loads(counted.xpk("workload", "describe", "lm", "--cluster", "counted", "-o", "json").stdout)[
        "mounts"
    ]
    assert {"source": "data", "target": "/data", "sub_path": "", "read_only": False}.items() <= shown.items()


def test_the_trainers_data_may_be_in_a_remote_mount(counted: Counted, project: Path) -> None:
    mount = ("--mount", "source=data,target=/data")
    train = ("--", "--config", "tiny", "--set", "data.path=/data/tokens.json")
    assert "does not exist here" in counted.xpk(*CREATE, "lm", *train, code=2).stderr
    shown = list(yaml.safe_load_all(counted.xpk(*CREATE, "lm", "--dry-run", *mount, *train).stdout))[-1]
    pod = shown["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    assert {"name": "mount-0", "persistentVolumeClaim": {"claimName": "data"}} in pod["volumes"]
    counted.add(CLAIM)
    counted.xpk(*CREATE, "lm", *mount, *train)
    assert len(counted.objects("JobSet")) == 1


def test_the_bundled_trainer_is_checked_in_process(counted: Counted, project: Path) -> None:
    words_printed = counted.xpk(*CREATE, "lm", "--", "--config", "tiny", "--set", "data.path=stdlib").stderr
    assert "warning" not in words_printed
    assert counted.noted["started"] == [] and len(counted.noted["calls"]) <= 8
    refused = counted.xpk(
        *CREATE, "huge", "--", "--config", "128b", "--set", "mesh.tp=8", "--set", "data.path=stdlib", code=5
    ).stderr
    assert "of each chip's memory" in refused and "--no-estimate" in refused
    refused = counted.xpk(*CREATE, "odd", "--", "--config", "tiny", "--set", "optim.lrr=1", code=2).stderr
    assert "optim.lrr" in refused
    assert counted.noted["started"] == []


def test_a_custom_trainer_is_checked_in_its_own_process(counted: Counted, project: Path) -> None:
    (project / "trainer").mkdir()
    (project / "trainer" / "__init__.py").touch()
    (project / "trainer" / "__main__.py").write_text("import sys\nsys.exit('error: mine ' + sys.argv[1])\n")
    refused = counted.xpk(*CREATE, "mine", "--", "--config", "tiny", code=1).stderr
    assert "mine check" in refused
    (started,) = counted.noted["started"]
    assert "trainer" in started and "check" in started


def test_a_dry_run_shows_the_configmap_and_writes_nothing(counted: Counted, project: Path) -> None:
    command = ("one", "--command", "true")
    secret, *shown = yaml.safe_load_all(counted.xpk(*CREATE, *command, "--dry-run").stdout)
    assert [obj["kind"] for obj in (secret, *shown)] == ["Secret", "ConfigMap", "JobSet"]
    assert {verb for verb, _, _ in counted.noted["calls"]} == {"get", "list"}
    other, *again = yaml.safe_load_all(counted.xpk(*CREATE, *command, "--dry-run").stdout)
    assert again == shown and other["metadata"] == secret["metadata"] and other["data"] != secret["data"]
    (counted.folder / "made.yaml").touch(0o644)
    counted.xpk(*CREATE, *command, "--output-manifest-file", str(counted.folder / "made.yaml"))
    (used,) = counted.objects("Secret")
    assert (counted.folder / "made.yaml").stat().st_mode & 0o077 == 0
    value = base64.b64decode(used["data"]["secret"]).decode()
    for message in ("describe", "status", "list"):
        words_printed = counted.xpk(
            "workload", message, *(() if message == "list" else ("one",)), "--cluster", "counted", "-o", "json"
        )
        assert value not in words_printed.stdout and used["data"]["secret"] not in words_printed.stdout
    assert used["data"]["secret"] not in (counted.folder / "made.yaml").read_text(), (
        "a running workload has its own copy"
    )
    (made,) = counted.objects("ConfigMap")
    assert made["binaryData"] == shown[0]["binaryData"] and made["immutable"]
    assert counted.objects("JobSet")[0]["spec"] == shown[1]["spec"]
    assert counted.xpk(*CREATE, "two", "--command", "true", "--dry-run=server").stdout.count("\nkind: ") == 3


def test_a_cost_limit_applies_without_creating_anything(
    counted: Counted, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COUNTED_REGION", "us-west4")
    create = (*CREATE, "one", "--command", "true", "--max-cost", "0.5")
    printed = counted.xpk(*create, "--dry-run")
    assert "would fail: it costs" in printed.stderr and "kind: JobSet" in printed.stdout
    for refused in (("--dry-run=server",), ("--when",), ()):
        assert "--max-cost is 0.5" in counted.xpk(*create, *refused, code=5).stderr
    assert "US dollars an hour" in counted.xpk(*create[:-1], "5000", "--dry-run").stderr
    assert counted.objects("JobSet") == []


# Without a read of the code, which comes with the storages; one more of JobSet's configuration for several slices.
@pytest.mark.parametrize("slices", ["1", "2"])
def test_a_create_reads_each_kind_once_before_it_writes(counted: Counted, project: Path, slices: str) -> None:
    create = ("workload", "create", "--cluster", "counted", "--command", "python train.py", "--num-slices", slices)
    for name, shipped, writes in (
        ("a", (), ["create JobSet", "create Secret"]),
        ("b", ("--script-dir", "project"), ["create JobSet", "create ConfigMap", "create Secret"]),
        ("c", ("--script-dir", "project"), ["create JobSet", "patch ConfigMap", "create Secret"]),
    ):
        counted.xpk(*create, name, *shipped)
        calls = [f"{verb} {kind}" for verb, kind, _ in counted.noted["calls"]]
        assert (calls[4:], len(set(calls[:4]))) == (writes, 4), calls


def test_code_of_an_earlier_version_is_shared(counted: Counted, project: Path) -> None:
    counted.xpk(*CREATE, "one", "--command", "true")
    objects = json.loads((counted.folder / "objects.json").read_text())
    for obj in objects:
        obj["metadata"].get("labels", {}).pop("xpk.dev/kind", None)
    (counted.folder / "objects.json").write_text(json.dumps(objects))
    counted.xpk(*CREATE, "two", "--command", "true")
    (code,) = counted.objects("ConfigMap")
    assert [owner["name"] for owner in code["metadata"]["ownerReferences"]] == ["one", "two"]
