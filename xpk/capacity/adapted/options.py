"""Options of clusters that xpk did not create."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from xpk.capacity.options import ADAPT, ControllerOptions, parse_text
from xpk.model.options import option


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptedOptions(ControllerOptions):
    """Manifests of the controllers, and how workloads run on the cluster."""

    provider: ClassVar[str] = "adapted"
    output_root: str | None = option(
        None,
        metavar="PLACE",
        help="Output root of workloads: gs://BUCKET/PREFIX, or a folder shared by the nodes.",
        commands=(ADAPT,),
        parse=parse_text,
    )
    trainer_image: str | None = option(
        None,
        metavar="IMAGE",
        help="Image of the bundled trainer, in a registry that nodes can reach.",
        commands=(ADAPT,),
        parse=parse_text,
    )
