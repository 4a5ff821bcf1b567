"""Weights on the Hugging Face Hub, by names such as hf:user/name. Only this module imports huggingface_hub.

Only .safetensors files are downloaded. Pickles (.bin, .pt, .ckpt …), which can run any code, are never requested.
"""

import logging
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from huggingface_hub import HfApi

PREFIX = "hf:"
"""How the name of a repository begins."""
WEIGHTS_FILE = "model.safetensors"
"""The file of the weights in a repository that push_to_hub wrote; the usual name on the Hub."""
PICKLES = {".bin", ".ckpt", ".h5", ".joblib", ".pkl", ".pickle", ".pt", ".pt2", ".pth"}
"""Suffixes of files that are programs, or may be."""
TIMEOUT = 10.0
"""Seconds to wait for the Hub."""
ADDRESS = re.compile(
    r"hf:/{0,2}(?P<repository>[\w.-]+/[\w.-]+)(/(?P<file>[\w.-]+\.safetensors))?(@(?P<revision>[^\s@]+))?", re.ASCII
)
LOG = logging.getLogger("streamseg")


@dataclass(frozen=True)
class HubAddress:
    """A repository on the Hub, or a file in it."""

    repository: str
    """USER/NAME."""
    file: str = ""
    """A .safetensors file of the repository; empty for its only one."""
    revision: str = ""
    """A branch, a tag or a commit; empty for the default branch."""

    def __str__(self) -> str:
        file = f"/{self.file}" if self.file else ""
        return f"{PREFIX}{self.repository}{file}{f'@{self.revision}' if self.revision else ''}"


def is_hub_address(given: object) -> bool:
    """Return whether weights are given by the name of a repository on the Hub."""
    return str(given).startswith(PREFIX)


def parse_hub_address(given: str | Path) -> HubAddress:
    """Return the parts of hf:USER/NAME, hf:USER/NAME/FILE.safetensors or either with @REVISION at its end."""
    text = str(given).replace("\\", "/")  # a Path of Windows
    found = ADDRESS.fullmatch(text)
    if not found:
        raise ValueError(
            f"{text!r:.120} is no name of a repository: expected hf:USER/NAME, with @REVISION after it for a branch, a "
            "tag or a commit."
        )
    return HubAddress(found["repository"], found["file"] or "", found["revision"] or "")


def check_hub_address(given: str | Path) -> None:
    """Raise an error if the name of a repository is invalid, or if huggingface_hub is missing. Requests nothing."""
    address = parse_hub_address(given)
    if find_spec("huggingface_hub") is None:
        raise ImportError(f"{address} needs huggingface_hub: pip install 'streamseg[hub]'")


def download_weights(given: str | Path) -> Path:
    """Return the weights of a repository as a file in the cache of huggingface_hub, downloaded if they are not there.

    A file in the cache is used if the Hub cannot be reached, with a warning.
    """
    check_hub_address(given)
    from huggingface_hub import HfApi, hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import OfflineModeIsEnabled

    address, api = parse_hub_address(given), HfApi()
    revision = address.revision or None
    try:
        found = api.model_info(address.repository, revision=revision, timeout=TIMEOUT)
        file = pick_file(address, [entry.rfilename for entry in found.siblings or ()])
        if not isinstance(try_to_load_from_cache(address.repository, file, revision=found.sha), str):
            check_header(api, address, file)
        return Path(hf_hub_download(address.repository, file, revision=revision))
    except request_errors() as error:
        cached = find_cached(address) if is_unreachable(error) else None
        if cached is None:
            raise hub_error(error, address, api.endpoint) from None
        if not isinstance(error, OfflineModeIsEnabled):  # which was asked for
            LOG.warning("%s: the downloaded copy of %s is used.", describe_failure(error, api.endpoint), address)
        return cached


