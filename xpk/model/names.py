"""Rules for names of workloads and clusters, and names derived from them."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import PurePosixPath

SLICE_JOB = "slice-job"  # the replicated job's name in Google's xpk: both tools read each other's workloads
QUEUE = "multislice-queue"
CLUSTER_QUEUE = "cluster-queue"
PROVISIONING_CHECK, PROVISIONING_CONFIG = "dws-prov", "dws-config"  # of slices that come by ProvisioningRequests
SLICE_CHECK = "ss-kueue-operator"  # of slices that are formed from cubes, as Google's xpk names it
COHORT = "cluster-cohort"  # of the ClusterQueues that lend to each other
ZONE = re.compile(r"[a-z]+-[a-z]+\d+-[a-z]+")  # of Google Cloud, such as us-central1-a
PRIORITIES = {"very-low": 100, "low": 250, "medium": 500, "high": 750, "very-high": 1000}

QUARANTINE_TAINT = "xpk.dev/quarantined"  # of the nodes of slices that evidence speaks against
QUARANTINE_LABEL = QUARANTINE_TAINT  # of the same nodes, by which they are found
QUARANTINE_REASON = "xpk.dev/quarantine-reason"  # annotation of the same nodes
WORKLOAD_LABEL = "xpk.google.com/workload"
GCLUSTER_LABEL = "gcluster.google.com/workload"  # of workloads that Google's Cluster Toolkit has submitted
OUTPUT_ANNOTATION = "xpk.dev/output-dir"
TYPE_ANNOTATION = "xpk.dev/accelerator-type"
USER_ANNOTATION = "xpk.dev/user"
CODE_ANNOTATION = "xpk.dev/code"
KIND_LABEL = "xpk.dev/kind"  # of ConfigMaps: "storage", or the name of the code that they hold
CONFIG_ANNOTATION = "xpk.dev/configuration"  # of a controller's pods: hash of the configuration at start
LAUNCHER_ANNOTATION = "xpk.dev/launcher"
PEER_SECRET_VARIABLE = "XPK_PEER_SECRET_FILE"  # noqa: S105  # path of the secret that all hosts share
PEER_SECRET_FOLDER, PEER_SECRET_KEY = "/xpk/peers", "secret"
SUPERVISOR_KEY = "supervisor.pyz"  # of the same Secret: the program that runs the command of a host
LAUNCH_PORT = 6002  # of Google's xpk, for programs that coordinate by themselves; XPK_COORDINATOR_ADDRESS has another
SUPERVISOR_FILE = f"{PEER_SECRET_FOLDER}/{SUPERVISOR_KEY}"
PROGRESS_KEY = "xpk_run.py"  # of the same Secret: the module by which programs report their progress
IMAGE_CACHE_LABEL = "xpk.dev/image-cache"  # on the objects that make nodes pull images
RUN_SECONDS_ANNOTATION = "provreq.kueue.x-k8s.io/maxRunDurationSeconds"  # Kueue passes it on to GKE
QUEUED_LABEL = "cloud.google.com/gke-queued"  # GKE's label and taint of nodes of queued provisioning
POD = "Pod"  # prefix of the holder of a slice that is not a workload
QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
PRIORITY_LABEL = "kueue.x-k8s.io/priority-class"
MAX_PRIORITY_ANNOTATION = "xpk.dev/max-priority"  # of a ClusterQueue: the highest priority that its workloads may have
SLICES_ANNOTATION = "xpk.dev/slices"  # of the cluster's own queue: how many of each type all queues share
NO_TOPOLOGY_LABEL = "xpk.dev/no-topology"  # a label that no node has
EVIDENCE_ANNOTATION = "xpk.dev/evidence"  # of nodes: what speaks against them
EVIDENCE_LABEL = "xpk.dev/evidence"  # of nodes with that annotation, by which they are found
COPY_ANNOTATION = "xpk.dev/copy"  # of a workload that may run on several clusters: which copy this one is
EPOCH_ANNOTATION = "xpk.dev/epoch"  # of such a copy: the newest decision where to run that it obeys
RELEASED_ANNOTATION = "xpk.dev/released"  # of such a copy: the newest decision by which it was released
LEASE_FILE = "placement.json"  # in the output folder of such a workload: which copy may run
HELD_QUEUE = "xpk-held"  # a queue that does not exist: copies that must not run are in it
SPARE_LABEL = "xpk.dev/spare"  # on nodes of slices that no quota counts: a failed slice's workload moves there

_LABEL_LENGTH = 63  # RFC 1035
_CLUSTER_LENGTH = 40  # GKE's limit for cluster names
_SUBDOMAIN_LENGTH = 8  # leaves 40 characters for a workload's name, as in Google's xpk
_POD_SUFFIX = len("-") + 5  # the Job controller's suffix of a pod's name
_PATTERN = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_FOLDER = re.compile(r"[a-z0-9][-a-z0-9]*(\.[a-z0-9][-a-z0-9]*)*")
_KEY = re.compile(r"[-._a-zA-Z0-9]{1,253}")
_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
NODE_MEMORY = "/dev/shm"  # noqa: S108  # in pods
_SYSTEM = frozenset(("bin", "boot", "dev", "etc", "lib", "lib64", "opt", "proc", "run", "sbin", "sys", "usr", "xpk"))
_LABEL_NAME = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")
_LABEL_PREFIX = re.compile(r"[a-z0-9](?:[a-z0-9.-]*[a-z0-9])?")
_LABELS_OF_OTHERS = ("kubernetes.io", "k8s.io", "xpk.google.com")
_OURS = re.compile(r"XPK_.*|MEGASCALE_.*|TPU_WORKER_(ID|HOSTNAMES)")


def location_flags(cluster: str, namespace: str) -> str:
    """Return the flags by which commands find a workload, besides its name."""
    return f" --cluster {cluster}" + ("" if namespace == "default" else f" --namespace {namespace}")


def peer_secret(workload: str) -> str:
    """Return the name of the Secret that is created with a workload. Users cannot choose such a name."""
    return f"xpk-peers.{workload}"


def network_policy(workload: str) -> str:
    """Return the name of a workload's NetworkPolicy."""
    return f"xpk-hosts.{workload}"


