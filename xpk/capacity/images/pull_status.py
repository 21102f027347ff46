"""Status of image pulls, from pods and events. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from xpk.api.base import Obj, Objs
from xpk.api.text import IMAGE_TROUBLES, image_words, is_hopeless_pull, short
from xpk.capacity.nodes.inventory import is_ready
from xpk.model.accelerators import CHIP_RESOURCES
from xpk_shared.percentiles import percentile

# The wording of the kubelet's events; the part after the time exists since Kubernetes 1.30.
_PULLED = re.compile(
    r'Successfully pulled image ".*?" in (?P<time>\S+?)(?: \(.*?\))?\.?(?: Image size: (?P<size>\d+) .*)?'
)
_PRESENT = re.compile(r'Container image ".*?" already present on machine\b.*')
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(h|ms|m|us|µs|ns|s)")
_UNITS = {"h": 3600.0, "m": 60.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}


@dataclass(frozen=True, slots=True, kw_only=True)
class PullTrouble:
    """The reason why an image is not on a node."""

    node: str  # name of the node
    reason: str  # reason in one word, as reported by Kubernetes
    message: str  # details

    @property
    def is_final(self) -> bool:
        """Return whether a retry is useless."""
        return is_hopeless_pull(self.reason, self.message)


@dataclass(frozen=True, slots=True, kw_only=True)
class ImagePulls:
    """Pulls of one image on the nodes. Times are over the nodes that pulled it, 0 without any."""

    image: str  # name of the image
    nodes: int  # number of nodes
    pulled: int  # number of nodes that pulled it
    present: int  # number of nodes that already had it
    p50_seconds: float  # median seconds of a pull
    p95_seconds: float  # 95th percentile of the seconds of a pull
    max_seconds: float  # seconds of the longest pull
    size_bytes: int | None  # compressed size, as reported by nodes; null if unknown
    pulled_bytes: int | None  # bytes of all pulls; null if the size is unknown
    failed: tuple[PullTrouble, ...] = ()  # problems of the nodes without it


@dataclass(frozen=True, slots=True)
class Fetched:
    """A pull event: its duration in seconds, 0 if the image was present, and the image's size."""

    present: bool
    seconds: float
    size: int | None


def missing_images(pod: Obj) -> dict[str, PullTrouble | None]:
    """Return the containers of a pod whose image is missing, with the reason if there is one.

    An image is present once its container has been started, whatever the result.
    """
    statuses = {item["name"]: item for item in pod.get("status", {}).get("containerStatuses") or []}
    troubles: dict[str, PullTrouble | None] = {}
    for container in pod["spec"]["containers"]:
        status = statuses.get(container["name"], {})
        waiting = (status.get("state") or {}).get("waiting") or {}
        reason = str(waiting.get("reason") or "ContainerCreating")
        if reason in IMAGE_TROUBLES:
            message = image_words(str(waiting.get("message", "")))
            # The kubelet alternates between trying and waiting: it is one problem.
            kind = "ErrImagePull" if reason == "ImagePullBackOff" else reason
            troubles[container["name"]] = PullTrouble(node=node_of(pod), reason=kind, message=message)
        elif not status or (waiting and reason in ("ContainerCreating", "PodInitializing") and not status["imageID"]):
            troubles[container["name"]] = _unplaced(pod)
    return troubles


def node_of(pod: Obj) -> str:
    """Return the node of a DaemonSet's pod, even before it is scheduled."""
    if name := pod["spec"].get("nodeName"):
        return str(name)
    affinity = pod["spec"].get("affinity", {}).get("nodeAffinity", {})
    terms = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get("nodeSelectorTerms", [])
    fields = [field for term in terms for field in term.get("matchFields", [])]
    return next((str(field["values"][0]) for field in fields if field["key"] == "metadata.name"), "")


def seconds_of(duration: str) -> float:
    """Return a duration in Go's format, such as `1m2.5s` or `350ms`, in seconds."""
    return sum(float(number) * _UNITS[unit] for number, unit in _DURATION.findall(duration))


def fetched_of(message: str) -> Fetched | None:
    """Return the content of an event of reason `Pulled`; None if its wording is unknown."""
    if match := _PULLED.fullmatch(message):
        return Fetched(False, seconds_of(match["time"]), int(match["size"]) if match["size"] else None)
    return Fetched(True, 0.0, None) if _PRESENT.fullmatch(message) else None


