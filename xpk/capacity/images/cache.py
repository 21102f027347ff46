"""Image cache: a DaemonSet pulls images on all nodes of slices in advance, ends by itself, and is measured.

A Job without pods is its clock and its owner: after the deadline, the control plane deletes the Job and everything
that it owns. The cleanup does not depend on this process, so it happens even if this process is killed. The number of
requests grows with the time, not with the nodes, except for the lists at the start and the end, and one after each
doubling of a stall.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from xpk.api.base import Obj, ObjectApi, Objs
from xpk.capacity.controllers.install import Pause
from xpk.capacity.images.pull_status import ImagePulls, alike, missing_images, node_of, pulls_of
from xpk.capacity.nodes.inventory import is_ready, pool_of, pools_of, shape_of, slice_nodes, some_of
from xpk.model import names
from xpk.model.accelerators import SliceShape
from xpk.model.errors import ConflictError, NotFoundError, TimedOutError, UsageError, XpkError
from xpk.model.specs import ImageCacheSpec, image_problems
from xpk.render import render_image_cache
from xpk.render.pause_program import ARCHITECTURES

_POLL_SECONDS = 2.0
_FIRST_STALL, _LONGEST_STALL = 10.0, 300.0  # without progress, then the pods are listed to find out why
_MARGIN = 1.1  # the Job's deadline over this command's, which reports before the cleanup
_ARCHITECTURE = "kubernetes.io/arch"
_MIN_SECONDS, _MAX_SECONDS = 10, 7 * 24 * 3600


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRequest:
    """A user's request: images on the nodes of all slices, or of those of some pools or one type."""

    images: tuple[str, ...]
    pools: tuple[str, ...] = ()
    shape: SliceShape | None = None
    namespace: str = "default"
    image_pull_secret: str | None = None
    seconds: float = 1800.0
    have_first: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Caching:
    """Images to pull: the nodes, their state before, and the objects that make them pull."""

    spec: ImageCacheSpec
    nodes: Objs

    def objects(self) -> Objs:
        """Return the Job and the objects that it will own, before its UID is known."""
        return render_image_cache(self.spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOutcome:
    """The result of pulling images onto nodes."""

    name: str  # name of the Job; empty for a local cluster
    nodes: int  # number of nodes
    seconds: float  # total seconds
    in_time: bool  # whether it finished before the deadline
    images: tuple[ImagePulls, ...]  # results by image

    def error(self) -> XpkError | None:
        """Return the error if some node lacks some image, else None."""
        for pulls in self.images:
            if pulls.failed:
                words, nodes = alike(pulls.failed)[0]
                text = (
                    f"image {pulls.image} is not on {len(pulls.failed)} of {pulls.nodes} nodes; "
                    f"{some_of(nodes)}: {words}"
                )
                if self.in_time:
                    return XpkError(
                        text, hint="check its name and the nodes' access to its registry, then run it again"
                    )
                return TimedOutError(
                    text, hint="run it again: existing images are not pulled again; --timeout 1h waits longer"
                )
        return None


Progress = Callable[[int, int, float], None]  # finished nodes, all nodes, seconds


def plan(api: ObjectApi, request: CacheRequest) -> Caching:
    """Return what to pull. Raises UsageError with all problems, NotFoundError if there are no such nodes."""
    problems = image_problems(request.images)
    if not _MIN_SECONDS <= request.seconds <= _MAX_SECONDS:
        problems.append(f"--timeout must be between {_MIN_SECONDS}s and 7 days, got {request.seconds:.0f}s")
    nodes = slice_nodes(api)
    existing = pools_of(nodes) | pools_of(nodes, spare=True)
    problems += [f"slice '{pool}' not found" for pool in request.pools if pool not in existing]
    chosen = [
        node
        for node in nodes
        if pool_of(node) in (request.pools or existing) and request.shape in (None, shape_of(node))
    ]
    kinds = {str(node["metadata"]["labels"].get(_ARCHITECTURE, ARCHITECTURES[0])) for node in chosen}
    if len(kinds) > 1 or not kinds.issubset(ARCHITECTURES):
        problems.append(f"the nodes are of {', '.join(sorted(kinds))}: choose those of one kind with --pools")
    if problems:
        hint = f"existing slices: {', '.join(existing)}" if request.pools else "see `xpk cluster cache-image --help`"
        raise UsageError("invalid options for the image cache", problems=problems, hint=hint)
    if not chosen:
        what = f" of {request.shape.name}" if request.shape else ""
        raise NotFoundError(
            f"the cluster has no nodes of slices{what}", hint="`xpk cluster describe` shows what it has"
        )
    shapes = {shape for node in chosen if (shape := shape_of(node))}
    return Caching(
        nodes=chosen,
        spec=ImageCacheSpec(
            images=request.images,
            pools=tuple(sorted({pool_of(node) for node in chosen})),
            taints=tuple(sorted({shape.resource for shape in shapes})),
            seconds=math.ceil(_MARGIN * request.seconds),
            architecture=kinds.pop(),
            namespace=request.namespace,
            image_pull_secret=request.image_pull_secret,
            have_first=request.have_first,
        ),
    )


def begin(api: ObjectApi, caching: Caching) -> None:
    """Let the nodes pull until the deadline; pulls that an earlier command began continue.

    Raises ConflictError if the Job would never run, since nothing would delete the rest.
    """
    spec, (job, *rest) = caching.spec, caching.objects()
    try:
        made = api.create(job)
    except ConflictError:
        made = api.get("Job", spec.name, spec.namespace)
        if made["metadata"].get("deletionTimestamp") or made.get("status", {}).get("conditions"):
            raise ConflictError(f"an earlier '{spec.name}' is being deleted", hint="run it again in a minute") from None
        age = (datetime.now(UTC) - datetime.fromisoformat(made["metadata"]["creationTimestamp"])).total_seconds()
        later = {"spec": {"activeDeadlineSeconds": int(age) + spec.seconds}}
        api.patch("Job", spec.name, later, spec.namespace)
    try:
        if made["spec"].get("suspend"):
            raise ConflictError(
                f"something on this cluster suspends Jobs in namespace '{spec.namespace}'",
                hint="choose another --namespace; Kueue suspends Jobs if manageJobsWithoutQueueName is set",
            )
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": spec.name, "uid": made["metadata"]["uid"]}
        for obj in rest:
            api.apply({**obj, "metadata": {**obj["metadata"], "ownerReferences": [owner]}})
    except BaseException:
        end(api, spec)
        raise


def end(api: ObjectApi, spec: ImageCacheSpec) -> None:
    """Delete the objects that make nodes pull; if that fails, the deadline does it. The images stay."""
    with suppress(XpkError):
        api.delete("Job", spec.name, spec.namespace)


def await_all(
    api: ObjectApi,
    caching: Caching,
    seconds: float,
    progress: Progress,
    *,
    clock: Callable[[], float] = time.monotonic,
    pause: Pause = time.sleep,
) -> CacheOutcome:
    """Wait until every node has every image, or cannot pull it; return the outcome and delete all objects."""
    start = clock()
    try:
        in_time = _wait(api, caching, seconds, progress, clock, pause)
        return _outcome(api, caching, clock() - start, in_time=in_time)
    finally:
        end(api, caching.spec)


def _wait(
    api: ObjectApi,
    caching: Caching,
    seconds: float,
    progress: Progress,
    clock: Callable[[], float],
    pause: Pause,
) -> bool:
    """Wait until no more progress is expected; return whether that was before the deadline."""
    spec, start = caching.spec, clock()
    done, changed, stall = 0, start, _FIRST_STALL
    while True:
        daemons = _daemons(api, spec)
        status, now = daemons.get("status", {}), clock()
        is_observed = status.get("observedGeneration", 0) >= daemons["metadata"].get("generation", 0)
        ready, all_ = int(status.get("numberReady", 0)), int(status.get("desiredNumberScheduled", 0))
        progress(ready, all_ or len(caching.nodes), now - start)
        if is_observed and ready >= all_ > 0:
            return True
        if ready != done:
            done, changed = ready, now
        if now - changed >= stall:
            stall, changed = min(2 * stall, _LONGEST_STALL), now
            if is_observed and _is_over(api, caching, all_):
                return True
        if now - start >= seconds:
            return False
        pause(_POLL_SECONDS)


def _daemons(api: ObjectApi, spec: ImageCacheSpec) -> Obj:
    try:
        return api.get("DaemonSet", spec.name, spec.namespace)
    except NotFoundError:
        raise ConflictError(
            f"'{spec.name}' was deleted: by its deadline, or by another command with the same images",
            hint="run it again: existing images are not pulled again",
        ) from None


def _is_over(api: ObjectApi, caching: Caching, all_: int) -> bool:
    """Return whether all pods exist and no more progress of them is expected."""
    pods = _pods(api, caching.spec)
    if len(pods) < all_:
        return False
    if all(_is_settled(pod, set()) for pod in pods):
        return True
    unready = {node["metadata"]["name"] for node in _nodes(api, caching) if not is_ready(node)}
    return all(_is_settled(pod, unready) for pod in pods)


def _is_settled(pod: Obj, unready: set[str]) -> bool:
    """Return whether a pod has its images, or cannot get them, at least until its node is back."""
    return node_of(pod) in unready or all(trouble and trouble.is_final for trouble in missing_images(pod).values())


def _outcome(api: ObjectApi, caching: Caching, seconds: float, *, in_time: bool) -> CacheOutcome:
    spec, pods = caching.spec, _pods(api, caching.spec)
    events = api.list("Event", spec.namespace, fields={"involvedObject.kind": "Pod", "reason": "Pulled"})
    images = {f"image-{index}": image for index, image in enumerate(spec.images)}
    pulls = pulls_of(images, _nodes(api, caching), pods, events)
    return CacheOutcome(name=spec.name, nodes=pulls[0].nodes, seconds=round(seconds, 3), in_time=in_time, images=pulls)


def _nodes(api: ObjectApi, caching: Caching) -> Objs:
    """Return the nodes as they are now."""
    node_names = {node["metadata"]["name"] for node in caching.nodes}
    return [node for node in slice_nodes(api) if node["metadata"]["name"] in node_names]


def _pods(api: ObjectApi, spec: ImageCacheSpec) -> Objs:
    all_pods = api.list("Pod", spec.namespace, {names.IMAGE_CACHE_LABEL: spec.name})
    return [pod for pod in all_pods if not pod["metadata"].get("deletionTimestamp")]
