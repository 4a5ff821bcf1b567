"""Import torch without the parts of it that labels do not need, until something needs them.

They are a third of the time of `import torch`, and no option of torch leaves them out. A placeholder stands for each.
All parts are imported when something uses a placeholder, and before any module that `import torch` leaves out itself,
such as those of the compiler: these expect all parts.

Operators on tensors without data (device "meta") use the shapes of operators without a word. A program that runs a
network on such tensors calls load_parts before; to make and to move them needs no part.
"""

import sys
import threading
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from types import ModuleType

PARTS = ("torch._meta_registrations", "torch.export", "torch.distributions")
"""The shapes that operators return for tensors without data, which torch's compiler and exporter need; the exporter;
distributions."""
NEEDS_NO_PART = ("torch.utils._device",)
"""Modules that `import torch` may leave out and that work without the parts; `with torch.device(...)` imports this."""
VERSIONS = ("2.11", "2.12", "2.13", "2.14", "2.15")
"""Versions of torch that were imported without these parts. Any other is imported whole."""
LOCK = threading.Lock()


class DeferredModule(ModuleType):
    """Stands for a part of torch."""

    def __getattr__(self, name: str) -> object:
        # inspect asks all modules for their file, which is not a use
        if name.startswith("__") and name not in ("__path__", "__all__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        load_parts()
        return getattr(sys.modules[self.__name__], name)


class PartsFinder(MetaPathFinder):
    """Lets the first module that `import torch` has left out be imported after the parts.

    It stays in place when the parts are loaded, because Python goes through the list of finders in other threads.
    """

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        torch = sys.modules.get("torch")
        if torch is None or not name.startswith("torch.") or name in NEEDS_NO_PART or not are_deferred():
            return None
        if getattr(torch.__spec__, "_initializing", False):
            return None
        spec = PathFinder.find_spec(name, path)
        if spec and spec.loader:  # not here: Python holds a lock of all imports while it looks for a module
            spec.loader = LoaderAfterParts(spec.loader)
        return spec


class LoaderAfterParts(Loader):
    """Imports the parts, then leaves a module to its own loader; unless the parts have imported it, too."""

    def __init__(self, loader: Loader):
        self.loader = loader
        self.own_spec: ModuleSpec | None = None

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        load_parts()
        imported = sys.modules.get(spec.name)
        if imported is None:
            spec.loader = self.loader  # which executes it
            return self.loader.create_module(spec)
        self.own_spec = imported.__spec__
        return imported

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.own_spec  # Python has replaced it; there is nothing to execute


FINDER = PartsFinder()


def defer_parts() -> None:
    """Let the next `import torch`, if it is the first, leave the parts out."""
    torch = None if "torch" in sys.modules else find_spec("torch")
    if torch is None or not is_known_version():
        return
    for name in PARTS:
        sys.modules[name] = DeferredModule(name)
        sys.modules[name].__spec__ = PathFinder.find_spec(name, torch.submodule_search_locations)
    sys.meta_path.insert(0, FINDER)


def is_known_version() -> bool:
    """Return whether torch was tried without the parts."""
    try:
        installed = version("torch")
    except PackageNotFoundError:
        return False
    # None if the installation is damaged
    return bool(installed) and installed.startswith(tuple(f"{number}." for number in VERSIONS))


def are_deferred() -> bool:
    """Return whether the parts are still left out."""
    return any(isinstance(sys.modules.get(name), DeferredModule) for name in PARTS)


def load_parts() -> None:
    """Import all parts, since they need each other. Threads may do this at the same time: Python imports each once."""
    with LOCK:
        for name in PARTS:
            if isinstance(sys.modules.get(name), DeferredModule):
                del sys.modules[name]
    for name in PARTS:
        import_module(name)
