"""The notebooks run from the first cell to the last and show pictures."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parent.parent / "notebooks").glob("*.ipynb"))

# as Jupyter does: run all cells in one namespace, and show the last expression of each
RUN = """
import ast, json, sys

names = {"__name__": "__main__"}
for cell in json.load(open(sys.argv[1]))["cells"]:
    if cell["cell_type"] == "code":
        tree = ast.parse("".join(cell["source"]))
        shown = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, cell["id"], "exec"), names)
        value = shown and eval(compile(shown, cell["id"], "eval"), names)
        if hasattr(value, "_repr_png_"):
            print("shown:", len(value._repr_png_()))
"""


@pytest.mark.slow
@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_pictures(notebook, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(notebook)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("shown: ") >= 2
    written = {path.suffix for path in (tmp_path / notebook.stem).rglob("*")}
    assert ".safetensors" in written


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_output_and_with_unique_cell_ids(notebook):
    kept = json.loads(notebook.read_text())
    assert (kept["nbformat"], kept["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in kept["cells"]}) == len(kept["cells"])
    code = [cell for cell in kept["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)


def test_there_are_two_notebooks():
    assert [path.stem for path in NOTEBOOKS] == ["segment-a-video", "train-on-your-own-data"]
