"""Installation of JobSet and Kueue: their release manifests, applied server-side, until their webhooks answer.

Fields of other managers are never taken over; they are reported. An upgrade applies the newer manifest over the
older one, so queues and workloads stay.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import yaml

from xpk.api.base import MANAGER, Obj, ObjectApi
from xpk.api.controller_config import (
    CONFIG,
    JOBSET_CONFIG_MAP,
    JOBSET_DEPLOYMENT,
    JOBSET_NAMESPACE,
    KUEUE_CONFIG_MAP,
    KUEUE_NAMESPACE,
    RESTART_JOB,
)
from xpk.capacity.controllers import release_manifest
from xpk.capacity.controllers.resources import enlarge, more_memory
from xpk.capacity.controllers.settings import configured, lacks
from xpk.capacity.controllers.webhooks import is_unlimited, limited
from xpk.capacity.options import ControllerOptions
from xpk.model import names
from xpk.model.errors import AuthorizationError, ConflictError, NotFoundError, TimedOutError, UsageError, XpkError

Pause = Callable[[float], None]
Version = tuple[int, ...]

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_READY_SECONDS = 300.0
_FIRST_POLL_SECONDS, _POLL_SECONDS = 0.1, 1.0
_PATIENT_SECONDS = 10  # the releases' one second is too short on a busy machine
_LAST = ("Deployment",)  # set last, so its absence marks an interrupted installation, which is repeated
_FIRST = ("Namespace", "CustomResourceDefinition")
# Fencing of hosts whose node is gone: without it their pods stay, and the JobSet waits for them forever.
_FENCING_GATE = "FailureRecoveryPolicy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Controller:
    """A controller that workloads need.

    `sha256`: checksum of the manifest at `url`. `gate`: feature gate that xpk needs.
    """

    name: str
    version: str
    namespace: str
    deployment: str
    config_map: str
    gate: str
    url: str
    sha256: str


JOBSET = Controller(
    name="JobSet",
    version="0.12.0",
    namespace=JOBSET_NAMESPACE,
    deployment=JOBSET_DEPLOYMENT,
    config_map=JOBSET_CONFIG_MAP,
    gate=RESTART_JOB,
    url="https://github.com/kubernetes-sigs/jobset/releases/download/v0.12.0/manifests.yaml",
    sha256="a41aaf12dd0b7b0a3d626b8d6107f32c3dc889d7e7830adc46b8cdb77a8963bb",
)
KUEUE = Controller(
    name="Kueue",
    version="0.19.2",
    namespace=KUEUE_NAMESPACE,
    deployment="kueue-controller-manager",
    config_map=KUEUE_CONFIG_MAP,
    gate=_FENCING_GATE,
    url="https://github.com/kubernetes-sigs/kueue/releases/download/v0.19.2/manifests.yaml",
    sha256="88881eb50734eb920b67486ebc2aa978ed325e1b12d99b22fc51a6d7e9e4d370",
)
CONTROLLERS = (JOBSET, KUEUE)  # in this order: Kueue's webhooks handle JobSets


def title_of(controller: Controller) -> str:
    """Return the title of the step that installs a controller."""
    return f"install {controller.name} {controller.version}"


def missing_step(api: ObjectApi, controller: Controller, *, hosts: int = 0) -> str | None:
    """Return the title of the required step; None if this version or a newer one is installed and running.

    `hosts`: number of hosts it manages. An installation of this version by xpk is also reconfigured if its resources
    may be too small for them, or if it lacks a setting; other installations are left alone (`notes_of`).
    """
    try:
        deployment = api.get("Deployment", controller.deployment, controller.namespace)
    except NotFoundError:
        return title_of(controller)
    have, version = version_of(deployment), _numbers(controller.version)
    if have and have < version:
        return f"upgrade {controller.name} {'.'.join(map(str, have))} to {controller.version}"
    if have == version and _is_ours(deployment):
        if more := more_memory(deployment, hosts):
            return f"allow {controller.name} {more}, for {hosts:,} hosts"
        if settings := lacks(api, deployment, controller.config_map, controller.gate):
            return f"set up {controller.name} {controller.version} with {' and '.join(settings)}"
        if controller is JOBSET and is_unlimited(api):
            return f"call the webhook of {controller.name} for fewer pods"
        if _is_stale(api, controller, deployment):
            return f"restart {controller.name} with its newest configuration"
    return None if _runs(deployment) else f"wait until {controller.name} runs"


def notes_of(api: ObjectApi, *, hosts: int, fenced: bool | None) -> tuple[str, ...]:
    """Return the missing settings of controllers that xpk did not install, one line each.

    Raises ConflictError if `fenced` needs one of them: without it, a workload would still wait for a dead node's
    hosts.
    """
    notes = []
    for controller in CONTROLLERS:
        try:
            deployment = api.get("Deployment", controller.deployment, controller.namespace)
        except NotFoundError:
            continue
        have, version = version_of(deployment), _numbers(controller.version)
        if (have and have < version) or (have == version and _is_ours(deployment)):
            continue  # installed by xpk
        if more := more_memory(deployment, hosts):
            notes.append(f"{controller.name} was not installed by this xpk: {hosts:,} hosts may need {more}")
        settings = lacks(api, deployment, controller.config_map, controller.gate)
        text = f"{controller.name} was not installed by this xpk and lacks {' and '.join(settings)}"
        # In a later version, the gate may be on by default.
        if fenced and have <= version and any(_FENCING_GATE in setting for setting in settings):
            hint = _settings_hint(controller)
            raise ConflictError(f"{text}: hosts of a dead node would stay even with --fenced", hint=hint)
        if settings:
            notes.append(f"{text}; {_settings_hint(controller)}")
    return tuple(notes)


def _settings_hint(controller: Controller) -> str:
    frameworks = "`integrations.frameworks`, " if controller is KUEUE else ""
    return (
        f"set it in {CONFIG} of ConfigMap {controller.config_map}, namespace {controller.namespace} ({frameworks}"
        f"`featureGates: {{{controller.gate}: true}}`), then `kubectl rollout restart -n {controller.namespace} "
        "deployment`"
    )


def version_of(deployment: Obj) -> Version:
    """Return the version in the tag of a controller's image, () if the tag has none."""
    image = _manager(deployment)["image"].partition("@")[0]  # without a digest
    return _numbers(image.rpartition("/")[2].partition(":")[2])


