"""The supervisor of a host's command: runs the command, watches the other hosts, and restarts all commands in place.

If a command fails, the first host restarts the commands of all hosts in the same pods (restarts.py). The rest of this
text is about hosts that are lost with their pods, and about workloads without restarts in place.

If a host dies, the others are blocked in a collective that never ends. Kubernetes would then end the hosts of its slice
and, after those, the hosts of the other slices, each with the full grace period. Therefore every host keeps a link to
the first host (xpk_shared.links). If a host dies, all other hosts end their commands immediately, but exit only when
Kubernetes ends them, so that only the exit code of the failed host counts.

A host that was asked to end (SIGTERM), or has succeeded, announces it: its end is not a loss, and it keeps its grace
period. If a command fails before all hosts are connected, its host waits briefly, so that the others detect its end. A
command that exits with 143 although no host was asked to end has failed; Kubernetes would not count that code. If hosts
cannot connect, commands run without supervision.

If slices are elastic, the hosts of each slice are a group of their own, with its own first host and restarts, and
Kubernetes recreates only the slice of a lost host. The supervisor of slice 0 host 0 also serves the registry of the
slices (xpk_shared.slices). Kubernetes may also recreate only the slice of a disrupted host while all others wait for it
(replacement_supervisor.py). The program runs in the user's image, so it uses only the standard library of Python 3.8.
"""
