"""What each extra adds to an installation: packages, and megabytes on the disk without byte-code.

    python -m tests.package.extras

Measured on the packages of this environment, so an extra counts only where all of it is installed, as `make test` does.
"""

from collections.abc import Iterator
from importlib.metadata import Distribution, PackageNotFoundError, distribution

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def closure(name: str, extra: str = "") -> dict[str, Distribution]:
    """A package and all it requires, by name; with an extra, what that requires too."""
    found: dict[str, Distribution] = {}
    waiting = [(name, extra)]
    while waiting:
        name, extra = waiting.pop()
        if canonicalize_name(name) not in found or extra:
            found[canonicalize_name(name)] = distribution(name)
            waiting += requirements(name, extra)
    return found


def requirements(name: str, extra: str) -> Iterator[tuple[str, str]]:
    """What a package requires here, each with the extras it is required with."""
    for line in distribution(name).requires or []:
        requirement = Requirement(line)
        if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
            yield from ((requirement.name, wanted) for wanted in ("", *requirement.extras))


def size(package: Distribution) -> int:
    """Bytes of the files that a package installed, byte-code aside."""
    files = [package.locate_file(file) for file in package.files or [] if file.suffix != ".pyc"]
    return sum(file.stat().st_size for file in files if file.is_file())


def main() -> None:
    base = closure("anymax")
    print(f"anymax: {len(base)} packages, {sum(map(size, base.values())) / 1e6:.0f} MB")
    for extra in distribution("anymax").metadata.get_all("Provides-Extra"):
        try:
            added = {name: one for name, one in closure("anymax", extra).items() if name not in base}
        except PackageNotFoundError as error:
            print(f"{extra}: not measured, {error.name} is not installed")
            continue
        print(f"{extra}: {len(added)} packages, {sum(map(size, added.values())) / 1e6:.0f} MB")


if __name__ == "__main__":
    main()
