"""Names that the supervisor shares with its callers, its commands and readers of its record. No imports."""

LIMIT, FATAL = "XPK_MAX_RESTARTS", "XPK_FATAL_EXIT_CODES"  # restarts in place, and exit codes without a restart
COORDINATOR = "XPK_COORDINATOR_ADDRESS"  # host:port of the first host of slice 0
PORT = "XPK_SUPERVISOR_PORT"  # on a local cluster, where workloads may share an address
IMPORTS = "XPK_STANDBY_IMPORTS"  # modules of the standby, separated by commas; none: no standby
SLICE_ATTEMPT = "XPK_SLICE_ATTEMPT"  # how often this slice was replaced alone; absent: all slices get new pods together
GRACE = "XPK_GRACE_SECONDS"  # from SIGTERM to SIGKILL for a host that was asked to end
CAUSE = "XPK_RESTART_CAUSE"  # the record of a restart, for a program that writes it to a bucket
MIN_SLICES, REGISTRY = "XPK_MIN_SLICES", "XPK_SLICE_REGISTRY"  # of elastic slices; the latter is host:port
PROGRESS, PROGRESS_RECORD = "XPK_PROGRESS_FILE", "progress.jsonl"  # file to which programs append, in the output folder
STARTED = "XPK_ATTEMPT_STARTED"  # Unix seconds at which the command of the attempt was started
RECORD = "restarts.jsonl"  # file in the output folder
PEER_LOST, EXHAUSTED = 75, 78  # exit codes of a host: it is healthy, but another is lost; no restart is left
MOVED = 80  # exit code of a host whose run continues on another of the clusters of its workload
UNFIT = 79  # exit code of a host that has failed a preflight check; its termination message is:
PREFLIGHT_FAILED = "preflight failed: "  # followed by the checks
PASSED = "XPK_PREFLIGHT_PASSED"  # file that the checks write to once all hosts have passed
# Beginning of a command that checks the hosts before its program, which follows after `--`.
PREFLIGHT = ("python3", "-P", "-m", "trainer", "preflight")