def install(
    api: ObjectApi,
    controller: Controller,
    *,
    pinned: bool,
    hosts: int = 0,
    load: Callable[[list[str]], None] = lambda images: None,
    source: str | None = None,
    pause: Pause = time.sleep,
) -> None:
    """Apply a controller's manifest and wait until it answers.

    `pinned`: it runs on the control plane, which outlives the slices' nodes.
    `hosts`: number of hosts it manages.
    `load`: called first with its images.
    `source`: path or https URL of another manifest.
    A newer version, or one of another tool that is not older, is only awaited: the manifest would be a downgrade.
    Raises ConflictError if another manager owns a field, TimedOutError if it does not become ready.
    """
    if _is_only_awaited(api, controller):
        wait_until_ready(api, controller, pause=pause)
        return
    objects = prepare(read_manifest(controller, source), pinned=pinned, hosts=hosts)
    load([item["image"] for obj in objects if obj["kind"] == "Deployment" for item in _containers(obj)])
    for obj in objects:
        api.apply(obj)
    wait_until_ready(api, controller, pause=pause)


def _is_only_awaited(api: ObjectApi, controller: Controller) -> bool:
    try:
        deployment = api.get("Deployment", controller.deployment, controller.namespace)
    except NotFoundError:
        return False
    have, version = version_of(deployment), _numbers(controller.version)
    return not have or have > version or (have == version and not _is_ours(deployment))


def source_problems(options: ControllerOptions) -> list[str]:
    """Return the problems of the manifests' sources, one line each."""
    return [
        problem
        for controller in CONTROLLERS
        for problem in release_manifest.problems_of(
            controller.name, options.manifest_of(controller.name) or controller.url, pinned=controller.sha256
        )
    ]


