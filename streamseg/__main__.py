"""The program: python -m streamseg, or streamseg."""

import sys

from streamseg.early import start_early


def run_program() -> None:
    """Run the command line; what it will need from a GPU starts before it is imported."""
    start_early(sys.argv[1:])

    from streamseg.cli import run_program

    run_program()


if __name__ == "__main__":
    run_program()
