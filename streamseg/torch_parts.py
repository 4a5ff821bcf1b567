"""Import torch without the parts of it that labels do not need, until something needs them.

They are a third of the time of `import torch`, and no option of torch leaves them out. A placeholder stands for each.
All parts are imported when something uses a placeholder, and before any module that `import torch` leaves out itself,
such as those of the compiler: these expect all parts.
"""

import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType

PARTS = ("torch._meta_registrations", "torch.export", "torch.distributions")
"""The shapes that operators return for tensors without data, which torch's compiler and exporter need; the exporter;
distributions."""
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
    """Imports the parts before the first module that `import torch` has left out."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: object = None) -> ModuleSpec | None:
        torch = sys.modules.get("torch")
        if not name.startswith("torch.") or torch is None or getattr(torch.__spec__, "_initializing", False):
            return None
        load_parts()
        found = sys.modules.get(name)
        if found is None:
            return None  # Python goes on looking
        # a part has imported it: by the specification of the module itself Python would run it again
        found.__spec__ = ModuleSpec(name, LoadedModule(found))
        return found.__spec__


class LoadedModule(Loader):
    """Gives Python a module that a part has imported while Python was looking for it."""

    def __init__(self, module: ModuleType):
        self.module, self.spec = module, module.__spec__

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return self.module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self.spec


FINDER = PartsFinder()


def defer_parts() -> None:
    """Let the next `import torch`, if it is the first, leave the parts out."""
    try:
        known = version("torch").startswith(tuple(f"{number}." for number in VERSIONS))
    except PackageNotFoundError:
        return
    if known and "torch" not in sys.modules:
        sys.modules.update({name: DeferredModule(name) for name in PARTS})
        sys.meta_path.insert(0, FINDER)


def load_parts() -> None:
    """Import all parts, since they need each other. Threads may do this at the same time: Python imports each once."""
    with LOCK:
        with suppress(ValueError):
            sys.meta_path.remove(FINDER)
        for name in PARTS:
            if isinstance(sys.modules.get(name), DeferredModule):
                del sys.modules[name]
    for name in PARTS:
        import_module(name)
