"""Random changes of an image's colors, in the ranges of MLPerf's reference of SSD: torchvision's ColorJitter."""

from typing import Any, NamedTuple

import numpy as np

BRIGHTNESS, CONTRAST, SATURATION = 0.125, 0.5, 0.5  # most by which a factor differs from 1
HUE = 0.05  # most by which the hue moves, as a fraction of the circle
_HUES = 256  # values of Pillow's hues


class ColorJitter(NamedTuple):
    """A change of colors: factors, the movement of the hue, and the order of the changes."""

    brightness: float
    contrast: float
    saturation: float
    hue: float
    order: tuple[str, ...] = ("brightness", "contrast", "saturation", "hue")

    def apply(self, image: Any) -> Any:
        """Return a changed copy of Pillow's image in RGB."""
        for name in self.order:
            image = _move_hue(image, self.hue) if name == "hue" else _enhance(image, name, getattr(self, name))
        return image


def draw_jitter(random: np.random.Generator) -> ColorJitter:
    """Return a random change, all parts of it uniform in their ranges, in random order."""
    brightness, contrast, saturation = (
        random.uniform(1 - most, 1 + most) for most in (BRIGHTNESS, CONTRAST, SATURATION)
    )
    jitter = ColorJitter(brightness, contrast, saturation, random.uniform(-HUE, HUE))
    return jitter._replace(order=tuple(jitter.order[n] for n in random.permutation(len(jitter.order))))


def _enhance(image: Any, name: str, factor: float) -> Any:
    """Return the image blended with black, its mean gray, or itself in gray; a factor of 1 changes nothing."""
    from PIL import ImageEnhance

    kinds = {"brightness": ImageEnhance.Brightness, "contrast": ImageEnhance.Contrast, "saturation": ImageEnhance.Color}
    return kinds[name](image).enhance(factor)


def _move_hue(image: Any, hue: float) -> Any:
    """Return the image with all hues moved along the circle of colors."""
    from PIL import Image

    moved, saturation, value = image.convert("HSV").split()
    moved = moved.point([(n + round(hue * _HUES)) % _HUES for n in range(_HUES)])
    return Image.merge("HSV", (moved, saturation, value)).convert("RGB")
