"""Print a pin for pip of a package's newest build without CUDA, if the package index has one: `torch==2.13.0+cpu`.

    python tools/cpu_build.py torch >pins.txt

Such builds have "+cpu" in their version. Without one nothing is printed, and pip chooses.
"""

from __future__ import annotations

import re
import subprocess
import sys


def main(package: str) -> None:
    """Print the pin, or nothing."""
    command = [sys.executable, "-m", "pip", "index", "versions", package]
    found = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    build = re.search(r"[\d.]+\+cpu", found)  # pip lists the newest first
    if build:
        print(f"{package}=={build.group()}")


if __name__ == "__main__":
    main(sys.argv[1])
