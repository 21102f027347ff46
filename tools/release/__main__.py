"""`make release`: write wheel, sdist, SBOMs, provenance and SHA256SUMS of the commit to dist/. Nothing is uploaded."""

from __future__ import annotations

import argparse
import hashlib
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.release.packages import build_packages
from tools.release.provenance import provenance
from tools.release.sbom import image_sbom, wheel_sbom
from tools.release.source import find_source
from xpk.model.errors import XpkError

ROOT = Path(__file__).resolve().parents[2]
SUMS = "SHA256SUMS"


def write_release(repository: Path, output: Path, tag: str = "") -> list[str]:
    """Write a release of the checked-out commit to a folder and return its files' names, SHA256SUMS last.

    Raises XpkError if the commit cannot be released, if its build is not reproducible, or if the folder has others.
    """
    source = find_source(repository, tag)
    files = build_packages(source)
    (wheel,) = (content for name, content in files.items() if name.endswith(".whl"))
    files[f"xpk_multislice-{source.version}.cdx.json"] = wheel_sbom(source, wheel).encode()
    files[f"xpk_trainer_image-{source.version}.cdx.json"] = image_sbom(source).encode()
    files[f"xpk_multislice-{source.version}.provenance.json"] = provenance(source, files).encode()
    files[SUMS] = "".join(
        f"{hashlib.sha256(content).hexdigest()}  {name}\n" for name, content in sorted(files.items())
    ).encode()
    _write(output, files)
    return list(files)


def _write(output: Path, files: Mapping[str, bytes]) -> None:
    output.mkdir(parents=True, exist_ok=True)
    others = sorted(file.name for file in output.iterdir() if file.name not in files)
    if others:
        raise XpkError(f"'{output}' has files of another release: {others[0]}", hint=f"rm -r '{output}'")
    for name, content in files.items():
        (output / name).write_bytes(content)


def main(arguments: Sequence[str]) -> int:
    """Write a release and return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tools.release", description=__doc__)
    parser.add_argument("--output", type=Path, default=ROOT / "dist", help="Folder. [default: dist]")
    parser.add_argument("--repository", type=Path, default=ROOT, help="Checkout. [default: this one]")
    parser.add_argument("--tag", default="", help="Tag that must be of the commit's version, such as v1.2.0.")
    options = parser.parse_args(arguments)
    try:
        names = write_release(options.repository, options.output, options.tag)
    except XpkError as error:
        print(f"error: {error.message}\n  hint: {error.hint}", file=sys.stderr)
        return error.exit_code
    print(*(f"{options.output / name}" for name in names), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