def read_manifest(controller: Controller, source: str | None = None) -> list[Obj]:
    """Return a release's objects, or those of another manifest.

    Raises XpkError if the manifest is unavailable or differs from the pinned one.
    """
    hint = f"download it elsewhere, and pass its path with --{controller.name.lower()}-manifest"
    return release_manifest.read_objects(controller.name, source or controller.url, hint=hint, pinned=controller.sha256)


def prepare(objects: list[Obj], *, pinned: bool, hosts: int = 0) -> list[Obj]:
    """Return a release's objects as applied: in a safe order, for JobSets only, pinned if requested.

    `hosts`: number of hosts it manages; its resources may grow with them.
    A pinned controller shares its machine with the API server, so it must not exit whenever that machine is busy.
    """
    for obj in objects:
        if obj["kind"] == "Deployment":
            _place(obj, pinned=pinned)
            enlarge(obj, hosts)
        elif obj["kind"] == "ConfigMap" and CONFIG in obj.get("data", {}):
            obj["data"][CONFIG] = _configured(obj["data"][CONFIG], pinned=pinned)
        elif obj["kind"].endswith("WebhookConfiguration"):
            obj["webhooks"] = [limited(hook) for hook in obj["webhooks"] if _is_wanted(hook)]
    _stamp(objects)

    def rank(obj: Obj) -> int:
        return _FIRST.index(obj["kind"]) if obj["kind"] in _FIRST else 10 if obj["kind"] in _LAST else 5

    return sorted(objects, key=rank)


def wait_until_ready(
    api: ObjectApi, controller: Controller, *, pause: Pause = time.sleep, seconds: float = _READY_SECONDS
) -> None:
    """Wait until the controller runs and its webhooks accept xpk's objects. Raises TimedOutError."""
    waited, reason, poll = 0.0, "", _FIRST_POLL_SECONDS
    while True:
        try:
            if _runs(api.get("Deployment", controller.deployment, controller.namespace)):
                for probe in _probes(controller):
                    api.create(probe, dry_run=True)
                return
            reason = _not_ready_reason(api, controller)
        except (AuthorizationError, UsageError):
            raise
        except XpkError as error:  # its webhook has no endpoint or no certificate yet
            reason = error.message
        if waited >= seconds:
            raise TimedOutError(
                f"{controller.name} does not answer after {seconds:.0f} s: {reason}",
                hint=f"`kubectl get events -n {controller.namespace}` shows more; run the same command again to "
                "continue",
            )
        pause(poll)
        waited += poll
        poll = min(_POLL_SECONDS, 1.5 * poll)


def _place(deployment: Obj, *, pinned: bool) -> None:
    pod = deployment["spec"]["template"]["spec"]
    for container in pod["containers"]:
        container["imagePullPolicy"] = "IfNotPresent"  # release tags do not move
        if pinned and "livenessProbe" in container:
            container["livenessProbe"] |= {"timeoutSeconds": _PATIENT_SECONDS}
    if pinned:
        pod["nodeSelector"] = {**pod.get("nodeSelector", {}), CONTROL_PLANE: ""}
        pod["tolerations"] = [*pod.get("tolerations", []), {"key": CONTROL_PLANE, "operator": "Exists"}]


def _stamp(objects: list[Obj]) -> None:
    """Restart a controller when its configuration changes, which it reads only at start."""
    texts = "".join(obj["data"][CONFIG] for obj in objects if obj["kind"] == "ConfigMap" and CONFIG in obj["data"])
    for obj in objects:
        if texts and obj["kind"] == "Deployment":
            meta = obj["spec"]["template"].setdefault("metadata", {})
            meta["annotations"] = {**meta.get("annotations", {}), names.CONFIG_ANNOTATION: _digest(texts)}


def _configured(text: str, *, pinned: bool) -> str:
    """Return a controller's configuration with the settings that xpk needs."""
    config: dict[str, Any] = yaml.safe_load(text)
    if pinned:
        # It has one replica. With leader election, it would exit after 10 s without an answer of the API
        # server; after several exits the kubelet delays its restart for up to 5 minutes.
        config["leaderElection"] = {**config.get("leaderElection", {}), "leaderElect": False}
    for controller in CONTROLLERS:
        if config["apiVersion"].startswith(f"config.{controller.name.lower()}."):
            config = configured(config, controller.gate)
    return yaml.safe_dump(config, sort_keys=False)


