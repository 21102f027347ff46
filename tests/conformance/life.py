"""A workload from creation to end without failures: the environment of its hosts, and its remains."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from tests.conformance.case_environment import FOREVER, SHAPE, Ground, Outcome, case
from xpk.api.base import Obj
from xpk.capacity.nodes.inventory import in_slices
from xpk.jobs import lifecycle, termination
from xpk.model.status import Phase

DUMP = 'exec python3 -S -c "import json, os; print(json.dumps(dict(os.environ)))"'
PREFIX, INDEX = "jobset.sigs.k8s.io/", "batch.kubernetes.io/job-completion-index"
VALUES = {
    "QUOTES": """it's "so" `he` said\\""",
    "LINES": "a\nb\n\n",
    "BRACES": "{{ x }} {% y %} {# z #}",
    "YAML": "a: b # c\n- d: [e]",
    "DOLLARS": "$(XPK_WORKLOAD) $(NOT_DEFINED) $X ${Y} $( $$(X) $$$$",
    "EMPTY": "",
    "WIDE": "ž → 🙂",
    "SPACE": "  ",
}


def done(exits: Mapping[str, int], *, restarts: int = 0, counted: int = 0) -> Outcome:
    """Return the outcome of a successful workload."""
    end = ("Completed", "AllJobsCompleted")
    return Outcome(Phase.SUCCEEDED, *end, exits=exits, restarts=restarts, counted=counted)


@case(slices=2)
def successful_hosts_complete_a_workload(ground: Ground) -> None:
    ground.submit("a", "echo host $MEGASCALE_SLICE_ID/$TPU_WORKER_ID", slices=2)
    hosts = [f"{slice_id}/{host}" for slice_id in (0, 1) for host in (0, 1)]
    exits = {f"s{item.replace('/', '/h')}": 0 for item in hosts}
    assert ground.ended("a") == done(exits)
    assert ground.said("a") == {f"s{item.replace('/', '/h')}": [f"host {item}"] for item in hosts}
    result = ground.status("a")
    assert result.started and result.finished and result.position is None
    finished = next(c for c in ground.kueue_workload("a")["status"]["conditions"] if c["type"] == "Finished")
    assert (finished["status"], finished["reason"]) == ("True", "Succeeded")
    nodes = {host.slice: {other.node for other in result.hosts if other.slice == host.slice} for host in result.hosts}
    pools = {slice_id: {_pool(ground, str(node)) for node in item} for slice_id, item in nodes.items()}
    assert [len(item) for item in pools.values()] == [1, 1], "slices are not split"
    assert pools[0] != pools[1], "a node pool is used by one slice only"


