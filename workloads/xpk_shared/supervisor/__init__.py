"""The supervisor of a host's command: runs the command, watches the other hosts, and restarts all commands in place.

A command that fails is started again on all hosts, in the same pods, as the first host decides (restarts.py). What
follows is about hosts that are lost as a whole, and about workloads without restarts in place.

A host that dies leaves the others in a collective that never ends. Kubernetes would then end the hosts of its slice
and, after those, the hosts of the other slices, each with the full grace period. Therefore every host keeps a link to
the first host (xpk_shared.links). When a host dies, all other hosts end their commands at once, and themselves as soon
as Kubernetes asks them to: the exit code of the failed host alone decides.

A host that was asked to end (SIGTERM), or has succeeded, announces it: its end is not a loss, and it keeps its grace
period. A command that fails before the hosts have met is held back for a moment, so that its peers notice. A command
that ends with 143 although no host was asked to end has failed; Kubernetes would not count that code. Where hosts
cannot connect, the command just runs. The program runs in the user's image: standard library, Python 3.8.
"""
