"""python -m streamseg.serve.page: download the library that runs the network in a browser into the package."""

import sys

from streamseg.serve.page import BUNDLED_LIBRARY, fetch_library, find_library

if find_library() != BUNDLED_LIBRARY:
    try:
        print(fetch_library(BUNDLED_LIBRARY))
    except (OSError, ValueError) as error:
        sys.exit(f"streamseg: {error}")
