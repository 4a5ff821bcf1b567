"""python -m streamseg.serve.page: download the library that runs the network in a browser into the package."""

import sys

from streamseg.serve.page import INSIDE, fetch_library, find_library

if find_library() != INSIDE:
    try:
        print(fetch_library(INSIDE))
    except (OSError, ValueError) as error:
        sys.exit(f"streamseg: {error}")
