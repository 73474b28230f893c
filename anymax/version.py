"""The version of the package, apart from everything that imports torch."""

__version__ = "0.1.0"
