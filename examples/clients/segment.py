"""Label a picture by a server of streamseg, with nothing but Python: python segment.py http://localhost:8000 street.jpg

Prints the share of each class, and writes street-labels.png beside the picture. The token, if the server has one, is in
the variable STREAMSEG_TOKEN. The server describes itself at /openapi.json.
"""

import json
import os
import sys
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

TRIES = 5


def label(server: str, picture: bytes, media_type: str) -> bytes:
    """Send a picture, and return the answer in a media type: image/png, image/jpeg or application/json."""
    headers = {"Accept": media_type, "Content-Type": "application/octet-stream"}
    if token := os.environ.get("STREAMSEG_TOKEN"):
        headers["Authorization"] = f"Bearer {token}"
    for _ in range(TRIES):
        try:
            with urlopen(Request(f"{server}/segment", picture, headers), timeout=60) as response:
                return response.read()
        except HTTPError as error:
            if error.code != 503:  # each other error says in a sentence what is wrong
                sys.exit(f"{error.code}: {json.load(error)['error']}")
            time.sleep(float(error.headers.get("Retry-After", 1)))  # the queue is full
        except URLError as error:
            sys.exit(f"{server} cannot be reached ({error.reason}): start it with streamseg serve.")
    sys.exit(f"The server was busy {TRIES} times: try again later.")


if len(sys.argv) != 3 or not Path(sys.argv[2]).is_file():
    sys.exit("Give the address of a server and a picture: python segment.py http://localhost:8000 street.jpg")
server, path = sys.argv[1].rstrip("/"), Path(sys.argv[2])
found = json.loads(label(server, path.read_bytes(), "application/json"))
for entry in sorted(found["classes"], key=lambda entry: -entry["share"]):
    if entry["share"]:
        print(f"{entry['name']} {entry['share']:.1%}")
path.with_name(f"{path.stem}-labels.png").write_bytes(label(server, path.read_bytes(), "image/png"))
