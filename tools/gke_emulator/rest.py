"""The parts of Compute Engine's REST API that clusters need, and the Cloud Quotas API's quotaInfos; JSON over HTTP."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tools.gke_emulator.clock import rfc3339
from tools.gke_emulator.compute import Resource
from tools.gke_emulator.networks import COLLECTIONS, SECONDS, check_delete, check_insert
from tools.gke_emulator.plane import Plane
from tools.gke_emulator.record import Record
from tools.gke_emulator.refusal import Refusal

_PLACE = r"projects/(?P<project>[^/]+)"
_ZONE, _REGION = rf"{_PLACE}/zones/(?P<zone>[^/]+)", rf"{_PLACE}/regions/(?P<region>[^/]+)"
_KINDS = {"resourcePolicies": "compute#resourcePolicy", "subnetworks": "compute#subnetwork",
          "networks": "compute#network", "firewalls": "compute#firewall",
          "reservations": "compute#reservation"}  # fmt: skip
Route = tuple[str, str, Callable[..., Any]]


class Rest:
    """The HTTP server."""

    def __init__(self, plane: Plane, record: Record) -> None:
        self.plane, self.record = plane, record
        self._ready: dict[
            str, float
        ] = {}  # when resources that are being created will exist, and operations will be done
        rest = self

        class Handler(BaseHTTPRequestHandler):
            """One connection."""

            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True  # a body after its headers would wait 40 ms for an acknowledgment

            def do_GET(self) -> None:
                rest.answer(self)

            do_POST = do_PATCH = do_DELETE = do_GET

            def log_message(self, format: str, *args: object) -> None:
                """Do nothing: calls are recorded."""

        self._server = ThreadingHTTPServer(("127.0.0.1", plane.options.http_port), Handler)
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="gke-rest", daemon=True)

    def start(self) -> None:
        """Start to serve."""
        self._thread.start()

    def stop(self) -> None:
        """Stop serving."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def answer(self, connection: BaseHTTPRequestHandler) -> None:
        """Respond to one request."""
        parts = urlsplit(connection.path)
        path = re.sub(r"^/(compute/)?v1/", "", parts.path)
        length = int(connection.headers.get("Content-Length") or 0)
        content = connection.rfile.read(length)
        method = f"{connection.command} {path}"
        asked: Resource = {"query": dict(parse_qsl(parts.query)), "body": content.decode(errors="replace")}
        with self.record.call(method, asked, self.plane.operations.running()) as call:
            try:
                asked["body"] = _parsed(content)
                status, value = 200, self._result(connection.command, path, asked["body"], asked["query"], method)
            except Refusal as refusal:
                call.code, status = refusal.code, refusal.http
                reason = {404: "notFound", 409: "alreadyExists", 429: "rateLimitExceeded"}.get(
                    status, refusal.code.lower()
                )
                error = {"message": refusal.message, "domain": "global", "reason": reason}
                value = {
                    "error": {"code": status, "message": refusal.message, "errors": [error], "status": refusal.code}
                }
        answer = json.dumps(value).encode()
        connection.send_response(status)
        connection.send_header("Content-Type", "application/json; charset=UTF-8")
        connection.send_header("Content-Length", str(len(answer)))
        connection.end_headers()
        connection.wfile.write(answer)

    def _result(self, command: str, path: str, body: Resource, query: Resource, method: str) -> Any:
        fault = self.plane.faults.call(method)
        if fault and not fault.applied:
            raise Refusal(fault.code, fault.message)
        for verb, pattern, function in self._routes():
            match = re.fullmatch(pattern, path)
            if match and verb == command:
                with self.plane.store.together():
                    named = match.groupdict()
                    if project := named.get("project"):
                        self.plane.compute.network(project, f"projects/{project}/global/networks/default")
                    result = function(**named, **({"body": body} if command in ("POST", "PATCH") and body else {}))
                    value = _filtered(json.loads(json.dumps(result)), query)
                if fault:
                    raise Refusal(fault.code, fault.message)
                return value
        raise Refusal("UNIMPLEMENTED", f"the emulator does not answer {method}")

    def _routes(self) -> list[Route]:
        compute, named = self.plane.compute, "(?P<name>[^/]+)"
        zones = [zone for region in self.plane.options.locations for zone in self.plane.options.zones(region)]
        held = "(?P<path>projects/(?P<project>[^/]+)/(?:regions/[^/]+|zones/[^/]+|global)"
        return [
            ("GET", _PLACE, compute.project),
            ("GET", f"{_PLACE}/regions/{named}", compute.region),
            ("GET", f"{_PLACE}/regions", lambda project: _items(
                compute.region(project, item) for item in self.plane.options.locations)),
            ("GET", f"{_PLACE}/zones/{named}", compute.zone),
            ("GET", f"{_PLACE}/zones", lambda project: _items(compute.zone(project, zone) for zone in zones)),
            ("GET", f"{_ZONE}/machineTypes/{named}", compute.machine_type),
            ("GET", f"{_ZONE}/machineTypes", lambda project, zone: _items(compute.machine_types(project, zone))),
            ("GET", f"{_ZONE}/instanceGroupManagers/{named}", compute.group),
            ("POST", f"{_ZONE}/instanceGroupManagers/{named}/listManagedInstances", lambda project, zone, name: {
                "managedInstances": compute.managed_instances(project, zone, name)}),
            ("GET", f"{_ZONE}/instances/{named}", compute.instance),
            ("POST", f"{_ZONE}/instances/{named}/(?P<verb>stop|start)", self._switch),
            ("GET", f"{_ZONE}/instances", lambda project, zone: _items(compute.instances(project, zone))),
            ("GET", held + "/subnetworks/[^/]+)", lambda path, project: compute.subnetwork_shown(path)),
            ("GET", held + "/reservations/[^/]+)", lambda path, project: compute.reservation(path)),
            ("GET", held + "/reservations)", lambda path, project: _items(
                compute.reservation(item) for item in compute.under(path))),
            ("GET", held + "/(?:resourcePolicies|networks|firewalls)/[^/]+)",
             lambda path, project: compute.stored(path)),
            ("GET", held + "/reservations/[^/]+/reservationBlocks/[^/]+(?:/reservationSubBlocks/[^/]+)?)",
             lambda path, project: {"resource": compute.stored(path)}),
            ("GET", held + "/(?:resourcePolicies|networks|subnetworks|firewalls|reservations/.*Blocks))",
             lambda path, project: _items(compute.stored(item) for item in compute.under(path))),
            ("POST", held + "/(?:resourcePolicies|networks|subnetworks|firewalls|reservations))", self._insert),
            ("PATCH", held + "/subnetworks/[^/]+)", self._patch),
            ("POST", held + "/subnetworks/[^/]+)/expandIpCidrRange", self._patch),
            ("DELETE", held + "/(?:resourcePolicies|networks|subnetworks|firewalls|reservations)/[^/]+)", self._delete),
            ("GET", f"{_PLACE}/locations/global/services/compute.googleapis.com/quotaInfos/{named}",
             compute.quota_info),
            ("GET", held + "/operations/[^/]+)", self._progress),
            ("POST", held + "/operations/[^/]+)/wait", self._progress),
        ]  # fmt: skip

    def _insert(self, path: str, project: str, body: Resource | None = None) -> Resource:
        body = body or {}
        where = f"{path}/{body.get('name', '')}"
        if not body.get("name"):
            raise Refusal.invalid("Invalid value for field 'resource.name': ''.")
        if where in self.plane.store.compute:
            raise Refusal("ALREADY_EXISTS", f"The resource '{where}' already exists")
        collection = path.rpartition("/")[2]
        if collection in COLLECTIONS:
            check_insert(self.plane, project, collection, body, self._ready)
            self._ready[where] = self.plane.clock.now() + SECONDS[collection]
        self.plane.compute.put(where, _KINDS[collection], body)
        return self._operation(path, where, "insert")

    def _patch(self, path: str, project: str, body: Resource | None = None) -> Resource:
        value = self.plane.compute.stored(path)
        self.plane.compute.put(path, value["kind"], value | (body or {}))
        return self._operation(path.rpartition("/")[0], path, "patch")

    def _switch(self, project: str, zone: str, name: str, verb: str, body: Resource | None = None) -> Resource:
        """Stop or start an instance immediately."""
        status, stamp = ("TERMINATED", "lastStopTimestamp") if verb == "stop" else ("RUNNING", "lastStartTimestamp")
        fields = {"status": status, stamp: rfc3339(time.time())}
        path = self.plane.compute.set_instance(project, zone, name, **fields)
        return self._operation(path.rpartition("/")[0], path, verb)

    def _delete(self, path: str, project: str) -> Resource:
        check_delete(self.plane, path)
        self.plane.compute.drop(path)
        return self._operation(path.rpartition("/")[0], path, "delete")

    def _operation(self, collection: str, target: str, kind: str) -> Resource:
        """Return an operation of Compute Engine; only those on networks take time."""
        place, _, of = collection.rpartition("/")
        name = f"operation-{len(self.plane.store.compute)}-{int(self.plane.clock.now() * 1000)}"
        link = f"https://www.googleapis.com/compute/v1/{target}"
        path = f"{place}/operations/{name}"
        self._ready[path] = self.plane.clock.now() + SECONDS.get(of, 0.0)
        self.plane.compute.put(path, "compute#operation", {"operationType": kind, "targetLink": link})
        return self._progress(path)

    def _progress(self, path: str, project: str = "", body: Resource | None = None) -> Resource:
        """Return the current state of an operation."""
        done = self._ready.get(path, 0.0) <= self.plane.clock.now()
        return self.plane.compute.stored(path) | {"status": "DONE" if done else "RUNNING", "progress": 100 * done}


def _parsed(content: bytes) -> Resource:
    try:
        return dict(json.loads(content or b"{}"))
    except (ValueError, TypeError) as error:
        raise Refusal.invalid(f"Parse Error: {error}") from error


def _filtered(value: Resource, query: Resource) -> Resource:
    """Return the items of a list; the filter `name eq PATTERN` is emulated."""
    expression = str(query.get("filter", ""))
    if not expression:
        return value
    if not expression.startswith("name eq "):
        raise Refusal("UNIMPLEMENTED", f"the emulator has no filter {expression}")
    pattern = expression.removeprefix("name eq ")
    return value | {"items": [item for item in value["items"] if re.fullmatch(pattern, item["name"])]}


def _items(resources: Any) -> Resource:
    return {"items": list(resources)}
