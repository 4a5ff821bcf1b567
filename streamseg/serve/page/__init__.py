"""The page that serve shows, and the library that computes in a browser: onnxruntime-web, which npm's registry has.

It is no part of the repository. `python -m streamseg.page` fetches it into the package, for wheels; a server that has
none fetches it once, into the user's cache.
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
"""What npm's registry says that the package must hash to."""

NEEDED = (
    "ort.wasm.min.mjs",
    "ort-wasm-simd-threaded.mjs",
    "ort-wasm-simd-threaded.wasm",
    "ort.webgpu.min.mjs",
    "ort-wasm-simd-threaded.asyncify.mjs",
    "ort-wasm-simd-threaded.asyncify.wasm",
)
"""The files of the package's dist folder that a browser loads: for the CPU and, below, for a GPU."""

PAGE = Path(__file__).parent
INSIDE = PAGE / "vendor" / f"{LIBRARY}-{VERSION}"
"""The library in a wheel."""


def find_library() -> Path | None:
    """The folder of the library: in the package or else in the cache; None if it is in neither."""
    for folder in (INSIDE, cache_folder() / INSIDE.name):
        if all((folder / name).is_file() for name in NEEDED):
            return folder
    return None


def fetch_library(folder: Path) -> Path:
    """Fetch the library into a folder, unless it hashes to something else than it should."""
    address = f"{registry()}/{LIBRARY}/-/{LIBRARY}-{VERSION}.tgz"
    try:
        data = web.fetch(web.join_address(web.split_address(address)))
    except OSError as error:
        raise OSError(
            f"{LIBRARY} could not be fetched ({str(error).rstrip('.')}): go online, or set NPM_CONFIG_REGISTRY to a "
            "registry that can be reached, and run: python -m streamseg.serve.page"
        ) from None
    if f"sha512-{base64.b64encode(hashlib.sha512(data).digest()).decode()}" != INTEGRITY:
        raise ValueError(f"{web.redact(address)} is not the {LIBRARY} {VERSION} that is expected: it is not used.")
    folder.mkdir(parents=True, exist_ok=True)
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        for name in NEEDED:
            file = archive.extractfile(f"package/dist/{name}")
            assert file  # the hash says what is inside
            with written_whole(folder / name) as temporary:
                temporary.write_bytes(file.read())
    return folder


def registry() -> str:
    """The address of npm's registry: as npm is told, in the environment or in ~/.npmrc, or else the public one."""
    given = os.environ.get("NPM_CONFIG_REGISTRY")
    file = Path.home() / ".npmrc"
    if not given and file.is_file():
        pairs = (line.partition("=") for line in file.read_text(errors="replace", encoding="utf-8").splitlines())
        given = next((value.strip().strip("\"'") for key, _, value in pairs if key.strip() == "registry"), None)
    return (given or "https://registry.npmjs.org").rstrip("/")


def cache_folder() -> Path:
    """Where what was made or fetched once is kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "streamseg"