@case(slices=1)
def hosts_run_on_the_chosen_node_pools_only(ground: Ground) -> None:
    nodes = [str(node["metadata"]["name"]) for node in in_slices(ground.api.list("Node"))]
    pools = sorted({_pool(ground, node) for node in nodes})
    chosen = pools[len(pools) // 2 :]  # several, because other cases use some of them meanwhile
    ground.submit("a", "true", node_pools=tuple(chosen))
    assert ground.ended("a").phase is Phase.SUCCEEDED
    assert {_pool(ground, str(host.node)) for host in ground.status("a").hosts} <= {*chosen}


def _pool(ground: Ground, node: str) -> str:
    return str(ground.api.get("Node", node)["metadata"]["labels"]["cloud.google.com/gke-nodepool"])


@case(slices=2)
def hosts_have_the_documented_environment(ground: Ground) -> None:
    uid = ground.submit("a", DUMP, slices=2, env=VALUES)["metadata"]["uid"]
    assert ground.ended("a").phase is Phase.SUCCEEDED
    result = {label: json.loads(lines[-1]) for label, lines in ground.said("a").items()}
    assert len(result) == 4
    first = result["s0/h0"]
    leader, port = first["TPU_WORKER_HOSTNAMES"].split(",")[0], first["XPK_COORDINATOR_ADDRESS"].rpartition(":")[2]
    assert 0 < int(port) < 32_768, "no port that the system may choose for a connection"
    names: dict[str, set[str]] = {}
    for label, environment in result.items():
        slice_id, host = label[1], label[-1]
        expected = {
            "MEGASCALE_NUM_SLICES": "2",
            "MEGASCALE_SLICE_ID": slice_id,
            "MEGASCALE_COORDINATOR_ADDRESS": f"{leader}:8080",
            "TPU_WORKER_ID": host,
            "JOB_COMPLETION_INDEX": host,
            "XPK_COORDINATOR_ADDRESS": f"{leader}:{port}",
            "XPK_HOSTS_PER_SLICE": "2",
            "XPK_RESTART_ATTEMPT": "0",
            "XPK_WORKLOAD": "a",
            "XPK_JOB_ID": uid,
            "XPK_OUTPUT_DIR": f"{ground.target.output_root}/{ground.namespace}.a",
            "JAX_PLATFORMS": "cpu",
            "JAX_NUM_CPU_DEVICES": str(SHAPE.chips_per_host),
            "JAX_CPU_COLLECTIVES_IMPLEMENTATION": "gloo",
            **VALUES,
        }
        assert {key: environment.get(key) for key in expected} == expected
        names.setdefault(slice_id, set()).add(environment["TPU_WORKER_HOSTNAMES"])
    assert [len(item) for item in names.values()] == [1, 1], "hosts of a slice have the same list of names"
    hostnames = [name for item in names.values() for name in min(item).split(",")]
    assert len(set(hostnames)) == 4


@case(slices=2)
def hosts_of_a_workload_with_the_longest_name_find_each_other(ground: Ground) -> None:
    name = "a23456789-" * 3 + "a234567890"
    look = "import os, socket, sys; [socket.getaddrinfo(n, 1) for n in os.environ['TPU_WORKER_HOSTNAMES'].split(',')]"
    ground.submit(name, f'for i in 1 2 3 4 5 6; do python3 -S -c "{look}" && exit 0; sleep 1; done; exit 3', slices=2)
    assert len(name) == 40 and ground.ended(name).phase is Phase.SUCCEEDED


@case(slices=2)
def objects_describe_running_hosts(ground: Ground) -> None:
    uid = ground.submit("a", FOREVER, slices=2)["metadata"]["uid"]
    ground.running("a")
    ground.hold(lambda: ground.jobset("a")["status"]["replicatedJobsStatus"][0]["ready"] == 2)
    for slice_id in range(2):
        goal = {
            f"{PREFIX}jobset-name": "a",
            f"{PREFIX}jobset-uid": uid,
            f"{PREFIX}replicatedjob-name": "slice-job",
            f"{PREFIX}replicatedjob-replicas": "2",
            f"{PREFIX}global-replicas": "2",
            f"{PREFIX}job-index": str(slice_id),
            f"{PREFIX}job-global-index": str(slice_id),
            f"{PREFIX}job-key": hashlib.sha1(
                f"{ground.namespace}/a-slice-job-{slice_id}".encode(), usedforsecurity=False
            ).hexdigest(),
            f"{PREFIX}restart-attempt": "0",
            f"{PREFIX}job-restart-attempt": "0",
            f"{PREFIX}coordinator": "a-slice-job-0-0.a",
        }
        labels = ground.api.get("Job", f"a-slice-job-{slice_id}", ground.namespace)["metadata"]["labels"]
        assert {key: labels.get(key) for key in goal} == goal
        pods = [pod for pod in ground.pods("a") if goal.items() <= pod["metadata"]["labels"].items()]
        hosts = [pod["metadata"]["annotations"][INDEX] for pod in pods]
        assert sorted(hosts) == [pod["metadata"]["labels"][INDEX] for pod in sorted(pods, key=_hostname)] == ["0", "1"]
        assert [_hostname(pod) for pod in pods] == [f"a-slice-job-{slice_id}-{host}" for host in hosts]
        assert all(pod["metadata"]["name"].startswith(f"{_hostname(pod)}-") for pod in pods)
    ground.hold(lambda: _true(ground.kueue_workload("a")) == ["Admitted", "PodsReady", "QuotaReserved"])
    queue = ground.api.get("LocalQueue", "multislice-queue", ground.namespace)["status"]
    assert (queue["admittedWorkloads"], queue["flavorsUsage"][0]["resources"][0]["total"]) == (1, "16")


def _hostname(pod: Obj) -> str:
    return str(pod["spec"]["hostname"])


def _true(obj: Obj) -> list[str]:
    """Return the conditions of an object that are true."""
    return sorted(item["type"] for item in obj["status"]["conditions"] if item["status"] == "True")


@case()
def log_lines_are_complete_and_ordered(ground: Ground) -> None:
    program = (
        "import sys; o = sys.stdout.buffer\n"
        "for i in range(3000): o.write(b'%d\\\\n' % i)\n"
        "o.write(b'x' * 20000 + b'\\\\n' + b'bad \\\\xff\\\\n' + b'\\\\n' + b'  indented\\\\n' + b'no end'); o.flush()"
    )
    ground.submit("a", f'[ $TPU_WORKER_ID = 1 ] || exec python3 -S -c "{program}"; echo oops >&2')
    assert ground.ended("a").phase is Phase.SUCCEEDED
    goal = [*map(str, range(3000)), "x" * 20000, "bad \udcff", "", "  indented", "no end"]
    words_printed = ground.said("a")
    assert words_printed["s0/h0"] == goal
    assert words_printed["s0/h1"] == ["oops"]
    assert ground.said("a", host=0, tail=2)["s0/h0"] == goal[-2:]
    (pod,) = [pod for pod in ground.pods("a") if pod["metadata"]["annotations"][INDEX] == "0"]
    followed = list(ground.api.logs(pod, follow=True))
    assert [line.text for line in followed] == goal
    since = followed[-3].time
    assert {line.text for line in ground.api.logs(pod, since=since)} >= set(goal[-3:])
    assert ground.said("a", grep="^29..$") == {"s0/h0": [str(i) for i in range(2900, 3000)], "s0/h1": []}


@case()
def a_finished_workload_is_deleted_after_its_ttl(ground: Ground) -> None:
    ground.submit("a", "true", ttl_seconds=4)
    assert lifecycle.wait(ground.api, "a", ground.namespace, timeout=40 * ground.patience).phase is Phase.SUCCEEDED
    ground.hold(lambda: not ground.api.list("JobSet", ground.namespace))
    ground.hold(lambda: not ground.api.list("Workload", ground.namespace) and not ground.pods("a"))
    ground.submit("a", "true")  # the name is free again
    assert ground.ended("a").phase is Phase.SUCCEEDED


@case()
def a_deleted_running_workload_can_save(ground: Ground) -> None:
    save = (
        'mkdir -p "$XPK_OUTPUT_DIR"; ls "$XPK_OUTPUT_DIR"; '
        """trap 'sleep 1; echo > "$XPK_OUTPUT_DIR/$TPU_WORKER_ID"; exit 143' TERM; """
    )
    ground.submit("saver", f"{save} echo up; sleep 1000 & wait")
    ground.running("saver")
    ground.await_line("saver", "up")
    termination.end(ground.api, "saver", ground.namespace)
    termination.await_end(ground.api, "saver", ground.namespace, timeout=40 * ground.patience)
    ground.hold(lambda: not ground.api.list("Workload", ground.namespace))
    assert ground.api.list("JobSet", ground.namespace) == []
    ground.submit("saver", f"{save} true")
    assert ground.ended("saver").phase is Phase.SUCCEEDED
    assert set(ground.said("saver")["s0/h0"]) == {"0", "1"}, "both had time to save, and their output is kept"


@case()
def a_deleted_pending_workload_never_runs(ground: Ground) -> None:
    ground.submit("a", FOREVER)
    ground.running("a")
    ground.submit("b", FOREVER)
    ground.queued("b", "couldn't assign flavors to pod set slice-job: insufficient unused quota")
    assert ground.pods("b") == []
    termination.end(ground.api, "b", ground.namespace)
    termination.await_end(ground.api, "b", ground.namespace, timeout=20 * ground.patience)
    ground.hold(lambda: len(ground.api.list("Workload", ground.namespace)) == 1)
    assert ground.status("a").phase is Phase.RUNNING
