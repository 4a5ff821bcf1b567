import pickle
from contextlib import nullcontext

import pytest
import torch
from painted import InMemory, painted

import streamseg
from streamseg.class_table import STREET_TABLE, find_translation
from streamseg.classes import CAMVID, CITYSCAPES, COMMA10K, IGNORE, Classes
from streamseg.data.datasets import Dataset
from streamseg.evaluate.images import evaluate, evaluate_on_cluster
from streamseg.evaluate.translate import (
    check_same_classes,
    describe_translation,
    to_lookup,
    translate_dataset,
    translate_predicted,
)

CPU = torch.device("cpu")


def test_each_predicted_class_becomes_its_label():
    lookup = to_lookup((1, 0, 0, IGNORE), 2, CPU)
    predicted = torch.tensor([[0, 1], [2, 3]], dtype=torch.uint8)
    assert translate_predicted(predicted, lookup).tolist() == [[1, 0], [0, 2]]
    assert translate_predicted(predicted, None) is predicted


@pytest.mark.parametrize("label", [-1, 2, 256])
def test_a_label_that_does_not_exist_is_refused(label):
    with pytest.raises(ValueError, match=f"^label_of holds {label}; expected 0–1, or 255 for a class without a label"):
        to_lookup((0, label), 2, CPU)


def read_five(path):
    return torch.tensor([[0, 1, 2, 3, 4, 255]], dtype=torch.uint8)


DASHCAM = Dataset("comma10k", "val", COMMA10K, (), read_five)


def test_the_labels_of_a_data_set_are_joined_for_a_network_that_cannot_tell_them_apart():
    translation, joined = translate_dataset(CAMVID, DASHCAM)
    assert joined.classes.names == ("road + lane marking", "undrivable", "movable", "my car")
    assert joined.read_labels("any").tolist() == [[0, 0, 1, 2, 3, 255]]
    assert pickle.loads(pickle.dumps(joined)).read_labels("any").tolist() == [[0, 0, 1, 2, 3, 255]]
    assert translation == find_translation(CAMVID, "comma10k", COMMA10K)
    assert translate_dataset(STREET_TABLE.classes, DASHCAM)[1] is DASHCAM


def test_classes_that_no_table_translates_are_refused():
    with pytest.raises(
        ValueError,
        match=r"^The network was trained for other classes than those of comma10k val: class 1 is sidewalk in the "
        r"network and lane marking in the data set; no class table translates them: .*, or --class-table FILE\.$",
    ):
        translate_dataset(CITYSCAPES, DASHCAM)
    with pytest.raises(ValueError, match="class 0 is Sky in the network and road in the data set; give the --dataset"):
        check_same_classes(CAMVID, DASHCAM)
    check_same_classes(Classes(("Road", "LaneMarking", "UNDRIVABLE", "mov_able", "my  car"), COMMA10K.colours), DASHCAM)


def test_a_sentence_says_which_classes_were_merged_or_have_no_label():
    def sentence(network, dataset, labels):
        return describe_translation(find_translation(network, dataset, labels), dataset)

    assert sentence(CAMVID, "camvid", CAMVID) == ""
    street = STREET_TABLE.classes
    assert sentence(street, "camvid", CAMVID) == "LaneMarking counts as Road; OwnCar has no label in camvid"
    assert sentence(street, "comma10k", COMMA10K) == (
        "Sky, Building, Pole, Pavement, Tree, SignSymbol and Fence count as undrivable; "
        "Car, Pedestrian and Bicyclist count as movable; OwnCar counts as my car"
    )
    assert sentence(CAMVID, "comma10k", COMMA10K).endswith(
        "Road counts as road + lane marking; Car, Pedestrian and Bicyclist count as movable; "
        "no class of the network counts as my car"
    )


def test_the_workers_of_a_cluster_translate_too(model, image, tmp_path, monkeypatch):
    def map_here(worker, arguments, rows, gpus):
        return map(worker(*arguments, "cpu"), rows)

    monkeypatch.setattr("streamseg.parallel.cluster.ray_cluster", lambda _: nullcontext())
    monkeypatch.setattr("streamseg.parallel.cluster.map_on_cluster", map_here)
    streamseg.save(model, CAMVID, tmp_path / "a.safetensors")
    labels = torch.randint(0, 3, (64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    dataset = InMemory(((image[0], labels), painted(labels, labels)))
    label_of = (0, 1, 2, 0, 1, 2, 0, 1, 2, 0, IGNORE)
    found = evaluate_on_cluster(dataset, tmp_path / "a.safetensors", "local", label_of=label_of)
    expected = evaluate(model, dataset, label_of=label_of)
    assert (found.iou, found.images) == (expected.iou, 2)
    assert found.without_label.equal(expected.without_label)
    assert found.without_label.sum() > 0
