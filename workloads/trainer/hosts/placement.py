"""Placement of a workload of several clusters: the decision which of them runs it, in a file beside its output.

`xpk workload place` writes the file (docs/several-clusters.md). A decision for a cluster has a larger number, the
epoch, than all before it, and the copy there is released only after the hosts of all other copies have ended. So a run
on the cluster that the newest decision names takes over the output folder from one of an older epoch, whose hosts are
gone as far as their cluster knows. The older run ends, and so does one that starts there: with MOVED, which is no
failure.
"""

import json
from collections.abc import Mapping
from typing import NamedTuple

from xpk_shared.storage import Place

FILE = "placement.json"  # names.LEASE_FILE of the tool
RUN, CLUSTER = "XPK_PLACEMENT_RUN", "XPK_PLACEMENT_CLUSTER"  # environment variables of a host
_MAX_EPOCH = 1 << 53


class Placed(NamedTuple):
    """Right of a host's run: `run` identifies the copies of a workload, "" for one with a single cluster."""

    run: str = ""
    epoch: int = 0  # of the newest decision, if it names the cluster of this host; else 0
    cluster: str = ""  # of this host


def read_placement(out: Place, environ: Mapping[str, str]) -> Placed:
    """Return the right of this host's run to the output folder. Raises OSError if the file cannot be read.

    A decision for another cluster, or one that cannot be understood, gives none: the copy is about to be held.
    """
    run, cluster = environ.get(RUN, ""), environ.get(CLUSTER, "")
    if not run or not cluster:
        return Placed()
    _, content = (out / FILE).slot().look()
    try:
        decision = json.loads(content)
        epoch = decision["epoch"]
        is_own = decision["run"] == run and decision["cluster"] == cluster
    except (ValueError, TypeError, KeyError, RecursionError):
        return Placed(run, 0, cluster)
    is_number = isinstance(epoch, int) and not isinstance(epoch, bool) and 0 < epoch < _MAX_EPOCH
    return Placed(run, epoch if is_own and is_number else 0, cluster)