def qualified(name: str, namespace: str) -> str:
    """Return a workload's name with its namespace, since names are unique only within one."""
    return name if namespace == "default" else f"{namespace}/{name}"


def name_and_flags(workload: str, cluster: str) -> str:
    """Return the arguments by which commands find a workload with this `qualified` name."""
    namespace, _, name = workload.rpartition("/")
    return name + location_flags(cluster, namespace or "default")


def deletion_command(holder: str, cluster: str) -> str:
    """Return the command that deletes the holder of a slice: a workload by its `qualified` name, or a plain pod."""
    namespace, _, name = holder.rpartition("/")
    if name.startswith(f"{POD} "):
        return f"kubectl delete pod {name.removeprefix(f'{POD} ')} --namespace {namespace or 'default'}"
    return f"xpk workload delete {name_and_flags(holder, cluster)}"


def workload_name_problems(name: str, *, num_slices: int, hosts_per_slice: int) -> list[str]:
    """Return the problems of a workload's name, one line each.

    JobSet derives from it `<name>-slice-job-<slice>-<host>-<5 characters>` for pods, and the coordinator's
    `<name>-slice-job-0-0.<subdomain>` as a label: each at most 63 characters.
    """
    if not _PATTERN.fullmatch(name):
        return [_pattern_problem("workload", name)]
    pod = len(f"{name}-{SLICE_JOB}-{max(num_slices - 1, 0)}-{max(hosts_per_slice - 1, 0)}") + _POD_SUFFIX
    max_length = len(name) - max(pod, len(f"{name}-{SLICE_JOB}-0-0.") + _SUBDOMAIN_LENGTH) + _LABEL_LENGTH
    if len(name) > max_length:
        return [
            f"workload name '{name}' has {len(name)} characters; at most {max_length} are allowed with {num_slices} x "
            f"{hosts_per_slice} hosts, because Kubernetes limits the names of hosts to {_LABEL_LENGTH} characters"
        ]
    return []


def cluster_name_problems(name: str) -> list[str]:
    """Return the problems of a cluster's name, one line each."""
    return _label_problems("cluster", name, _CLUSTER_LENGTH)


def queue_name_problems(name: str) -> list[str]:
    """Return the problems of a queue's name, one line each: workloads carry it as a label value."""
    if name == CLUSTER_QUEUE:
        return [f"'{CLUSTER_QUEUE}' holds the rest of the quota; its queue is '{QUEUE}'"]
    if name == HELD_QUEUE:
        return [f"'{HELD_QUEUE}' must not exist: workloads that another cluster runs are held in it"]
    return _label_problems("queue", name)


def namespace_problems(name: str) -> list[str]:
    """Return the problems of a namespace's name, one line each."""
    return _label_problems("namespace", name)


def output_folder(workload: str, namespace: str) -> str:
    """Return the name of a workload's folder below the output root, unique within a cluster."""
    return workload if namespace == "default" else f"{namespace}.{workload}"  # neither holds a dot


def is_folder_name(name: str) -> bool:
    """Return whether an output folder can have this name without leaving the output root."""
    return bool(_FOLDER.fullmatch(name))


def storage_name_problems(name: str) -> list[str]:
    """Return the problems of a storage's name, one line each."""
    return _label_problems("storage", name, _CLUSTER_LENGTH)


def env_problems(name: str, value: str) -> list[str]:
    """Return the problems of an environment variable, one line each."""
    if not _ENV_NAME.fullmatch(name):
        return [f"'{name}' cannot be an environment variable's name: letters, digits and _ only, no digit first"]
    if _OURS.fullmatch(name):
        return [f"{name} is set by xpk for every host; choose another name"]
    return [f"the value of {name} {problem}" for problem in text_problems(value)]