def pick_file(address: HubAddress, names: Sequence[str]) -> str:
    """Return which file of a repository holds the weights; a ValueError if none or several may."""
    safe = sorted(name for name in names if name.endswith(".safetensors") and "/" not in name)
    wanted = address.file or (WEIGHTS_FILE if WEIGHTS_FILE in safe else "")
    if wanted in safe:
        return wanted
    if address.file:
        there = f"it has {', '.join(safe)[:200]}" if safe else "it has no .safetensors file"
        raise FileNotFoundError(f"{address} does not exist: {there}.")
    if len(safe) == 1:
        return safe[0]
    if safe:
        raise ValueError(
            f"{address} holds {len(safe)} .safetensors files: name one of them, such as "
            f"{HubAddress(address.repository, safe[0], address.revision)}."
        )
    pickles = sorted(name for name in names if PurePosixPath(name).suffix.lower() in PICKLES)
    if pickles:
        raise ValueError(
            f"{address} holds only pickles ({', '.join(pickles)[:120]}), which can run any code and were not "
            "downloaded: ask its author for a file of streamseg.save or streamseg push."
        )
    raise ValueError(
        f"{address} holds no .safetensors file: expected a repository that streamseg push or push_to_hub wrote."
    )


def check_header(api: "HfApi", address: HubAddress, file: str) -> None:
    """Raise a ValueError if a file on the Hub is no checkpoint of streamseg; only its header is downloaded."""
    from huggingface_hub.errors import NotASafetensorsRepoError, SafetensorsParsingError

    try:
        header = api.parse_safetensors_file_metadata(
            address.repository, file, revision=address.revision or None, timeout=TIMEOUT
        )
    except (SafetensorsParsingError, NotASafetensorsRepoError, ValueError, KeyError, TypeError, AttributeError):
        raise ValueError(
            f"{file} of {address} is no safetensors file, whatever its name: it was not downloaded."
        ) from None
    if "streamseg" not in (header.metadata or {}):
        raise ValueError(
            f"{file} of {address} was not written by streamseg, and was not downloaded: expected a repository that "
            "streamseg push or push_to_hub wrote."
        )


def find_cached(address: HubAddress) -> Path | None:
    """Return weights that were downloaded earlier, without a request; None if there are none."""
    from huggingface_hub import snapshot_download

    try:
        folder = Path(
            snapshot_download(
                address.repository,
                revision=address.revision or None,
                allow_patterns=["*.safetensors"],
                local_files_only=True,
            )
        )
    except OSError:  # huggingface_hub has several kinds
        return None
    names = [path.name for path in folder.glob("*.safetensors")]
    try:
        return folder / pick_file(address, names)
    except (ValueError, FileNotFoundError):  # what is missing may be on the Hub
        return None


def request_errors() -> tuple[type[Exception], ...]:
    """Return the errors of a request that failed."""
    from huggingface_hub.errors import FileMetadataError, HfHubHTTPError, LocalEntryNotFoundError

    # its client is httpx or httpx2, by the version, and has errors of its own
    client_error = HfHubHTTPError.__bases__[0]
    return (client_error, FileMetadataError, LocalEntryNotFoundError, ConnectionError, TimeoutError)


def status_of(error: BaseException) -> int | None:
    """Return the status of the answer that an error is about; None if there was no answer."""
    status: int | None = getattr(getattr(error, "response", None), "status_code", None)
    return status_of(error.__cause__) if status is None and error.__cause__ else status


def is_unreachable(error: Exception) -> bool:
    """Return whether an error means that the Hub is offline, down or busy, rather than an answer to the request."""
    status = status_of(error)
    return status is None or status >= HTTPStatus.INTERNAL_SERVER_ERROR or status == HTTPStatus.TOO_MANY_REQUESTS


def describe_failure(error: Exception, endpoint: str) -> str:
    """Return why a request failed, in words: an answer of the server, or none."""
    host, status = endpoint.partition("://")[2], status_of(error)
    if status is None:
        words = str(error.__cause__ or error).strip().partition("\n")[0][:120] or type(error).__name__
        return f"{host} cannot be reached ({words})"
    return f"{host} answered {status} {HTTPStatus(status).phrase if status in [*HTTPStatus] else ''}".rstrip()


