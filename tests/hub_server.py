"""A local server with the addresses of the Hugging Face Hub that huggingface_hub requests, for tests."""

import base64
import functools
import hashlib
import json
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from urllib.parse import unquote, urlsplit

from servers import serve_http

TOKEN = "hf_test"
"""The access token that the server accepts."""


@dataclass
class Repository:
    """A repository: the files of each commit, and its branches and tags."""

    private: bool = False
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    """The commit of each branch and tag."""
    messages: list[str] = field(default_factory=list)

    def commit(self, files: dict[str, bytes], name: str = "main", message: str = "") -> str:
        """Add files, and return the commit."""
        everything = self.commits.get(self.names.get(name, ""), {}) | files
        text = repr((len(self.commits), sorted((file, hashlib.sha1(data).digest()) for file, data in files.items())))
        commit = hashlib.sha1(text.encode()).hexdigest()
        self.commits[commit], self.names[name] = everything, commit
        self.messages.append(message)
        return commit

    def find(self, revision: str) -> str | None:
        """Return the commit of a revision."""
        return self.names.get(revision, revision if revision in self.commits else None)


@dataclass
class Hub:
    """What the server holds, and what it was asked."""

    repositories: dict[str, Repository] = field(default_factory=dict)
    objects: dict[str, bytes] = field(default_factory=dict)
    """Large files that were uploaded, by their SHA-256."""
    requests: list[str] = field(default_factory=list)
    """Method and path of each request."""
    failure: int = 0
    """The status of every answer, if not 0."""
    address: str = ""

    def add(self, name: str, files: dict[str, bytes], **options: bool) -> Repository:
        """Add a repository with files."""
        repository = self.repositories[name] = Repository(**options)
        repository.commit(files)
        return repository


@contextmanager
def hub_server() -> Iterator[Hub]:
    """A Hub without repositories."""
    hub = Hub()
    with serve_http(functools.partial(HubHandler, hub=hub)) as address:
        hub.address = address
        yield hub


@contextmanager
def local_hub(tmp_path, monkeypatch, token: str | None = TOKEN) -> Iterator[Hub]:
    """The same for huggingface_hub in this process and in processes that it starts, with an empty cache."""
    from huggingface_hub import constants
    from huggingface_hub.utils import disable_progress_bars

    disable_progress_bars()
    with hub_server() as hub:
        cache = str(tmp_path / "hub-cache")
        point_to(hub.address, monkeypatch)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", cache)
        monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "no-token"))
        # its uploads and downloads in chunks need servers of their own
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        for name, value in {
            "HF_ENDPOINT": hub.address,
            "HF_HUB_CACHE": cache,
            "HF_TOKEN_PATH": str(tmp_path / "no-token"),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }.items():
            monkeypatch.setenv(name, value)
        for name in ("HF_HUB_OFFLINE", "HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "http_proxy", "HTTP_PROXY", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        if token:
            monkeypatch.setenv("HF_TOKEN", token)
        yield hub


def point_to(address: str, monkeypatch) -> None:
    """Let huggingface_hub, which reads its settings when it is imported, take another address for the Hub."""
    from huggingface_hub import constants

    monkeypatch.setattr(constants, "ENDPOINT", address)
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)


