"""`python -m tools.gke_emulator`: an emulator for experiments, which runs until it is interrupted."""

from __future__ import annotations

import argparse
import json
import signal
import threading
from pathlib import Path
from typing import Any

from tools.gke_emulator.emulator import GkeEmulator
from tools.gke_emulator.faults import fault_of
from tools.gke_emulator.options import Options


def main(arguments: list[str] | None = None) -> None:
    """Run an emulator; its addresses are printed as environment variables."""
    parser = argparse.ArgumentParser(prog="python -m tools.gke_emulator", description=__doc__)
    parser.add_argument("--port", type=int, default=0, help="of gRPC; 0: a free one")
    parser.add_argument("--http-port", type=int, default=0, help="of Compute Engine; 0: a free one")
    parser.add_argument("--state", type=Path, help="folder that keeps everything between two runs")
    parser.add_argument("--speed", type=float, default=60.0, help="emulated seconds in a real one (default: 60)")
    parser.add_argument("--api-server", type=Path, help="kubeconfig of a real API server behind the clusters")
    parser.add_argument("--no-kwok", action="store_true", help="nodes without KWOK's annotation")
    parser.add_argument("--operations", type=int, help="operations that may run at once on a cluster")
    parser.add_argument("--quota", action="append", default=[], metavar="METRIC=LIMIT", help="in each region")
    parser.add_argument("--stock", action="append", default=[], metavar="MACHINE=COUNT", help="machines that there are")
    parser.add_argument("--fault", action="append", default=[], type=_fault, metavar="JSON",
                        help='such as {"kind": "pool", "outcome": "stockout", "nth": [2]}')  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the faults that have a probability")
    flags = parser.parse_args(arguments)
    options = Options(
        state=flags.state, port=flags.port, http_port=flags.http_port, speed=flags.speed, seed=flags.seed,
        api_server=flags.api_server, kwok=not flags.no_kwok, concurrent_operations=flags.operations,
        quotas=_numbers(parser, flags.quota), faults=tuple(flags.fault),
        stock={name: int(count) for name, count in _numbers(parser, flags.stock).items()},
    )  # fmt: skip
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    with GkeEmulator(options) as gke:
        print(f"export XPK_GKE_ENDPOINT={gke.grpc_target} XPK_COMPUTE_ENDPOINT={gke.http_url}", flush=True)
        if gke.token:
            print(f"export XPK_GKE_TOKEN={gke.token}", flush=True)
        ended.wait()


def _fault(text: str) -> Any:
    try:
        return fault_of(json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise argparse.ArgumentTypeError(f"{error}: {text}") from error


def _numbers(parser: argparse.ArgumentParser, texts: list[str]) -> dict[str, float]:
    numbers = {}
    for text in texts:
        name, _, number = text.partition("=")
        try:
            numbers[name] = float(number)
        except ValueError:
            parser.error(f"NAME=NUMBER is wanted, not {text}")
    return numbers


if __name__ == "__main__":
    main()
