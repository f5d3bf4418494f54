"""`python -m elephas_like`: see `elephas_like.console`."""

from __future__ import annotations

import sys

from elephas_like.console.command import main

if __name__ == "__main__":
    sys.exit(main())
