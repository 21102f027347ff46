"""Software bills of materials in CycloneDX JSON: of the wheel, and of the trainer's image."""

from __future__ import annotations

import hashlib
import platform
import re
import uuid
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from importlib.metadata import version

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentScope, ComponentType
from cyclonedx.model.license import LicenseExpression
from cyclonedx.model.tool import ToolRepository
from cyclonedx.output.json import JsonV1Dot6
from cyclonedx.schema import SchemaVersion
from packageurl import PackageURL

from tools.release.lock import PROJECT, LockedPackage, read_lock
from tools.release.source import Source
from xpk.model.errors import XpkError

_BASE_IMAGE = re.compile(r"^ARG BASE_IMAGE=([^\s:@]+):([^\s@]+)@sha256:([0-9a-f]{64})$", re.MULTILINE)
_TOOLS = ("cyclonedx-python-lib", "hatchling")


def wheel_sbom(source: Source, wheel: bytes) -> str:
    """Return the SBOM of the wheel: base dependencies are required, those of extras optional."""
    locks = source.repository / "requirements"
    base = {package.name for package in read_lock(locks / "base.txt")}
    project = _project(source, HashType(alg=HashAlgorithm.SHA_256, content=_sha256(wheel)))
    packages = read_lock(locks / "extras.txt")
    components = {package.name: _component(package, is_required=package.name in base) for package in packages}
    bom = _bom(source, project, f"wheel {_sha256(wheel)}", components.values())
    _register_dependencies(bom, project, packages, components)
    return _validated(bom)


def image_sbom(source: Source) -> str:
    """Return the SBOM of the trainer's image: base image and Python packages, with the trainer itself as a part.

    Packages that its build argument JAX_EXTRA=tpu adds are optional. Raises XpkError if the base image has no digest.
    """
    locks = source.repository / "requirements"
    dockerfile = (source.repository / "Dockerfile").read_text(encoding="utf-8")
    annotated = {package.name: package.required_by for package in read_lock(locks / "extras.txt")}
    image = read_lock(locks / "image.txt")
    packages = [
        replace(package, required_by=annotated.get(package.name, frozenset()))
        for package in (*image, *read_lock(locks / "tpu.txt"))
    ]
    required = {package.name for package in image}
    components = {package.name: _component(package, is_required=package.name in required) for package in packages}
    base, trainer = _base_image(dockerfile), _project(source)
    root = Component(
        name="xpk-trainer",
        version=source.version,
        type=ComponentType.CONTAINER,
        bom_ref=f"xpk-trainer@{source.version}",
    )
    content = dockerfile + "".join(f"{package.name} {package.version} {package.sha256}" for package in packages)
    bom = _bom(source, root, f"image {_sha256(content.encode())}", [base, trainer, *components.values()])
    bom.register_dependency(root, [base, trainer])
    _register_dependencies(bom, trainer, packages, components)
    return _validated(bom)


def _project(source: Source, *hashes: HashType) -> Component:
    purl = PackageURL("pypi", name=PROJECT, version=source.version)
    return Component(
        name=PROJECT,
        version=source.version,
        type=ComponentType.APPLICATION,
        bom_ref=str(purl),
        purl=purl,
        hashes=hashes,
        licenses=[LicenseExpression("Apache-2.0")],
        properties=[Property(name="commit", value=source.commit)],
    )


def _component(package: LockedPackage, *, is_required: bool) -> Component:
    """Return a locked package with the hashes of all its files: the machine decides which of them is installed."""
    purl = PackageURL("pypi", name=package.name, version=package.version)
    files = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(str(purl)),
        comment="hashes of all files of this version; one of them is installed",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in package.sha256],
    )
    return Component(
        name=package.name,
        version=package.version,
        type=ComponentType.LIBRARY,
        bom_ref=str(purl),
        purl=purl,
        scope=ComponentScope.REQUIRED if is_required else ComponentScope.OPTIONAL,
        external_references=[files],
        properties=[Property(name="environment marker", value=package.marker)] if package.marker else [],
    )


def _base_image(dockerfile: str) -> Component:
    match = _BASE_IMAGE.search(dockerfile)
    if not match:
        raise XpkError(
            "the Dockerfile's BASE_IMAGE has no digest", hint="write ARG BASE_IMAGE=NAME:TAG@sha256:DIGEST in it"
        )
    name, tag, digest = match.groups()
    purl = PackageURL("docker", name=name, version=f"sha256:{digest}", qualifiers={"tag": tag})
    return Component(
        name=name,
        version=tag,
        type=ComponentType.CONTAINER,
        bom_ref=str(purl),
        purl=purl,
        description="Base image, identified by its digest. The packages of its distribution are not listed.",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest)],
    )


def _register_dependencies(
    bom: Bom, project: Component, packages: Iterable[LockedPackage], components: Mapping[str, Component]
) -> None:
    """Record the packages that each package, and the project, requires."""
    required: dict[str, list[Component]] = {name: [] for name in (PROJECT, *components)}
    for package in packages:
        for parent in package.required_by & required.keys():
            required[parent].append(components[package.name])
    for name, dependencies in required.items():
        bom.register_dependency(project if name == PROJECT else components[name], dependencies)


def _bom(source: Source, root: Component, content: str, components: Iterable[Component]) -> Bom:
    """Return an SBOM with the date of the commit and a serial number that follows from the content."""
    tools = ToolRepository(
        components=[Component(name=name, version=version(name), type=ComponentType.APPLICATION) for name in _TOOLS]
    )
    made_with = [
        Property(name="build:python", value=platform.python_version()),
        Property(name="build:zlib", value=zlib.ZLIB_RUNTIME_VERSION),
    ]
    moment = datetime.fromtimestamp(source.seconds, UTC)
    metadata = BomMetaData(component=root, timestamp=moment, tools=tools, properties=made_with)
    return Bom(
        components=components,
        serial_number=uuid.uuid5(uuid.NAMESPACE_URL, f"{PROJECT} {source.version} {source.commit} {content}"),
        metadata=metadata,
    )


def _validated(bom: Bom) -> str:
    """Return the text of an SBOM. Raises XpkError if it does not follow the schema."""
    text = JsonV1Dot6(bom).output_as_string(indent=2) + "\n"
    validate_sbom(text)
    return text


def validate_sbom(text: str) -> None:
    """Raise XpkError if a text does not follow CycloneDX's JSON schema, version 1.6."""
    from cyclonedx.validation.json import JsonStrictValidator  # takes two seconds: parsers of all formats are made

    error = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)
    if error:
        message = " ".join(str(error.data.message).split())[:300]
        raise XpkError(f"the SBOM does not follow the schema: {message}", hint="correct tools/release/sbom.py")


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
