"""Rendering of specs as objects for an API server, through the templates in `manifests/`."""

from xpk.render.network_policy import render_network_policy
from xpk.render.objects import (
    render_image_cache,
    render_kind,
    render_local_queue,
    render_priorities,
    render_priority_limit,
    render_queue,
    render_queues,
    render_workload,
    to_yaml,
)
from xpk.render.peer_secret import render_peer_secret

__all__ = [
    "render_image_cache",
    "render_kind",
    "render_local_queue",
    "render_network_policy",
    "render_peer_secret",
    "render_priorities",
    "render_priority_limit",
    "render_queue",
    "render_queues",
    "render_workload",
    "to_yaml",
]
