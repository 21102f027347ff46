"""A JobSet runs to its end, and its hosts have the documented environment."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from tests.local.cases import ended, jobset, running, status
from tests.waiting import until
from xpk.api.base import Obj
from xpk.local.api import LocalApi

DUMP = "import json, os, sys; print(json.dumps([dict(os.environ), sys.argv[1:], os.getcwd(), sys.executable]))"


def lines(api: LocalApi, pod: Obj) -> list[str]:
    return [line.text for line in api.logs(pod)]


def test_host_names_are_addresses_and_internal_variables_are_hidden(api: LocalApi, tmp_path: Path) -> None:
    output = tmp_path / "output" / "a"
    env = [{"name": "XPK_OUTPUT_DIR", "value": str(output)}]
    api.create(jobset("a", "", env=env, command=["python", "-S", "-c", DUMP, "b.a-slice-job-0-0.a"]))
    assert ended(api, "a") == "Completed"
    pods = api.list("Pod")
    result = [json.loads(lines(api, pod)[0]) for pod in pods]
    (port,) = {environment["XPK_COORDINATOR_ADDRESS"].rpartition(":")[2] for environment, *_ in result}
    assert len({cwd for _, _, cwd, _ in result}) == len(pods), "each host has its own empty folder"
    for pod, (environment, _, cwd, executable) in zip(pods, result, strict=True):
        slice_id, host = pod["spec"]["hostname"].split("-")[-2:]
        expected = {
            "XPK_COORDINATOR_ADDRESS": f"127.16.0.1:{port}",
            "TPU_WORKER_HOSTNAMES": f"127.16.{slice_id}.1,127.16.{slice_id}.2",
        }
        ours = {k: v for k, v in environment.items() if k in expected}
        assert ours == expected
        unwanted = [k for k in environment if k.startswith(("PYTEST", "VIRTUAL_ENV", "XPK_STATE"))]
        assert unwanted == []
        assert Path(cwd).name == "work" and list(Path(cwd).iterdir()) == [] and cwd != str(output)
        assert Path(executable).parent == Path(sys.executable).parent
        assert pod["spec"]["nodeName"] == f"c-np-{slice_id}-{host}"
        assert pod["status"]["podIP"] == f"127.16.{slice_id}.{int(host) + 1}"


LISTEN = """
import os, socket, time
names = "MASTER_PORT", "JAX_COORDINATOR_PORT"
ports = [int(port) for port in (os.environ["XPK_COORDINATOR_ADDRESS"].rpartition(":")[2], os.environ[names[0]])]
assert os.environ[names[0]] == os.environ[names[1]] and os.environ["OTHER_PORT"] == "6002"
if os.environ["MEGASCALE_SLICE_ID"] == os.environ["TPU_WORKER_ID"] == "0":
    kept = [socket.create_server(("", port)) for port in ports]
print("listens", flush=True)
time.sleep(1000)
"""


def test_programs_of_two_workloads_may_listen_at_all_addresses(api: LocalApi) -> None:
    """JAX's and PyTorch's coordinators do."""
    env = [{"name": name, "value": "6002"} for name in ("MASTER_PORT", "JAX_COORDINATOR_PORT", "OTHER_PORT")]
    for name in ("a", "b"):
        api.create(jobset(name, "", slices=1, env=env, command=["python", "-S", "-c", LISTEN]))
    pods = [pod for name in ("a", "b") for pod in running(api, name, hosts=2)]
    until(lambda: all(lines(api, pod) == ["listens"] for pod in pods), report=lambda: [lines(api, pod) for pod in pods])


def test_values_arrive_unchanged(api: LocalApi) -> None:
    values = {
        "QUOTES": """it's "so" `he` said\\""",
        "LINES": "a\nb\n\n",
        "BRACES": "{{ x }} {% y %} {# z #}",
        "YAML": "a: b # c\n- d: [e]",
        "UNDEFINED": "$(NOT_DEFINED) $X ${Y} $(",
        "ESCAPED": "$$(XPK_WORKLOAD) $$$$",
        "REFERENCE": "$(XPK_WORKLOAD)-$(TPU_WORKER_ID)",
        "NAMES": "a-slice-job-0-1.a:1,a-slice-job-1-0.a.default.svc.cluster.local,xa-slice-job-0-1.a,a-slice-job-0-1.b",
        "EMPTY": "",
        "WIDE": "ž → 🙂",
    }
    env = [{"name": k, "value": v} for k, v in values.items()]
    command = ["python", "-S", "-c", DUMP, "$(QUOTES)", "$(LINES)", "$$(LINES)", "$(NOT_DEFINED)", ""]
    api.create(jobset("a", "", slices=2, hosts=2, env=env, command=command))
    assert ended(api, "a") == "Completed"
    environment, arguments, _, _ = json.loads(lines(api, api.list("Pod")[0])[0])
    resolved = "127.16.0.2:1,127.16.1.1,xa-slice-job-0-1.a,a-slice-job-0-1.b"
    expected = values | {"ESCAPED": "$(XPK_WORKLOAD) $$", "REFERENCE": "a-0", "NAMES": resolved}
    assert {k: environment[k] for k in values} == expected
    assert arguments == [values["QUOTES"], values["LINES"], "$(LINES)", "$(NOT_DEFINED)", ""]


def test_a_command_that_cannot_start_is_explained(api: LocalApi) -> None:
    api.create(jobset("a", "", command=["no-such-program"]))
    assert ended(api, "a") == "Failed"
    pod = next(p for p in api.list("Pod") if p["status"]["phase"] == "Failed")
    assert lines(api, pod) == ["cannot run 'no-such-program': No such file or directory"]


def test_a_missing_working_folder_is_reported(api: LocalApi) -> None:
    target = jobset("a", "true")
    container = target["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]
    container["workingDir"] = "/no/such/folder"
    api.create(target)
    assert ended(api, "a") == "Failed"
    states = [p["status"]["containerStatuses"][0]["state"].get("terminated", {}) for p in api.list("Pod")]
    assert {"StartError"} == {state["reason"] for state in states if state.get("exitCode") == 128}


def test_a_burst_of_lines_is_logged_completely(api: LocalApi) -> None:
    script = "for i in range(50000): print(i)"
    api.create(jobset("a", "", slices=1, hosts=1, command=["python", "-S", "-c", script]))
    assert ended(api, "a") == "Completed"
    assert lines(api, api.list("Pod")[0]) == [str(i) for i in range(50000)]


def test_time_to_live(api: LocalApi) -> None:
    api.create(jobset("a", "true", ttl=0))
    assert ended(api, "a") == "Completed"
    time.sleep(2)
    assert status(api, "a")["terminalState"] == "Completed"  # waiting commands see it
    until(lambda: not api.list("JobSet") and not api.list("Pod") and not api.list("Workload"))


def test_remaining_processes_of_a_host_are_killed(api: LocalApi, folder: Path) -> None:
    # One child in the host's group and one that left it; both outlive the host.
    api.create(jobset("a", "sleep 600 & setsid sleep 600 & echo on", slices=1, hosts=1))
    assert ended(api, "a") == "Completed"


def test_success_policy_any_needs_one_success(api: LocalApi) -> None:
    target = jobset("a", 'test "$MEGASCALE_SLICE_ID" = 0 || exec sleep 600')
    target["spec"]["successPolicy"] = {"operator": "Any"}
    api.create(target)
    assert ended(api, "a") == "Completed"
    until(lambda: all(p["status"]["phase"] != "Running" for p in api.list("Pod")))