class HubHandler(BaseHTTPRequestHandler):
    """Answers the requests of huggingface_hub."""

    protocol_version = "HTTP/1.1"

    def __init__(self, *request: object, hub: Hub):
        self.hub = hub
        super().__init__(*request)

    def log_message(self, *_: object) -> None:
        """Do not log."""

    def do_HEAD(self) -> None:
        self.answer()

    def do_GET(self) -> None:
        self.answer()

    def do_POST(self) -> None:
        self.answer()

    def do_PUT(self) -> None:
        self.answer()

    def answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.hub.requests.append(f"{self.command} {path}")
        if self.hub.failure:
            return self.send(self.hub.failure, {"error": "failure"})
        if self.headers.get("Authorization") not in (None, f"Bearer {TOKEN}"):
            return self.refuse(401, "", "Invalid credentials in Authorization header")
        for pattern, method in (
            (r"/api/models/(?P<name>[^/]+/[^/]+)", self.send_model),
            (r"/api/models/(?P<name>[^/]+/[^/]+)/revision/(?P<revision>.+)", self.send_model),
            (r"/(?P<name>[^/]+/[^/]+)/resolve/(?P<revision>.+)/(?P<file>[^/]+)", self.send_file),
            (r"/api/repos/create", self.create),
            (r"/api/validate-yaml", self.validate),
            (r"/api/models/(?P<name>[^/]+/[^/]+)/preupload/(?P<revision>.+)", self.preupload),
            (r"/(?P<name>[^/]+/[^/]+)\.git/info/lfs/objects/batch", self.batch),
            (r"/objects/(?P<digest>\w+)", self.store),
            (r"/api/models/(?P<name>[^/]+/[^/]+)/commit/(?P<revision>.+)", self.commit),
        ):
            if found := re.fullmatch(pattern, path):
                return method(**found.groupdict())
        return self.send(404, {"error": f"no address {path}"})

    def send(self, status: int, content: object, **headers: str) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, text in headers.items():
            self.send_header(name.replace("_", "-"), text)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def refuse(self, status: int, code: str, message: str) -> None:
        headers = {"X_Error_Code": code} if code else {}
        self.send(status, {"error": message}, X_Error_Message=message, **headers)

    def open(self, name: str, revision: str) -> tuple[Repository, str] | None:
        """Return a repository and a commit in it; answer with an error if the client cannot have them."""
        repository, known = self.hub.repositories.get(name), "Authorization" in self.headers
        if repository is None or (repository.private and not known):
            # the Hub does not tell strangers which of the two it is
            self.refuse(404 if known else 401, "RepoNotFound", "Repository not found")
        elif repository.gated:
            self.refuse(403, "GatedRepo", "Access to this model is restricted")
        elif (commit := repository.find(revision)) is None:
            self.refuse(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        else:
            return repository, commit
        return None

    def send_model(self, name: str, revision: str = "main") -> None:
        if found := self.open(name, revision):
            repository, commit = found
            files = [{"rfilename": file} for file in repository.commits[commit]]
            self.send(200, {"id": name, "modelId": name, "sha": commit, "private": False, "siblings": files})

    def send_file(self, name: str, revision: str, file: str) -> None:
        if not (found := self.open(name, revision)):
            return
        repository, commit = found
        data = repository.commits[commit].get(file)
        if data is None:
            self.refuse(404, "EntryNotFound", "Entry not found")
            return
        status, part = 200, data
        if wanted := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            status, part = 206, data[int(wanted[1]) : int(wanted[2]) + 1 if wanted[2] else len(data)]
        self.send(status, part, ETag=f'"{hashlib.sha256(data).hexdigest()}"', X_Repo_Commit=commit)

    def create(self) -> None:
        asked = json.loads(self.body)
        name = f"{asked['organization']}/{asked['name']}"
        if "Authorization" not in self.headers:
            self.send(401, {"error": "Unauthorized"})
        elif asked["organization"] == "others":
            self.send(403, {"error": "You don't have the rights to create a model under the namespace others"})
        elif name in self.hub.repositories:
            self.send(409, {"error": "You already created this model repo", "url": f"{self.hub.address}/{name}"})
        else:
            private = asked.get("private", False) or asked.get("visibility") == "private"
            self.hub.add(name, {".gitattributes": b""}, private=private)
            self.send(200, {"url": f"{self.hub.address}/{name}", "name": name})

    def validate(self) -> None:
        content = json.loads(self.body)["content"]
        try:
            import yaml

            entries = yaml.safe_load(content.split("---")[1])
            known = entries.get("license", "other") in ("apache-2.0", "mit", "other")
        except Exception as error:
            print(error, file=sys.stderr)
            known = False
        errors = [] if known else [{"message": '"license" must be one of [apache-2.0, mit, …]'}]
        self.send(400 if errors else 200, {"errors": errors, "warnings": []})

    def preupload(self, name: str, revision: str) -> None:
        if self.open(name, revision):
            files = [
                {
                    "path": entry["path"],
                    "uploadMode": "lfs" if entry["path"].endswith(".safetensors") else "regular",
                    "shouldIgnore": False,
                    "oid": None,
                }
                for entry in json.loads(self.body)["files"]
            ]
            self.send(200, {"files": files})

    def batch(self, name: str) -> None:
        objects = [
            {
                **entry,
                "authenticated": True,
                "actions": {"upload": {"href": f"{self.hub.address}/objects/{entry['oid']}"}},
            }
            for entry in json.loads(self.body)["objects"]
        ]
        self.send(200, {"transfer": "basic", "objects": objects})

    def store(self, digest: str) -> None:
        assert hashlib.sha256(self.body).hexdigest() == digest
        self.hub.objects[digest] = self.body
        self.send(200, b"")

    def commit(self, name: str, revision: str) -> None:
        if not (found := self.open(name, revision)):
            return
        files, message = {}, ""
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "header":
                message = value["summary"]
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.hub.objects[value["oid"]]
            else:
                files[value["path"]] = base64.b64decode(value["content"])
        commit = found[0].commit(files, revision, message)
        self.send(
            200, {"commitUrl": f"{self.hub.address}/{name}/commit/{commit}", "commitOid": commit, "success": True}
        )
