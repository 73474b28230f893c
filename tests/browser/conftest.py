"""A browser that opens pages; where there is none its tests are skipped, or fail where it must be there."""

import os
import shutil
from collections.abc import Iterator

import pytest

# Set where the tests of a browser must not be skipped.
REQUIRED = "ANYMAX_TEST_BROWSER"


def why_missing() -> str | None:
    """Why no browser can be driven; None where one can."""
    if shutil.which("chromium") is None:
        return "there is no chromium; on Debian: apt-get install chromium"
    try:
        import playwright.sync_api  # noqa: F401
    except ImportError:
        return "playwright is not installed; make test installs it"
    return None


@pytest.fixture(scope="session")
def browser() -> Iterator:
    reason = why_missing()
    if reason is not None and os.environ.get(REQUIRED):
        pytest.fail(f"{REQUIRED} is set, but {reason}")
    if reason is not None:
        pytest.skip(reason)
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        # Its sandbox does not start for root, as in containers.
        started = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield started
        started.close()
