"""Packs the CUDA kernels that deploy/packages/build has put here, for the splitserve of the same version."""

from __future__ import annotations

import tomllib
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel

ROOT = Path(__file__).resolve().parents[3]
VERSION = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]


class BinaryDistribution(Distribution):
    """Has a compiled library, though setuptools does not build it."""

    def has_ext_modules(self) -> bool:
        """So the wheel is one of this platform."""
        return True


class PlatformWheel(bdist_wheel):
    """Tags the wheel for the platform but for every Python 3."""

    def get_tag(self) -> tuple[str, str, str]:
        """Wheel tag, for example ("py3", "none", "linux_x86_64")."""
        return "py3", "none", super().get_tag()[2]


setup(
    version=VERSION,
    install_requires=[f"splitserve=={VERSION}"],
    distclass=BinaryDistribution,
    cmdclass={"bdist_wheel": PlatformWheel},
)
