"""The samples, which lie beside the package, belong into its wheel; all else about the project is in pyproject.toml.

Were they a package of another folder (package-dir), an editable install would need an import hook, which comes after
all folders: Python started beside the clone would then import the clone's folder instead of the package in it.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SAMPLES = Path("samples")


class BuildWithSamples(build_py):
    """Copies the samples, which exported files are compared on, into the package that is built."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # there they are found beside the package
            shutil.copytree(SAMPLES, Path(self.build_lib, "streamseg", "samples"), dirs_exist_ok=True)

    def get_source_files(self) -> list[str]:
        """What a source distribution holds."""
        return [*super().get_source_files(), *map(str, sorted(SAMPLES.iterdir()))]


setup(cmdclass={"build_py": BuildWithSamples})
