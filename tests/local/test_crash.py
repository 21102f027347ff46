"""Any process may be killed at any time: nothing is lost, runs twice, or remains."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.local.cases import ended, hurry, jobset, pid, running, set_up, status
from tests.local.killing import kill_daemon
from tests.waiting import until
from xpk.local import daemon_control, environment, process, shim
from xpk.local.api import LocalApi
from xpk.local.cluster import create_cluster, delete_cluster, list_clusters, open_cluster
from xpk.local.store import FILE, Store
from xpk.model.errors import NotFoundError, XpkError

FOREVER = "trap 'exit 143' TERM; while :; do sleep 0.02; done"


def test_daemon_killed_and_hosts_adopted(api: LocalApi, folder: Path) -> None:
    seen = folder / "seen"
    script = f"i=0; while [ $i -lt 100 ] || [ ! -e {seen} ]; do echo $i; i=$((i+1)); sleep 0.01; done; exit 42"
    api.create(jobset("a", script, slices=1, hosts=1))
    pods = running(api, "a", 1)
    kill_daemon(folder)
    assert pid(running(api, "a", 1)[0]) == pid(pods[0])
    seen.touch()
    assert ended(api, "a") == "Failed"
    pod = api.list("Pod")[0]
    assert pod["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 42
    lines = [line.text for line in api.logs(pod)]
    assert len(lines) >= 100 and lines == [str(i) for i in range(len(lines))]
    assert status(api, "a")["restarts"] == 0


def test_everything_killed_at_once_restarts_once(api: LocalApi, folder: Path) -> None:
    api.create(jobset("a", FOREVER, max_restarts=3))
    pods = running(api, "a")
    kill_daemon(folder)
    for pod in pods:
        assert process.tell(folder / process.PODS / pod["metadata"]["uid"] / "lock", signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):  # it dies with its supervisor
            os.kill(pid(pod), signal.SIGKILL)
    running(api, "a", attempt=1)
    assert (status(api, "a")["restarts"], status(api, "a")["restartsCountTowardsMax"]) == (1, 1)
    former = api.former_pods("default", {})
    ends = [p["status"]["containerStatuses"][0]["state"]["terminated"] for p in former]
    assert [(end["exitCode"], end["reason"]) for end in ends] == [(137, "ContainerStatusUnknown")] * 4


def test_a_killed_supervisor_ends_its_host_and_all_its_processes(api: LocalApi, folder: Path) -> None:
    api.create(jobset("a", "sleep 600 & setsid sleep 600 & wait", slices=1, hosts=1))
    pod_folder = folder / process.PODS / running(api, "a", 1)[0]["metadata"]["uid"]
    until(lambda: len(process.strays(pod_folder)) == 3)
    assert process.tell(pod_folder / "lock", signal.SIGKILL)
    assert ended(api, "a") == "Failed"
    until(lambda: process.strays(pod_folder) == [])


def test_detached_processes_do_not_survive_their_host(api: LocalApi, folder: Path) -> None:
    hides = f"env -i setsid sh -c 'while :; do sleep 0.05; done' {folder} & "
    api.create(jobset("a", hides + FOREVER, slices=1, hosts=1))
    (pod,) = running(api, "a", 1)
    (hidden,) = until(lambda: called(f"done {folder}".encode()))
    assert process.tell(folder / process.PODS / pod["metadata"]["uid"] / "lock", signal.SIGKILL)
    until(lambda: not Path(f"/proc/{hidden}").exists())
    assert ended(api, "a") == "Failed"


def called(text: bytes) -> list[int]:
    """Return the session leaders whose arguments contain a text."""
    result = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and text in (entry / "cmdline").read_bytes().replace(b"\0", b" "):
                pid = int(entry.name)
                if os.getsid(pid) == pid:
                    result.append(pid)
    return result


@pytest.mark.slow
def test_hosts_survive_repeated_kills_of_the_daemon(api: LocalApi, folder: Path) -> None:
    api.create(jobset("a", 'test "$XPK_RESTART_ATTEMPT" = 3 || exit 1', max_restarts=5))
    end, seconds = time.monotonic() + 120, 0.0
    while status(api, "a").get("terminalState") is None if "status" in api.get("JobSet", "a") else True:
        api.list("Pod")
        time.sleep(seconds)
        seconds += 0.01  # each daemon lives longer than the last, so that one makes progress on any machine
        process.tell(folder / daemon_control.LOCK, signal.SIGKILL)
        assert time.monotonic() < end
    assert ended(api, "a") == "Completed"
    assert status(api, "a")["restarts"] == 3


ALONE = """
import fcntl, os, sys, time
name, attempt = os.environ["MEGASCALE_SLICE_ID"] + os.environ["TPU_WORKER_ID"], os.environ["XPK_RESTART_ATTEMPT"]
lock = os.open(sys.argv[1] + name, os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # fails beside a host of the same name that lives
os.write(os.open(sys.argv[1] + "starts", os.O_WRONLY | os.O_CREAT | os.O_APPEND), f"{name} {attempt}\\n".encode())
if os.fork() == 0 and name == "00":
    os.setsid()
time.sleep(600)
"""


@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_killing_at_random(api: LocalApi, folder: Path, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    command = ["python", "-S", "-c", ALONE, f"{tmp_path}/"]
    api.create(jobset("a", "", command=command, max_restarts=1000, grace=1))
    end = time.monotonic() + 2.5
    while time.monotonic() < end:
        time.sleep(chance.random() * 0.2)
        pods = list((folder / process.PODS).glob("*"))
        hurry(api, "a")
        what = chance.choice(["daemon", "daemon", "host", "supervisor", "all"])
        if what in ("daemon", "all"):
            process.tell(folder / daemon_control.LOCK, signal.SIGKILL)
        for pod in pods if what == "all" else chance.sample(pods, min(len(pods), 1)):
            if what in ("supervisor", "all"):
                process.tell(pod / "lock", signal.SIGKILL)
            elif what == "host" and (host := process.observe(pod)).state == "running":
                with contextlib.suppress(ProcessLookupError):
                    os.kill(host.facts["pid"], signal.SIGKILL)
        if chance.random() < 0.5:
            api.list("Pod")
    running(api, "a")
    starts = (tmp_path / "starts").read_text().splitlines()
    assert len(starts) == len(set(starts)) >= 4
    failed = [line.text for pod in api.former_pods("default", {}) for line in api.logs(pod)]
    assert not [text for text in failed if "BlockingIOError" in text]


def test_an_externally_removed_pod_folder_is_handled(api: LocalApi, folder: Path, tmp_path: Path) -> None:
    api.create(jobset("a", FOREVER, max_restarts=1))
    pods = running(api, "a")
    (folder / process.PODS / pods[0]["metadata"]["uid"]).rename(tmp_path / "gone")
    again = running(api, "a", attempt=1)
    assert not process.strays(folder / process.PODS / pods[0]["metadata"]["uid"])
    assert len({pid(pod) for pod in [*pods, *again]}) == 8


def test_an_externally_removed_cluster_folder_is_handled(api: LocalApi, folder: Path, tmp_path: Path) -> None:
    api.create(jobset("a", FOREVER))
    pods = running(api, "a")
    folder.rename(tmp_path / "gone")
    until(lambda: not any(process.strays(folder / process.PODS / pod["metadata"]["uid"]) for pod in pods))
    create_cluster(folder)


@pytest.mark.slow
def test_a_host_whose_folder_is_removed_while_it_starts_ends(tmp_path: Path) -> None:
    folder, gone = tmp_path / "pod", tmp_path / "gone"
    slow_to_find = {"PATH": "x:" * 50_000 + os.environ["PATH"], environment.MARK: str(folder)}
    spec = {"command": ["sleep", "60"], "environment": slow_to_find, "folder": "/"}
    supervisor = process.launch(folder, spec, tmp_path / "bell")
    until(lambda: process.observe(folder).state == "running")
    folder.rename(gone)
    assert not process.strays(folder), "otherwise the test shows nothing"
    assert supervisor.wait(60)
    assert not process.strays(folder)


def test_a_host_whose_folder_is_removed_before_its_record_has_ended(
    api: LocalApi, folder: Path, tmp_path: Path
) -> None:
    api.create(jobset("a", FOREVER, max_restarts=1))
    until(lambda: list((folder / process.PODS).glob("*/lock")))[0].parent.rename(tmp_path / "gone")
    running(api, "a", attempt=1)


def test_a_host_whose_folder_is_removed_before_the_daemon_has_seen_it_run(
    api: LocalApi, folder: Path, tmp_path: Path
) -> None:
    runs, lock = tmp_path / "runs", folder / daemon_control.LOCK
    api.create(jobset("a", f"touch {runs}; {FOREVER}", slices=1, hosts=1))
    pod = until(lambda: [file.parent for file in (folder / process.PODS).glob("*/lock")], every=0.001)[0]
    assert process.tell(lock, signal.SIGSTOP)
    until(runs.exists)
    pod.rename(tmp_path / "gone")
    assert process.tell(lock, signal.SIGCONT)
    assert ended(api, "a") == "Failed"
    assert not process.strays(pod)


def test_concurrent_writes_are_atomic(tmp_path: Path) -> None:
    write = "import sys; from xpk.local import shim; [shim.write(*sys.argv[1:]) for _ in range(1000)]"
    writers = [
        subprocess.Popen([sys.executable, "-c", write, str(tmp_path), "exit.json", text]) for text in ("a", 90 * "b")
    ]
    until((tmp_path / "exit.json").exists)
    while any(writer.poll() is None for writer in writers):
        assert json.loads((tmp_path / "exit.json").read_text()) in ("a", 90 * "b")
    assert [writer.wait() for writer in writers] == [0, 0]


def test_a_host_never_starts_twice(tmp_path: Path) -> None:
    folder = tmp_path / "pod"
    spec = {"command": ["sh", "-c", "echo on; sleep 0.5"], "environment": dict(os.environ), "folder": "/"}
    supervisors = [process.launch(folder, spec, tmp_path / "bell") for _ in range(5)]
    assert sorted(item.wait(10) for item in supervisors) == [0, 1, 1, 1, 1]
    assert (folder / "log").read_text().count("on") == 1
    again = [sys.executable, "-S", "-E", "-s", shim.__file__, str(folder)]
    assert subprocess.run(again, check=False).returncode == 1


def test_a_deleted_host_never_starts(tmp_path: Path) -> None:
    folder = tmp_path / "pod"
    folder.mkdir()
    (folder / "spec.json").touch()
    assert process.observe(folder).state == "prepared"
    process.record_end(folder, "StartError", "too late")
    assert process.observe(folder).facts["exitCode"] == 137
    again = [sys.executable, "-S", "-E", "-s", shim.__file__, str(folder)]
    assert subprocess.run(again, check=False).returncode == 1


def test_daemon_of_another_version_is_replaced(api: LocalApi, folder: Path) -> None:
    api.create(jobset("a", FOREVER))
    pods = running(api, "a")
    before = (folder / daemon_control.LOCK).read_text()
    (folder / daemon_control.INFO).write_text("0.0.1")
    assert {pid(pod) for pod in running(api, "a")} == {pid(pod) for pod in pods}
    assert (folder / daemon_control.LOCK).read_text() != before


def test_the_workloads_folder_is_kept_by_commands_without_the_option(api: LocalApi, folder: Path) -> None:
    show = 'echo "${PYTHONPATH%:*}"'  # the last one is that of xpk_run
    open_cluster(folder, workloads="/some/where").create(jobset("a", show, slices=1, hosts=1))
    assert ended(api, "a") == "Completed"
    (folder / daemon_control.INFO).write_text("0.0.1\n/some/where")
    api.create(jobset("b", show, slices=1, hosts=1))
    assert ended(api, "b") == "Completed"
    api.create(jobset("c", show, slices=1, hosts=1, env=[{"name": "PYTHONPATH", "value": "/mine"}]))
    assert ended(api, "c") == "Completed"
    output = [line.text for pod in api.list("Pod") for line in api.logs(pod)]
    assert output == ["/some/where", "/some/where", "/some/where:/mine"]


def test_the_daemon_exits_when_idle_and_is_restarted(api: LocalApi, folder: Path) -> None:
    may_end = folder / "may-end"
    api.create(jobset("a", f"until [ -e {may_end} ]; do sleep 0.02; done; exit 42", slices=1, hosts=1))
    running(api, "a", 1)
    daemon_control.stop(folder)
    short = "import sys, pathlib, xpk.local.daemon as d; d._IDLE_SECONDS = 0.2; d.main(pathlib.Path(sys.argv[1]), '')"
    subprocess.run([sys.executable, "-c", short, str(folder)], check=True, cwd=Path(daemon_control.__file__).parents[2])
    time.sleep(0.5)
    assert process.is_locked(folder / daemon_control.LOCK), "it stays while a host runs"
    may_end.touch()
    until(lambda: not process.is_locked(folder / daemon_control.LOCK))
    assert status(api, "a")["terminalState"] == "Failed"
    api.create(jobset("b", "true"))
    assert ended(api, "b") == "Completed"


def test_damaged_store(api: LocalApi, folder: Path) -> None:
    api.create(jobset("a", FOREVER))
    pods = running(api, "a")
    kill_daemon(folder)
    for path in folder.glob(f"{FILE}*"):
        path.write_bytes(b"this is no database at all" * 400)
    with pytest.raises(XpkError, match="the store of cluster 'demo' is damaged") as raised:
        open_cluster(folder)
    assert raised.value.hint == "xpk cluster delete demo --provider local --force"
    with pytest.raises(XpkError, match="damaged"):
        delete_cluster(folder)
    delete_cluster(folder, force=True)
    for pod in pods:
        with pytest.raises(ProcessLookupError):
            os.kill(pid(pod), 0)
    create_cluster(folder)


def test_locked_store(api: LocalApi, folder: Path) -> None:
    with Store(folder) as store, store.transaction(), Store(folder, busy_seconds=0.1) as late:
        locked = late.transaction()
        with pytest.raises(XpkError, match="locked by another process"):
            locked.__enter__()


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(XpkError, match=r"cannot write to '.*/file/demo': Not a directory") as raised:
        create_cluster(tmp_path / "file" / "demo")
    assert "XPK_STATE_DIR" in raised.value.hint


def test_clusters_come_and_go(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError):
        open_cluster(tmp_path / "a")
    with pytest.raises(NotFoundError):
        delete_cluster(tmp_path / "a", force=True)
    create_cluster(tmp_path / "b")
    create_cluster(tmp_path / "a")
    set_up(create_cluster(tmp_path / "a"))
    assert list_clusters(tmp_path) == ["a", "b"]
    assert len(open_cluster(tmp_path / "a").list("Node")) == 4
    delete_cluster(tmp_path / "a")
    delete_cluster(tmp_path / "b")
    assert list_clusters(tmp_path) == []


@pytest.mark.parametrize("name", ["start.json", "exit.json"])
def test_records_that_a_crash_of_the_machine_has_emptied_are_those_of_a_lost_host(tmp_path: Path, name: str) -> None:
    """Without fsync, a file that was renamed shortly before a power failure may be empty afterwards."""
    folder = tmp_path / "pod"
    folder.mkdir()
    (folder / "spec.json").touch()
    shim.write(str(folder), "start.json", {"startedAt": "2026-11-01T00:00:00.000000000Z", "pid": 1})
    (folder / name).write_text("")
    assert process.observe(folder).state in ("lost", "prepared")
    process.record_end(folder, "ContainerStatusUnknown", "the supervisor of the host was killed")
    assert process.observe(folder).facts["exitCode"] == 137


DIES = """
import os, pathlib, sys
from xpk.local import daemon
os.register_at_fork(after_in_parent=lambda: os._exit(9))
daemon.main(pathlib.Path(sys.argv[1]), "")
"""


def test_a_daemon_whose_launching_process_was_killed_can_be_stopped(api: LocalApi, folder: Path) -> None:
    daemon_control.stop(folder)
    api.create(jobset("a", FOREVER))  # the daemon does not end by itself
    running(api, "a")
    daemon_control.stop(folder)
    assert subprocess.run([sys.executable, "-c", DIES, str(folder)], check=False).returncode == 9
    assert process.is_locked(folder / daemon_control.LOCK)
    stop = threading.Thread(target=daemon_control.stop, args=[folder], daemon=True)
    stop.start()
    stop.join(30)
    assert not stop.is_alive() and not process.is_locked(folder / daemon_control.LOCK)
