"""The program: ``tallymill``, or ``python -m tallymill``."""

from __future__ import annotations

import signal
import sys


def main() -> None:
    """Run the command line. Who stops it while it is still being loaded gets a word, and no traceback."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        from tallymill import cli
    except KeyboardInterrupt:
        sys.exit("stopped")
    cli.main()


if __name__ == "__main__":
    main()
