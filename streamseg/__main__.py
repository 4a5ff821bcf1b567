"""python -m streamseg."""

from streamseg.cli import main

main()