def label_problems(name: str, value: str) -> list[str]:
    """Return the problems of a workload label, one line each."""
    prefix, slash, rest = name.rpartition("/")
    if not _LABEL_NAME.fullmatch(rest) or (slash and not _LABEL_PREFIX.fullmatch(prefix)) or len(prefix) > 253:
        return [f"invalid label name '{name}': expected [PREFIX/]NAME of letters, digits, '-', '_' and '.'"]
    if prefix == "xpk.dev" or prefix.endswith(_LABELS_OF_OTHERS):
        return [f"label {name} is reserved: labels of {prefix} are set by xpk and Kubernetes"]
    if value and not _LABEL_NAME.fullmatch(value):
        return [f"invalid value '{value}' of label {name}: expected at most 63 letters, digits, '-', '_' and '.'"]
    return []


def secret_problems(secret: str, key: str) -> list[str]:
    """Return the problems of a Secret's name and of a key in it, one line each."""
    problems = [] if _FOLDER.fullmatch(secret) and len(secret) <= 253 else [f"'{secret}' is not the name of a Secret"]
    return [*problems, *([] if _KEY.fullmatch(key) else [f"'{key}' is not a key of a Secret"])]


def service_account_problems(name: str, flag: str) -> list[str]:
    """Return the problems of a Kubernetes service account's name, one line each."""
    if _FOLDER.fullmatch(name) and len(name) <= 253:
        return []
    return [f"{flag} '{name}' is not the name of a Kubernetes service account: lower-case letters, digits, '-' and '.'"]


def node_folder_problems(folder: str, shared: str | None) -> list[str]:
    """Return why a node folder cannot be mounted at its own path; `shared` is mounted as well."""
    path, flag = PurePosixPath(folder), f"--node-folder '{folder}'"
    if not path.is_absolute() or ".." in path.parts or ":" in folder or text_problems(folder):
        return [f"{flag} must be an absolute path, such as /dev/shm or /mnt/disks/ssd0"]
    if folder != NODE_MEMORY and is_of_system(path):
        return [f"{flag} would hide files of the hosts' image: use /dev/shm, or a folder below /mnt"]
    other = PurePosixPath(shared or "/xpk")
    if path.is_relative_to(other) or other.is_relative_to(path):
        return [f"{flag} would hide {other}, where hosts write to"]
    return []


def is_of_system(path: PurePosixPath) -> bool:
    """Return whether an absolute path is, or is inside, a folder of an image's programs or of xpk."""
    return len(path.parts) == 1 or path.parts[1] in _SYSTEM


def text_problems(value: str) -> list[str]:
    """Return why a text cannot be passed through a manifest to a process, if it cannot."""
    if "\0" in value:
        return ["holds a NUL character, which process arguments cannot contain"]
    try:
        value.encode()
    except UnicodeEncodeError:
        return ["is not valid UTF-8"]
    return []


def host_name(workload: str, slice_id: int | str, host: int | str) -> str:
    """Return the DNS name of a host in JobSet's headless service."""
    return f"{workload}-{SLICE_JOB}-{slice_id}-{host}.{subdomain(workload)}"


def subdomain(workload: str) -> str:
    """Return the name of a workload's headless service: its own name, or a hash if the label would be too long.

    The label holds `<name>-slice-job-0-0.<subdomain>`. Services are unique in a namespace, so a constant cannot be
    used.
    """
    if len(f"{workload}-{SLICE_JOB}-0-0.{workload}") <= _LABEL_LENGTH:
        return workload
    digest = hashlib.sha256(workload.encode()).digest()
    return f"x{base64.b32encode(digest).decode().lower()[: _SUBDOMAIN_LENGTH - 1]}"


def node_pool_name(cluster: str, slice_index: int) -> str:
    """Return the name of a slice's node pool."""
    return f"{cluster}-np-{slice_index}"


def _label_problems(kind: str, name: str, max_length: int = _LABEL_LENGTH) -> list[str]:
    if not _PATTERN.fullmatch(name):
        return [_pattern_problem(kind, name)]
    if len(name) > max_length:
        return [f"{kind} name '{name}' has {len(name)} characters; at most {max_length} are allowed"]
    return []


def _pattern_problem(kind: str, name: str) -> str:
    return (
        f"{kind} name '{name}' is not a DNS label: lower-case letters, digits and '-', "
        "beginning with a letter and not ending with '-'"
    )


def limit_message(queue: str, limit: str) -> str:
    """Return the message for a priority above a queue's limit; all kinds of cluster use it."""
    return f"queue '{queue}' accepts priorities up to {limit}"


def limit_names(queue: str) -> tuple[str, str]:
    """Return the names of the policies that enforce a queue's limit: of JobSets, and of Kueue's Workloads."""
    return f"xpk-max-priority-{queue}-jobsets", f"xpk-max-priority-{queue}-workloads"
