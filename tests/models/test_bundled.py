from pathlib import Path

import pytest

import streamseg
from streamseg.models import bundled
from streamseg.models.bundled import BUNDLED_WEIGHTS, DEFAULT, BundledWeights, find_weights, is_bundled

ROOT = Path(__file__).parents[2]


@pytest.fixture
def two(monkeypatch, tmp_path):
    """Two bundled weights, in an empty working folder."""
    monkeypatch.chdir(tmp_path)
    table = {name: BundledWeights(Path(f"/there/{name}-18.safetensors"), "", "", "", "") for name in ("street", "road")}
    monkeypatch.setattr(bundled, "BUNDLED_WEIGHTS", table)
    monkeypatch.setattr(bundled, "DEFAULT", "street")
    return table


def test_every_entry_has_a_file_of_weights_and_a_card():
    assert DEFAULT in BUNDLED_WEIGHTS
    for name, about in BUNDLED_WEIGHTS.items():
        assert streamseg.describe(name) == streamseg.describe(about.file)
        assert (ROOT / about.card).is_file()
        assert all((about.about, about.data, about.licence))


def test_every_bundled_file_has_a_name():
    assert {*bundled.FOLDER.glob("*")} == {about.file for about in BUNDLED_WEIGHTS.values()}


def test_weights_are_found_by_name_or_path_or_by_default(two):
    assert find_weights() == find_weights("street") == find_weights(Path("street")) == two["street"].file
    assert find_weights("road") == two["road"].file
    for path in ("run/weights.safetensors", "w.onnx", "nowhere/street", Path("/street")):
        assert find_weights(path) == Path(path)


def test_a_file_of_that_name_comes_first_but_not_a_folder(two, tmp_path):
    (tmp_path / "road").mkdir()
    assert find_weights("road") == two["road"].file
    (tmp_path / "street").touch()
    assert find_weights("street") == Path("street")
    assert [is_bundled(given) for given in (None, "road", "street", "a.onnx", "hf:me/road")] == [
        True,
        True,
        False,
        False,
        False,
    ]


def test_a_misspelt_name_gets_a_suggestion(two, tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        find_weights("steet")
    assert (
        str(error.value)
        == "No weights are called 'steet': did you mean 'street'? Known: street, road; or give a file, or hf:USER/NAME."
    )
    with pytest.raises(
        FileNotFoundError,
        match=r"^No weights are called 'xyz': known are street, road; or give a file, or hf:USER/NAME\.$",
    ):
        streamseg.load("xyz")
    (tmp_path / "folder").mkdir()
    assert find_weights("folder") == Path("folder")
