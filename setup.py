"""Add the samples, which are beside the package, to its wheel; everything else is in pyproject.toml.

Mapping them to a package (package-dir) would make an editable install use an import hook. Hooks come after all folders:
Python started beside the clone would then import the clone's folder instead of the package in it.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

SAMPLES = Path("samples")


class BuildWithSamples(build_py):
    """Copies the samples, which exported files are compared on, into the built package."""

    def run(self) -> None:
        super().run()
        if not self.editable_mode:  # an editable install finds them beside the package
            shutil.copytree(SAMPLES, Path(self.build_lib, "streamseg", "samples"), dirs_exist_ok=True)

    def get_source_files(self) -> list[str]:
        """Return the files of a source distribution."""
        samples = sorted(path for path in SAMPLES.rglob("*") if path.is_file())
        return [*super().get_source_files(), *map(str, samples)]


setup(cmdclass={"build_py": BuildWithSamples})
