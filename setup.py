"""Builds the CPU kernels with the package; everything else is in pyproject.toml."""

import importlib.util
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

KERNELS = Path("anymax/kernels")


def load_build_module():
    """Load anymax/kernels/build.py by its path: importing the package would need torch."""
    spec = importlib.util.spec_from_file_location("build_kernels", KERNELS / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class BuildKernels(build_ext):
    """One shared library per instruction level, loaded with ctypes; without a compiler there are none."""

    def run(self):
        in_place = self.inplace or self.editable_mode
        load_build_module().build(KERNELS if in_place else Path(self.build_lib) / KERNELS)

    def get_outputs(self):
        return []

    def get_output_mapping(self):
        return {}


class AnyPythonWheel(bdist_wheel):
    """The libraries know nothing of Python: one wheel serves every version of it."""

    def get_tag(self):
        return ("py3", "none", super().get_tag()[2])


setup(
    ext_modules=[Extension("anymax.kernels.native", sources=[])],
    cmdclass={"build_ext": BuildKernels, "bdist_wheel": AnyPythonWheel},
)
