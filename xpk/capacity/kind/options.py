"""Options of kind clusters."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from xpk.capacity.options import ADAPT, CREATE, IMAGE, ControllerOptions, parse_text, parse_whole
from xpk.model.options import option

_OF_IMAGES = (CREATE, ADAPT)


@dataclass(frozen=True, slots=True, kw_only=True)
class KindOptions(ControllerOptions):
    """Mapping of slices to nodes, and images. `nodes_per_slice` divides a slice's hosts; spare slices have no quota."""

    provider: ClassVar[str] = "kind"
    nodes_per_slice: int = option(
        1,
        metavar="N",
        help="kind: number of nodes for the hosts of a slice. [default: 1]",
        prefix="XPK_KIND_",
        parse=parse_whole((1, None)),
        limits=(1, None),
    )
    spare_slices: int = option(
        0,
        metavar="N",
        help="kind: number of slices beyond the quota, as spares. [default: 0]",
        prefix="XPK_KIND_",
        parse=parse_whole((0, None)),
        limits=(0, None),
    )
    node_image: str | None = option(
        None,
        metavar="IMAGE",
        help="kind: image of the nodes.",
        prefix="XPK_KIND_",
        variables=("KIND_NODE_IMAGE",),
        parse=parse_text,
    )
    retain: bool = option(False, help="kind: keep the nodes if the creation fails.", prefix="XPK_KIND_")
    trainer_image: str | None = option(
        None,
        metavar="IMAGE",
        help="kind, gke: image of the bundled trainer. [default on kind: built locally]",
        prefix="XPK_",
        commands=_OF_IMAGES,
        parse=parse_text,
    )
    base_image: str | None = option(
        None,
        metavar="IMAGE",
        help="kind: base image of the trainer's image.",
        prefix="XPK_",
        hidden=("XPK_E2E_PYTHON_IMAGE",),
        commands=(*_OF_IMAGES, IMAGE),
        parse=parse_text,
    )
    image_archives: tuple[Path, ...] = option(
        (),
        "--image-archive",
        metavar="FILE",
        help="kind: `docker save` archive of images to load into the nodes.",
        variables=("XPK_KIND_IMAGE_ARCHIVES",),
    )
