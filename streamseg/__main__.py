"""The program: python -m streamseg, or streamseg."""

import os
import sys

from streamseg.early import start_early


def run_program() -> None:
    """Run the command line; what it will need from a GPU starts before it is imported."""
    try:
        start_early(sys.argv[1:])
        from streamseg import cli
    except KeyboardInterrupt:
        os._exit(130)  # a thread may be inside the driver, which the end of Python does not wait for
    cli.run_program()


if __name__ == "__main__":
    run_program()
