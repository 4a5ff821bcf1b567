"""The files of the web page, and onnxruntime-web, the library that runs the network in a browser.

The library is not in the repository. `python -m streamseg.serve.page` downloads it from the npm registry into the
package, for wheels; a server without it downloads it once, into the user's cache.
"""

import base64
import hashlib
import io
import os
import tarfile
from pathlib import Path

from streamseg.io import web
from streamseg.io.files import written_whole

LIBRARY, VERSION = "onnxruntime-web", "1.30.0"
INTEGRITY = "sha512-q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
"""The hash of the package in the npm registry."""

LIBRARY_FILES = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
    "ort.webgpu.min.mjs",
    "ort-wasm-simd-threaded.asyncify.mjs",
    "ort-wasm-simd-threaded.asyncify.wasm",
)
"""The files of the package's dist folder that a browser loads: the first three for the CPU, the others for a GPU."""

PAGE = Path(__file__).parent
BUNDLED_LIBRARY = PAGE / "vendor" / f"{LIBRARY}-{VERSION}"
"""The folder of the library in a wheel."""


def find_library() -> Path | None:
    """Return the folder of the library, in the package or in the cache; None if it is in neither."""
    for folder in (BUNDLED_LIBRARY, cache_folder() / BUNDLED_LIBRARY.name):
        if all((folder / name).is_file() for name in LIBRARY_FILES):
            return folder
    return None


def fetch_library(folder: Path) -> Path:
    """Download the library into a folder, and check its hash."""
    address = f"{registry_address()}/{LIBRARY}/-/{LIBRARY}-{VERSION}.tgz"
    try:
        data = web.fetch(web.join_address(web.split_address(address)))
    except OSError as error:
        raise OSError(
            f"{LIBRARY} could not be downloaded ({str(error).rstrip('.')}): go online, or set NPM_CONFIG_REGISTRY to a "
            "registry within reach, and run: python -m streamseg.serve.page"
        ) from None
    if f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}" != INTEGRITY:
        raise ValueError(f"{web.redact(address)} is not {LIBRARY} {VERSION}: its hash is wrong, and it is not used.")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for name in LIBRARY_FILES:
            file = archive.extractfile(f"package/dist/{name}")
            assert file  # the hash was checked
            with written_whole(folder / name) as temporary:
                temporary.write_bytes(file.read())
    return folder


def registry_address() -> str:
    """Return the npm registry that the environment or ~/.npmrc names, or else the public one."""
    given = os.environ.get("NPM_CONFIG_REGISTRY")
    file = Path.home() / ".npmrc"
    if not given and file.is_file():
        pairs = (line.partition("=") for line in file.read_text(errors="replace", encoding="utf-8").splitlines())
        given = next((value.strip().strip("\"'") for key, _, value in pairs if key.strip() == "registry"), None)
    return (given or "https://registry.npmjs.org").rstrip("/")


def cache_folder() -> Path:
    """Return the folder for files that are made or downloaded once."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamseg"