def hub_error(error: Exception, address: HubAddress, endpoint: str) -> OSError:
    """Return an error of huggingface_hub as one sentence."""
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        DisabledRepoError,
        GatedRepoError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    host = endpoint.partition("://")[2]
    page = f"{endpoint}/{address.repository}"
    status = status_of(error)
    cache = f"{address} is not in {constants.HF_HUB_CACHE}"
    if isinstance(error, OfflineModeIsEnabled):
        return OSError(f"HF_HUB_OFFLINE is set, and {cache}: unset it, or give a file.")
    if status is None:
        failure = describe_failure(error, endpoint)
        return OSError(f"{failure}, and {cache}: connect to the Internet once, or give a file.")
    if isinstance(error, GatedRepoError):
        return PermissionError(f"{address} is restricted: ask for access at {page}, and log in with: hf auth login")
    if isinstance(error, RepositoryNotFoundError):
        return FileNotFoundError(
            f"{host} has no model {address.repository}, or it is private: check the name, or log in with: hf auth login"
        )
    if isinstance(error, RevisionNotFoundError):
        return FileNotFoundError(
            f"{HubAddress(address.repository)} has no revision {address.revision!r:.80}: expected a branch, a tag or a "
            "commit."
        )
    if isinstance(error, DisabledRepoError):
        return OSError(f"{host} has disabled {address}: see {page}")
    if status == HTTPStatus.UNAUTHORIZED:
        return PermissionError(f"{host} does not accept the access token: log in with: hf auth login")
    if status == HTTPStatus.FORBIDDEN:
        return PermissionError(
            f"The access token may not do this with {address.repository}: create one with the right to write at "
            f"{endpoint}/settings/tokens and log in with: hf auth login"
        )
    return OSError(f"{describe_failure(error, endpoint)} for {address}: try again later.")


def write_error(error: Exception, address: HubAddress, endpoint: str) -> OSError:
    """Return why nothing was written to the Hub, as one sentence."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    if isinstance(error, OfflineModeIsEnabled):
        return OSError(f"HF_HUB_OFFLINE is set, and nothing was written to {address}: unset it.")
    if is_unreachable(error):
        return OSError(f"{describe_failure(error, endpoint)}, and nothing was written to {address}: try again later.")
    return hub_error(error, address, endpoint)


def read_card(address: HubAddress) -> str | None:
    """Return the model card of a repository; None if it has none, or does not exist."""
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import RepositoryNotFoundError

    api = HfApi()
    try:
        found = api.model_info(address.repository, revision=address.revision or None, timeout=TIMEOUT)
        if "README.md" not in [entry.rfilename for entry in found.siblings or ()]:
            return None
        card = hf_hub_download(address.repository, "README.md", revision=found.sha)
    except RepositoryNotFoundError:
        return None
    except request_errors() as error:
        raise write_error(error, address, api.endpoint) from None
    return Path(card).read_text(encoding="utf-8", errors="replace")


def upload_files(address: HubAddress, files: Mapping[str, Path | bytes], message: str, *, private: bool) -> str:
    """Write files to a repository in one commit, create it if it does not exist, and return the address of its page.

    Args:
        files: What to write: the content, or a file with it, by the name in the repository.
        private: Create a repository that only its owner sees; one that exists stays as it is.
    """
    from huggingface_hub import CommitOperationAdd, HfApi, get_token

    api = HfApi()
    if get_token() is None:
        raise PermissionError(f"Who writes to {address}? Log in with: hf auth login, or set HF_TOKEN.")
    try:
        api.create_repo(address.repository, private=private or None, exist_ok=True)
        api.create_commit(
            address.repository,
            [CommitOperationAdd(name, content) for name, content in files.items()],
            commit_message=message,
            revision=address.revision or None,
        )
    except request_errors() as error:
        raise write_error(error, address, api.endpoint) from None
    return f"{api.endpoint}/{address.repository}"
