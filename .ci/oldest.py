"""Print the oldest versions that pyproject.toml allows, as constraints for pip."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parents[1] / "pyproject.toml"
for wanted in tomllib.loads(PROJECT.read_text())["project"]["dependencies"]:
    name, oldest = re.fullmatch(r"([\w-]+)>=([\d.]+)(?:,<[\d.]+)?", wanted).groups()
    print(f"{name}=={oldest}")
