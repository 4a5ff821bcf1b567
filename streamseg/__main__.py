"""python -m streamseg."""

from streamseg.cli import run_program

run_program()