def _is_wanted(webhook: Obj) -> bool:
    """Return whether a webhook handles kinds that xpk uses; Kueue's others would be called for every pod in vain."""
    groups = {group for rule in webhook["rules"] for group in rule["apiGroups"]}
    ours = all(group.endswith(".x-k8s.io") and group.split(".")[0] in ("jobset", "kueue") for group in groups)
    return ours or "objectSelector" in webhook  # JobSet's own, which handle only pods of JobSets


def _is_stale(api: ObjectApi, controller: Controller, deployment: Obj) -> bool:
    """Return whether a controller started with another configuration than the current one.

    This happens if an upgrade was interrupted between the two.
    """
    began = (deployment["spec"]["template"].get("metadata", {}).get("annotations") or {}).get(names.CONFIG_ANNOTATION)
    if not began:
        return False
    try:
        configmap = api.get("ConfigMap", controller.config_map, deployment["metadata"]["namespace"])
    except (NotFoundError, AuthorizationError):
        return False
    changed_by_others = any(
        entry.get("manager") != MANAGER for entry in configmap["metadata"].get("managedFields") or []
    )
    return not changed_by_others and began != _digest(configmap.get("data", {}).get(CONFIG, ""))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _is_ours(deployment: Obj) -> bool:
    """Return whether xpk applied it."""
    managers = deployment["metadata"].get("managedFields") or []
    return any(entry.get("manager") == MANAGER and entry.get("operation") == "Apply" for entry in managers)


def _runs(deployment: Obj) -> bool:
    status = deployment.get("status", {})
    current: bool = status.get("observedGeneration", 0) >= deployment["metadata"].get("generation", 0)
    replicas = max(1, deployment["spec"].get("replicas", 1))  # with 0 it was stopped by someone
    return current and bool(min(status.get("updatedReplicas", 0), status.get("availableReplicas", 0)) >= replicas)


def _not_ready_reason(api: ObjectApi, controller: Controller) -> str:
    """Return why its pods are not ready."""
    deployment = api.get("Deployment", controller.deployment, controller.namespace)
    if deployment["spec"].get("replicas") == 0:
        return f"Deployment {controller.deployment} has 0 replicas: `kubectl scale` it to 1"
    for pod in api.list("Pod", controller.namespace):
        status = pod.get("status", {})
        for container in status.get("containerStatuses", []):
            waiting = container.get("state", {}).get("waiting")
            if waiting:
                return f"{waiting.get('reason', 'waiting')} {waiting.get('message', '')}".strip()
        for condition in status.get("conditions", []):
            if condition["status"] == "False" and condition.get("message"):
                return str(condition["message"])
    return "its pod is not ready"


def _probes(controller: Controller) -> list[Obj]:
    """Return objects that are accepted only when the controller's webhooks answer. None of them is stored."""
    jobset: Obj = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "xpk-probe", "namespace": "default"},
        "spec": {"suspend": True, "replicatedJobs": [{"name": "none", "template": _no_job()}]},
    }
    if controller is JOBSET:
        return [jobset]
    jobset["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": names.QUEUE}
    flavor = {"apiVersion": "kueue.x-k8s.io/v1beta2", "kind": "ResourceFlavor", "metadata": {"name": "xpk-probe"}}
    return [flavor, jobset]


def _no_job() -> Obj:
    pod = {"restartPolicy": "Never", "containers": [{"name": "none", "image": "none"}]}
    return {"spec": {"parallelism": 1, "completions": 1, "template": {"spec": pod}}}


def _containers(deployment: Obj) -> list[Obj]:
    containers: list[Obj] = deployment["spec"]["template"]["spec"]["containers"]
    return containers


def _manager(deployment: Obj) -> Obj:
    """Return the container of the controller itself; some releases have a proxy beside it."""
    containers = _containers(deployment)
    return next((container for container in containers if container.get("name") == "manager"), containers[0])


def _numbers(text: str) -> Version:
    match = re.match(r"v?(\d+(?:\.\d+)*)", text)
    return tuple(int(part) for part in match[1].split(".")) if match else ()