def pulls_of(images: Mapping[str, str], nodes: Objs, pods: Objs, events: Objs) -> tuple[ImagePulls, ...]:
    """Return the pulls of each image.

    `images`: by container name. `events`: those of reason `Pulled`.
    """
    reported = _pull_events(pods, events)
    covered, here = {node_of(pod) for pod in pods}, {str(node["metadata"]["name"]): node for node in nodes}
    absent = [
        PullTrouble(node=name, reason="NoPod", message=_not_ready_reason(here[name])) for name in here.keys() - covered
    ]
    late = {name: "NotInTime" if is_ready(node) else "NotReady" for name, node in here.items()}
    missing = {pod["metadata"]["name"]: missing_images(pod) for pod in pods}
    results = []
    for container, image in images.items():
        failures = {
            node_of(pod): missing[pod["metadata"]["name"]][container]
            for pod in pods
            if container in missing[pod["metadata"]["name"]]
        }
        failed = absent + [
            trouble or PullTrouble(node=node, reason=late.get(node, "NodeGone"), message="")
            for node, trouble in failures.items()
        ]
        fetched = [reported.get((pod["metadata"]["name"], container)) for pod in pods if node_of(pod) not in failures]
        results.append(_of_image(image, fetched, failed, _size_on(nodes, image)))
    return tuple(results)


def alike(troubles: Iterable[PullTrouble]) -> list[tuple[str, list[str]]]:
    """Return each distinct problem with its nodes, the most frequent first."""
    nodes_by_words: dict[str, list[str]] = {}
    for trouble in troubles:
        nodes_by_words.setdefault(": ".join(filter(None, (trouble.reason, trouble.message))), []).append(trouble.node)
    return sorted(nodes_by_words.items(), key=lambda item: -len(item[1]))


def _of_image(
    image: str, fetched: Sequence[Fetched | None], failed: Sequence[PullTrouble], size: int | None
) -> ImagePulls:
    """Return the pulls of an image on the nodes that have it; None stands for a lost event."""
    pulled = [pull for pull in fetched if pull is None or not pull.present]
    times = [pull.seconds for pull in pulled if pull]
    size = next((pull.size for pull in pulled if pull and pull.size), size)
    return ImagePulls(
        image=image,
        nodes=len(fetched) + len(failed),
        pulled=len(pulled),
        present=len(fetched) - len(pulled),
        p50_seconds=percentile(times, 50),
        p95_seconds=percentile(times, 95),
        max_seconds=max(times, default=0.0),
        size_bytes=size,
        pulled_bytes=None if size is None and pulled else (size or 0) * len(pulled),
        failed=tuple(sorted(failed, key=lambda trouble: trouble.node)),
    )


def _pull_events(pods: Objs, events: Objs) -> dict[tuple[str, str], Fetched]:
    """Return the pull events by pod and container; of a restarted container, its first pull."""
    uids = {pod["metadata"]["uid"]: pod["metadata"]["name"] for pod in pods}
    events_by_container: dict[tuple[str, str], Fetched] = {}
    for event in events:
        about = event.get("involvedObject", {})
        container = str(about.get("fieldPath", "")).removeprefix("spec.containers{").removesuffix("}")
        fetched = fetched_of(str(event.get("message", "")))
        if fetched and about.get("uid") in uids:
            key = (uids[about["uid"]], container)
            if key not in events_by_container or events_by_container[key].present:
                events_by_container[key] = fetched
    return events_by_container


def _size_on(nodes: Objs, image: str) -> int | None:
    """Return an image's size as nodes report it; they list names with a registry."""
    for node in nodes:
        for entry in node["status"].get("images", []):
            if any(name == image or name.endswith(f"/{image}") for name in entry.get("names") or []):
                return int(entry["sizeBytes"])
    return None


def _not_ready_reason(node: Obj) -> str:
    """Return why a DaemonSet's pod cannot run on a node."""
    taints = [taint for taint in node["spec"].get("taints", []) if taint["effect"] in ("NoSchedule", "NoExecute")]
    strange = [str(taint["key"]) for taint in taints if taint["key"] not in CHIP_RESOURCES]
    return f"it has the taint {', '.join(strange)}" if strange else ""


def _unplaced(pod: Obj) -> PullTrouble | None:
    """Return why a pod has no node, None if it has one or may be scheduled soon."""
    conditions = pod.get("status", {}).get("conditions") or []
    placed = next((item for item in conditions if item["type"] == "PodScheduled" and item["status"] == "False"), None)
    if placed is None:
        return None
    reason = str(placed.get("reason") or "Unschedulable")
    return PullTrouble(node=node_of(pod), reason=reason, message=short(placed.get("message")))
