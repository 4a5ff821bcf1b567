"""What is the same for regions in Python and on the command line. Standard library only, as the help needs it."""

MIN_AREA = 64
"""Regions of fewer pixels are left out by default; most of them are specks of a few pixels."""

SUFFIXES = {"coco": ".coco.json", "geojson": ".geojson", "lines": ""}
"""The formats, each with the end of the file names that choose it; JSON lines for all other names."""
