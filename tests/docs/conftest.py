"""What builds the site is tested where it stands, beside the pages."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "docs" / "site"))
