"""The figures of the model cards are the measured ones."""

import json
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "docs"))
sys.path.append(str(ROOT / "benchmarks"))

import model_card  # noqa: E402 (the scripts of folders that are no packages)
import model_cards  # noqa: E402
import torch  # noqa: E402
from painted import InMemory, Painted, painted  # noqa: E402

from streamseg.class_table import STREET_TABLE, find_translation  # noqa: E402
from streamseg.classes import COMMA10K  # noqa: E402
from streamseg.engine.engine import ImageEngine  # noqa: E402
from streamseg.io.images import read_image  # noqa: E402

GROUPS = model_card.GROUPS["comma10k"]


@pytest.mark.parametrize("name", model_cards.CARDS)
def test_a_card_has_the_measured_figures(name):
    page = model_cards.card_of(name).read_text(encoding="utf-8")
    assert model_cards.fill(name) == page, "run: python docs/model_cards.py"
    measured = ROOT / "docs" / "measured" / f"model-card-{name}.json"
    if measured.exists():
        # the card has the command that trained the weights which were measured
        assert f"--out {Path(json.loads(measured.read_text())['weights']).parent}" in page
        assert f"model-card-{name}.jpg" not in page or (ROOT / "docs" / f"model-card-{name}.jpg").is_file()


def test_the_tables_of_a_card_have_a_column_for_each_light():
    def figures(frames, miou):
        groups = {"road": 90.0, "movable": None, "rest": 80.04}
        return {"frames": frames, "miou": miou, "iou": {"road": 70.06, "my car": None}, "groups": groups}

    lights = {"all": figures(3, 70.0), "day": figures(2, 75.0), "night": figures(1, 60.0)}
    translated = {"Sky": "undrivable", "Tree": "undrivable", "OwnCar": None}
    failures = [{"frame": "a.webp", "label": "movable", "iou": 1.5}]
    data = {"comma10k": {"split": "val", "translated": translated, **lights}}
    found = {"network": "fanet18", "source": "trained", "datasets": data, "failures": failures}
    text = model_cards.format_figures(found, "a.jpg")
    assert "|  | all, 3 frames | day, 2 frames | night, 1 frames |\n| --- | --- | --- | --- |\n" in text
    assert "| **mean IoU** | **70.0** | **75.0** | **60.0** |" in text
    assert "| road | 70.1 | 70.1 | 70.1 |" in text
    assert "| my car | – | – | – |" in text
    assert "| *the rest, own car left out* | 80.0 | 80.0 | 80.0 |" in text
    assert "Sky, Tree → undrivable; OwnCar → no label" in text
    assert "](a.jpg)" in text
    assert "from the top: movable 1.5." in text
    data["comma10k"].pop("night")
    assert "|  | all, 3 frames |\n| --- | --- |\n" in model_cards.format_figures(found, "a.jpg")


def test_figures_are_by_light_and_groups_leave_out_the_own_car(tmp_path):
    street = Painted(len(STREET_TABLE.classes)).eval()
    engine = ImageEngine(street, street)
    road, sky, lane, own = (STREET_TABLE.classes.names.index(name) for name in ("Road", "Sky", "LaneMarking", "OwnCar"))
    labels = torch.full((32, 96), COMMA10K.names.index("road"))
    labels[:16] = COMMA10K.names.index("undrivable")
    labels[:, 48:] = COMMA10K.names.index("my car")
    labels[:4] = 255
    predicted = torch.full((32, 96), road)
    predicted[:16] = sky
    predicted[16:20] = lane
    predicted[20:24] = own
    dark = painted(labels, predicted)
    dataset = InMemory((dark, dark), COMMA10K, "comma10k")
    label_of = find_translation(STREET_TABLE.classes, "comma10k", COMMA10K).label_of
    counts, cases = model_card.evaluate_frames(engine, dataset, range(2), label_of, GROUPS)
    assert [counts[light].frames for light in ("all", "day", "night")] == [2, 0, 2]
    found = model_card.figures_of(counts["night"], dataset, GROUPS)
    assert found == model_card.figures_of(counts["all"], dataset, GROUPS)
    # left are 16 rows of road, 4 of them called lane marking and 4 own car; right is the own car, 8 rows called road
    assert found["groups"] == {"road": 75.0, "movable": None, "rest": 100.0}
    assert found["iou"]["road"] == pytest.approx(100 * 8 / (16 + 8), abs=0.01)
    assert found["iou"]["movable"] is None
    assert [case.iou for case in cases["road"]] == [75.0, 75.0]
    model_card.draw_cases(tmp_path / "a.jpg", engine, dataset, cases["road"], label_of)
    _, height, width = read_image(tmp_path / "a.jpg").shape
    assert width == 3 * 320
    assert 2 * 107 < height < 2 * 107 + 60  # the names of the colours are below
