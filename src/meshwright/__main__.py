"""`python -m meshwright`, and the command `meshwright`: Ctrl-C ends it quietly from the start."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Load the command line and run it; a Ctrl-C while Python still loads it ends it with 130."""
    try:
        from meshwright.cli import main as run

        run()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
