"""Shell completion of clusters, workloads, types, priorities, queues, namespaces and contexts.

The shell blocks on the answer and would show any message in the middle of a command line. Each function returns
within a few seconds, with no values if the cluster or a file cannot be read.
"""

from __future__ import annotations

import functools
import logging
import signal
from collections.abc import Callable, Iterable

import click
from click.shell_completion import CompletionItem

from xpk.api.base import Objs

Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]
_SECONDS = 3.0  # a person waits no longer for a completion


def completer(values: Callable[[click.Context], Iterable[str]]) -> Complete:
    """Return click's completion callback for values that begin with the typed text; errors complete nothing."""

    @functools.wraps(values)
    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the values that begin with `incomplete`."""
        logging.disable()
        former = signal.signal(signal.SIGALRM, _give_up)
        signal.setitimer(signal.ITIMER_REAL, _SECONDS)
        try:
            return [CompletionItem(value) for value in sorted(set(values(ctx))) if value.startswith(incomplete)]
        except Exception:  # a traceback would garble the command line
            return []
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, former)
            logging.disable(logging.NOTSET)

    return complete


@completer
def clusters(ctx: click.Context) -> Iterable[str]:
    """Return the names of known clusters."""
    from xpk.capacity.provider import cluster_names

    return cluster_names()


@completer
def usage_columns(ctx: click.Context) -> Iterable[str]:
    """Return the columns of `xpk usage --by`."""
    from xpk.jobs.usage.figures import COLUMNS

    return COLUMNS


@completer
def workloads(ctx: click.Context) -> Iterable[str]:
    """Return the names of workloads on the chosen cluster; `create` has none to complete."""
    if ctx.command.name == "create":
        return ()
    return _names(ctx, "JobSet", str(ctx.params.get("namespace") or "default"))


@completer
def queues(ctx: click.Context) -> Iterable[str]:
    """Return the names of queues."""
    return _names(ctx, "LocalQueue", None)


@completer
def namespaces(ctx: click.Context) -> Iterable[str]:
    """Return the namespaces that have a queue."""
    return (obj["metadata"]["namespace"] for obj in _objects(ctx, "LocalQueue", None))


@completer
def accelerator_types(ctx: click.Context) -> Iterable[str]:
    """Return the names of accelerator types."""
    from xpk.model.accelerators import all_shapes

    return (shape.name for shape in all_shapes() if shape.name != f"{shape.family}-{shape.topology}")


@completer
def priorities(ctx: click.Context) -> Iterable[str]:
    """Return the names of priorities."""
    from xpk.model.names import PRIORITIES

    return PRIORITIES


@completer
def providers(ctx: click.Context) -> Iterable[str]:
    """Return the providers that create clusters."""
    return ("gke", "kind", "local")


@completer
def contexts(ctx: click.Context) -> Iterable[str]:
    """Return the contexts of the user's kubeconfig."""
    from xpk.api.kubefile import context_names

    return context_names()


def _give_up(*_: object) -> None:
    raise TimeoutError


def _names(ctx: click.Context, kind: str, namespace: str | None) -> Iterable[str]:
    return (obj["metadata"]["name"] for obj in _objects(ctx, kind, namespace))


def _objects(ctx: click.Context, kind: str, namespace: str | None) -> Objs:
    from xpk.capacity.provider import provider_of
    from xpk.cli.target import the_cluster

    with ctx:
        place = the_cluster(ctx.params.get("cluster"))
    return list(provider_of(place).connect(place).list(kind, namespace))
