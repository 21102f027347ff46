"""Options of a workload that its manifest uses as the user gives them. Each is written once, with its check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from xpk.model import names
from xpk.model.errors import UsageError
from xpk.model.options import checked, option

FATAL_EXIT_CODES = (42, 126, 127)  # the trainer's; "not executable" and "not found" of shells
_MAX_RUN_SECONDS = 7 * 24 * 3600  # GKE's limit for slices of queued provisioning
_MAX_COUNT = 2**31 - 1


def parse_secret_env(texts: Iterable[str], flag: str = "--env-from-secret") -> dict[str, tuple[str, str]]:
    """Return the (Secret, key) of each variable of `--env-from-secret NAME=SECRET[:KEY]`. Raises UsageError."""
    env: dict[str, tuple[str, str]] = {}
    for text in texts:
        name, equals, place = text.partition("=")
        if not equals:
            raise UsageError(f"{flag} '{text}' has no '='", hint=f"pass {flag} NAME=SECRET[:KEY]")
        secret, _, key = place.partition(":")
        env[name] = secret, key or name
    return env


def parse_labels(pairs: Iterable[str], flag: str = "--label") -> dict[str, str]:
    """Return the labels of `--label NAME=VALUE`; the last of a name wins. Raises UsageError."""
    split = [pair.partition("=") for pair in pairs]
    problems = [f"{flag} '{name}' has no '='" for name, equals, _ in split if not equals]
    if problems:
        raise UsageError(problems[0], problems=problems, hint=f"pass {flag} NAME=VALUE once per label")
    return {name: value for name, _, value in split}


def _secret_env_problems(env: Mapping[str, tuple[str, str]], _flag: str) -> list[str]:
    return [
        problem
        for key, (secret, entry) in env.items()
        for problem in (*names.env_problems(key, ""), *names.secret_problems(secret, entry))
    ]


def _priority_problems(priority: str, _flag: str) -> list[str]:
    if priority in names.PRIORITIES:
        return []
    return [f"unknown priority '{priority}': choose from {', '.join(names.PRIORITIES)}"]


def _label_problems(labels: Mapping[str, str], _flag: str) -> list[str]:
    return [problem for key, value in labels.items() for problem in names.label_problems(key, value)]


def _service_account_problems(name: str | None, flag: str) -> list[str]:
    return [] if name is None else names.service_account_problems(name, flag)


def _run_duration_problems(seconds: int | None, flag: str) -> list[str]:
    if seconds is None or 1 <= seconds <= _MAX_RUN_SECONDS:
        return []
    return [f"{flag} must be more than 0 and at most 7 days, got {seconds}s"]


def _standby_problems(modules: str, flag: str) -> list[str]:
    return [
        f"{flag}: '{module}' is not the name of a module"
        for module in (modules.split(",") if modules else ())
        if not all(part.isidentifier() for part in module.split("."))
    ]


def _exit_code_problems(codes: Sequence[int], _flag: str) -> list[str]:
    return [
        f"{code} cannot be a fatal exit code: 1 to 255, except 143 (ended by SIGTERM, saved)"
        for code in codes
        if not 1 <= code <= 255 or code == 143
    ]


def _count_problems(number: int, flag: str) -> list[str]:
    return [] if 0 <= number <= _MAX_COUNT else [f"{flag} must be between 0 and {_MAX_COUNT}, got {number}"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadOptions:
    """Fields that a user's `Workload` and its `WorkloadSpec` share. Times are in seconds."""

    name: str
    namespace: str = "default"
    image_pull_secret: str | None = option(
        None,
        "--docker-image-pull-secret",
        parameter="pull_secret",
        metavar="NAME",
        help="Kubernetes Secret to pull the image with.",
    )
    service_account: str | None = option(
        None,
        metavar="NAME",
        check=_service_account_problems,
        help="Kubernetes service account that pods act as, for example on Google Cloud. [default: the namespace's]",
    )
    run_as_user: int | None = option(
        None,
        metavar="UID",
        limits=(1, _MAX_COUNT),
        help="User that pods run as, and that owns their volumes. [default: the image's user]",
    )
    read_only_root: bool = option(
        False,
        help="Make the root filesystem of hosts read-only; /tmp and mounted storage stay writable.",
    )
    network_policy: bool = option(
        False,
        help="Accept network connections to hosts only from the workload's own hosts, by a NetworkPolicy.",
    )
    node_folder: str | None = option(
        None,
        metavar="PATH",
        help="Mount this folder of each node into its hosts, at the same path, for files that outlive them: /dev/shm, "
        "or a disk.",
    )
    secret_env: Mapping[str, tuple[str, str]] = option(
        None,
        "--env-from-secret",
        parameter="secret_env",
        metavar="NAME=SECRET[:KEY]",
        default_factory=dict,
        parse=parse_secret_env,
        check=_secret_env_problems,
        help="Environment variable from a key of a Kubernetes Secret; may be repeated.",
    )
    priority: str = option(
        "medium",
        metavar="|".join(names.PRIORITIES),
        check=_priority_problems,
        help="Priority in the queue; a workload may preempt others of lower priority.",
    )
    scheduler: str = ""  # of its pods; "": the cluster's default
    labels: Mapping[str, str] = option(
        None,
        "--label",
        parameter="labels",
        metavar="NAME=VALUE",
        default_factory=dict,
        parse=parse_labels,
        check=_label_problems,
        help="Label of the JobSet and its pods; may be repeated.",
    )
    max_run_seconds: int | None = option(
        None,
        "--max-run-duration",
        metavar="TIME",
        is_time=True,
        check=_run_duration_problems,
        help="Queued provisioning: time after which GKE takes the slices back, at most 7d. [default: 7d]",
    )
    standby_imports: str = option(
        "",
        metavar="MODULES",
        check=_standby_problems,
        help="With --command 'python ...': modules, such as jax,flax, that an idle interpreter of each host imports "
        "for the next attempt; none: no idle interpreter, also for the bundled trainer.",
    )
    preflight: bool = option(
        False,
        help="Check chips, memory, network, clocks and disks of all hosts before the command starts; needs the "
        "trainer in the image.",
    )
    node_pools: Sequence[str] = ()  # run on these slices and nowhere else
    tolerates_quarantine: bool = False  # run on slices although they are quarantined
    max_restarts: int = option(0, check=_count_problems, help="Number of failures to restart after.")
    min_slices: int | None = option(
        None,
        metavar="N",
        help="Bundled trainer: when slices are lost, continue with the others, down to N slices; lost slices join "
        "again later. [default: all slices restart together]",
    )
    # Any other exit code restarts the workload.
    fatal_exit_codes: Sequence[int] = checked(FATAL_EXIT_CODES, _exit_code_problems)
    termination_grace_seconds: int = option(
        30,
        "--termination-grace-period-seconds",
        "-tgps",
        parameter="grace",
        check=_count_problems,
        help="Seconds between SIGTERM and SIGKILL.",
    )
    ttl_seconds: int = option(
        12 * 3600,
        "--ttl-seconds-after-finished",
        parameter="ttl",
        check=_count_problems,
        help="Seconds for which a finished workload is kept; its output is not deleted.",
    )
