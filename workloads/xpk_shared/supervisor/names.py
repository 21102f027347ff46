"""Names that the supervisor shares with those who start it, run under it or read its record. No imports."""

LIMIT, FATAL = "XPK_MAX_RESTARTS", "XPK_FATAL_EXIT_CODES"  # restarts in place, and codes that none can help
PORT = "XPK_SUPERVISOR_PORT"  # on a local cluster, where workloads may share an address
IMPORTS = "XPK_STANDBY_IMPORTS"  # modules of the standby, separated by commas; none: no standby
CAUSE = "XPK_RESTART_CAUSE"  # the record of a restart, for a program that writes it to a bucket
RECORD = "restarts.jsonl"  # file in the output folder
PEER_LOST, EXHAUSTED = 75, 78  # exit codes of a host: it is healthy, but another is lost; no restart is left
