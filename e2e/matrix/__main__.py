"""Command line of the matrix."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from e2e.harness import DrillError, Lab, own_cluster
from e2e.kind_cluster import open_place
from e2e.matrix import page, results
from e2e.matrix.catalog import FAULTS
from e2e.matrix.cell import run_cell
from e2e.matrix.fault import LOCAL, PLATFORMS, PROGRAMS
from e2e.matrix.programs import SLICES, TPU_TYPES, Programs

_PRIVATE = "XPK_MATRIX_PRIVATE"  # set once mounts and network are this command's own


def main() -> int:
    """Run the chosen cells, one after another, store their results, and write the page; return the exit code."""
    options = _options()
    if options.list:
        for fault in FAULTS.values():
            print(f"{fault.name:30} {' '.join(fault.platforms):11} {fault.description} Expected: {fault.holds}.")
        return 0
    if options.table:
        page.write()
        return 0
    if options.platform == LOCAL and os.geteuid() == 0 and _PRIVATE not in os.environ:
        _enter_private_namespaces()
    cells = [
        (fault, program)
        for program in options.program or PROGRAMS
        for fault in map(FAULTS.__getitem__, options.fault or FAULTS)
        if not fault.why_not(options.platform, program)
    ]
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # faults end, also if this command is ended
    folder, failed = Path(tempfile.mkdtemp(prefix="xpk-matrix-", dir=options.folder)), 0
    with _cluster(options.platform, folder) as lab:
        programs = Programs(lab, options.platform)
        for number, (fault, program) in enumerate(cells, 1):
            began = time.monotonic()
            try:
                outcome = run_cell(fault, programs, program, options.seed, folder / "artifacts")
            except DrillError as error:
                failed += 1
                _say(f"{number}/{len(cells)} error: {error}")
                continue
            failed += not outcome.holds
            results.write(options.platform, fault.name, program, outcome, options.seed)
            page.write()
            took = f"{time.monotonic() - began:.0f} s"
            _say(f"{number}/{len(cells)} {fault.name} {program}: {page.text(page.facts(outcome), fault)} ({took})")
    if not failed:
        shutil.rmtree(folder, ignore_errors=True)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m e2e.matrix", description="Inject every kind of fault into a run.")
    parser.add_argument("--platform", choices=PLATFORMS, default=LOCAL, help="where the hosts run [default: local]")
    parser.add_argument("--program", choices=PROGRAMS, action="append", help="program; may be repeated [default: all]")
    parser.add_argument(
        "--fault", choices=list(FAULTS), action="append", metavar="FAULT", help="kind of fault; may be repeated"
    )
    parser.add_argument("--seed", type=int, default=1, help="chooses hosts and delays [default: 1]")
    parser.add_argument("--folder", type=Path, help="where the clusters' files are written [default: $TMPDIR]")
    parser.add_argument("--list", action="store_true", help="list the kinds of faults")
    parser.add_argument("--table", action="store_true", help="only write docs/chaos.md from the stored results")
    return parser.parse_args()


@contextmanager
def _cluster(platform: str, folder: Path) -> Iterator[Lab]:
    """Yield the lab of a new cluster, which is deleted at the end."""
    if platform == LOCAL:
        with own_cluster(folder, "matrix", TPU_TYPES[LOCAL], SLICES) as lab:
            yield lab
        return
    kept = os.environ.get("XPK_E2E_KEEP")  # as e2e/conftest.py: the next invocation goes on with the cluster
    place = open_place(Path(kept).absolute() if kept else folder, Path(kept).name if kept else "matrix")
    try:
        place.xpk(*place.create)
        place.clear()
        yield place.lab
    finally:
        if not kept:
            place.remove()


def _enter_private_namespaces() -> None:
    """Start again with mounts and a network of its own: faults of disks and links reach nothing else here."""
    ready = 'ip link set lo up && exec "$@"'
    argv = ["unshare", "--mount", "--net", "sh", "-c", ready, "sh", sys.executable, "-m", "e2e.matrix", *sys.argv[1:]]
    os.execvpe(argv[0], argv, os.environ | {_PRIVATE: "1"})  # noqa: S606  # this command again


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except DrillError as error:
        _say(f"error: {error}")
        sys.exit(1)
