import inspect
import subprocess
import sys

from streamseg.cli.regions import RegionOptions
from streamseg.regions.defaults import MIN_AREA
from streamseg.regions.regions import find_regions


def test_the_command_line_leaves_out_the_same_regions_as_python():
    assert RegionOptions().min_area == inspect.signature(find_regions).parameters["min_area"].default == MIN_AREA


def test_the_options_import_nothing_heavy():
    code = "import sys, streamseg.cli.regions; sys.exit(bool({'numpy', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
