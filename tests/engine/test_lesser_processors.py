"""int8 as on a processor without AVX-512 and VNNI, in a separate process."""

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

LIMIT = "ONEDNN_MAX_CPU_ISA"
FOLDER = Path(__file__).parent
X86 = platform.machine().lower() in ("x86_64", "amd64")


def run(*command):
    return subprocess.run(
        [sys.executable, *command],
        cwd=FOLDER.parents[1],
        env={**os.environ, LIMIT: "AVX2"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.skipif(not X86, reason="only x86 processors saturate")
@pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
def test_such_a_processor_saturates_with_8_bit_weights():
    # otherwise the next test would prove nothing
    found = run(
        "-c",
        "import torch\n"
        "x, weight = torch.full((1, 64, 8, 8), 255).byte(), torch.full((16, 64, 3, 3), 127).to(torch.int8)\n"
        "conv, scales, zeros = ([1, 1], [0, 0], [1, 1], 1), torch.ones(16), torch.zeros(16, dtype=torch.int64)\n"
        "packed = torch.ops.onednn.qconv_prepack(weight, scales, 1.0, 0, *conv, list(x.shape))\n"
        "out = (*conv, 1.0, 0, torch.float32, 'none', [], '')\n"
        "y = torch.ops.onednn.qconv2d_pointwise(x, 1.0, 0, packed, scales, zeros, None, *out)\n"
        "print(y.max().item() / (255 * 127 * 64 * 9))",
    )
    assert found.returncode == 0, found.stderr
    assert float(found.stdout) < 0.6


@pytest.mark.skipif(LIMIT in os.environ, reason="this run is already limited")
def test_the_int8_tests_pass_on_such_a_processor():
    files = [FOLDER / f"test_{name}.py" for name in ("convolutions", "stem", "folded", "fast")]
    found = run("-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "-k", "int8", *map(str, files))
    assert found.returncode == 0, found.stdout + found.stderr
    passed = re.search(r"(\d+) passed", found.stdout)
    assert passed
    assert int(passed[1]) >= 15
