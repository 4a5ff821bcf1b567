"""Training with teachers: their mean probabilities are a second target."""

from dataclasses import replace

import pytest
import torch
from runs import TINY, entries, run
from torch.nn import functional as F

import streamseg
from streamseg.models.baselines import enet, swiftnet18
from streamseg.models.video.copying import copying
from streamseg.train.label_sets import make_label_sets
from streamseg.train.loss_module import LossModule, scale_images
from streamseg.train.losses import distillation_loss


@pytest.fixture
def images():
    return 255 * torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(0))


def random_logits(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def test_probabilities_equal_to_the_teachers_cost_nothing_and_have_no_gradient():
    logits = random_logits(0, 2, 3, 4, 5).requires_grad_()
    loss = distillation_loss(logits, logits.detach().softmax(dim=1), torch.tensor([1.0, 2.0, 3.0]))
    loss.backward()
    assert loss.item() == pytest.approx(0, abs=1e-6)
    assert logits.grad.abs().max() < 1e-6


def test_with_equal_weights_the_loss_is_the_textbook_divergence():
    logits, target = random_logits(0, 2, 3, 4, 5), random_logits(1, 2, 3, 4, 5).softmax(dim=1)
    expected = F.kl_div(logits.log_softmax(dim=1), target, reduction="none").sum(dim=1).mean()
    torch.testing.assert_close(distillation_loss(logits, target, torch.full((3,), 7.0)), expected)


def test_a_pixel_counts_by_the_weight_of_its_class():
    logits, target = random_logits(0, 1, 2, 1, 2), torch.eye(2).view(1, 2, 1, 2)  # one pixel of each class
    one, other = F.cross_entropy(logits, torch.tensor([[[0, 1]]]), reduction="none")[0, 0]
    expected = (1 * one + 3 * other) / 4
    torch.testing.assert_close(distillation_loss(logits, target, torch.tensor([1.0, 3.0])), expected)


def test_the_target_is_the_mean_over_teachers_and_scales(images):
    teachers, scales = [enet(classes=3).eval(), swiftnet18(classes=3).eval()], (1.0, 1.5)
    module = LossModule(enet(classes=3), torch.ones(3), teachers=teachers, teacher_scales=scales)
    logits = random_logits(0, 2, 3, 64, 96)
    with torch.no_grad():
        views = [
            F.interpolate(teacher(scale_images(images, scale)), (64, 96), mode="bilinear").softmax(dim=1)
            if scale == 1
            else F.interpolate(
                teacher.outputs(F.interpolate(images, (96, 144), mode="bilinear"))[0], (64, 96), mode="bilinear"
            ).softmax(dim=1)
            for teacher in teachers
            for scale in scales
        ]
    expected = distillation_loss(logits, torch.stack(views).mean(dim=0), torch.ones(3))
    torch.testing.assert_close(module.teacher_loss(logits, images, None), expected, rtol=1e-4, atol=1e-5)


def test_the_divergence_adds_to_the_loss_by_its_weight(images):
    network, teacher, labels = enet(classes=3).eval(), enet(classes=3).eval(), torch.zeros(2, 64, 96, dtype=torch.long)
    plain = LossModule(network, torch.ones(3)).eval()(images, labels)
    one, two = (
        LossModule(network, torch.ones(3), teachers=[teacher], distillation_loss=weight).eval()(images, labels)
        for weight in (1.0, 2.0)
    )
    assert one > plain
    torch.testing.assert_close(two - plain, 2 * (one - plain), rtol=1e-3, atol=1e-6)


def test_on_a_grid_the_divergence_is_that_of_its_pixels(images):
    teacher = enet(classes=3).eval()
    module = LossModule(enet(classes=3), torch.ones(3), teachers=[teacher], loss_stride=4)
    logits = random_logits(0, 2, 3, 64, 96)
    with torch.no_grad():
        target = teacher(images).softmax(dim=1)
    expected = distillation_loss(logits[:, :, 1::4, 2::4], target[:, :, 1::4, 2::4], torch.ones(3))
    found = module.teacher_loss(logits, images, torch.tensor([1, 2]))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_a_class_has_the_mean_weight_of_the_labels_that_mean_it(images):
    # the first data set tells three classes apart, the second joins the last two
    sets = make_label_sets([(0, 1, 2), (0, 1, 1)])
    weights = torch.tensor([1.0, 2.0, 4.0, 3.0, 6.0])
    teacher, logits = enet(classes=3).eval(), random_logits(0, 2, 3, 64, 96)
    module = LossModule(enet(classes=3), weights, label_sets=sets, teachers=[teacher])
    plain = LossModule(enet(classes=3), torch.tensor([2.0, 4.0, 5.0]), teachers=[teacher])
    torch.testing.assert_close(module.teacher_loss(logits, images, None), plain.teacher_loss(logits, images, None))


def test_teachers_are_neither_trained_nor_saved():
    teacher = enet(classes=3).eval()
    module = LossModule(enet(classes=3), torch.ones(3), teachers=[teacher]).train()
    assert not teacher.training
    assert len([*module.parameters()]) == len([*module.network.parameters()])
    assert module.state_dict().keys() == LossModule(enet(classes=3), torch.ones(3)).state_dict().keys()


@pytest.fixture
def taught(toy, tmp_path, no_plots):
    """A network that knows the classes of the toy data, and the settings of a run that it teaches."""
    run(toy, tmp_path / "teacher", replace(TINY, iterations=1))
    teacher = tmp_path / "teacher" / "weights.safetensors"
    return teacher, replace(TINY, teachers=(str(teacher),), teacher_scales=(1.0, 1.25), iterations=2)


def test_a_run_with_teachers_differs_from_one_without(toy, tmp_path, taught, no_plots, frequent_entries):
    _, config = taught
    run(toy, tmp_path / "with", config)
    run(toy, tmp_path / "without", replace(config, teachers=(), teacher_scales=(1.0,)))
    losses = [max(entry["loss"] or 0 for entry in entries(tmp_path / name, "loss")) for name in ("with", "without")]
    assert losses[0] > losses[1] > 0


def test_a_run_is_resumed_only_with_its_own_teachers(toy, tmp_path, taught, no_plots):
    teacher, config = taught
    run(toy, tmp_path / "run", config)
    (tmp_path / "run" / "weights.safetensors").unlink()
    run(toy, tmp_path / "run", config, resume=True)
    run(toy, tmp_path / "other", replace(TINY, iterations=1, seed=1))
    teacher.write_bytes((tmp_path / "other" / "weights.safetensors").read_bytes())
    with pytest.raises(ValueError, match="other frames, classes or teachers"):
        run(toy, tmp_path / "run", config, resume=True)


def test_a_teacher_with_other_classes_is_refused(toy, tmp_path, taught):
    teacher, config = taught
    streamseg.save(enet(classes=2), streamseg.Classes(("a", "b"), ((0, 0, 0), (1, 1, 1))), teacher)
    with pytest.raises(ValueError, match="knows a, b; expected the classes of the run: "):
        run(toy, tmp_path / "run", config)
    assert not (tmp_path / "run").exists()


def test_a_video_method_is_no_teacher(toy, tmp_path, taught):
    teacher, config = taught
    _, classes = streamseg.load(teacher)
    streamseg.save(copying(swiftnet18(len(classes))), classes, teacher)
    with pytest.raises(ValueError, match="is a video method; expected a network for images"):
        run(toy, tmp_path / "run", config)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"teacher_scales": ()}, r"teacher_scales is \(\); expected one or more numbers from 0.25 to 4"),
        ({"teacher_scales": (8.0,)}, r"teacher_scales is \(8.0,\)"),
        ({"distillation_loss": 0.0}, "distillation_loss is 0.0; expected more than 0"),
        ({"teacher_scales": (1.0, 2.0)}, r"teacher_scales is \(1.0, 2.0\); expected 1.0 without teachers"),
        ({"distillation_loss": 0.5}, "distillation_loss is 0.5; expected 1.0 without teachers"),
        ({"network": "copy-swiftnet18", "window": 2, "teachers": ("a",)}, "expected none for a video method"),
        ({"network": "fanet18", "window": 2, "teachers": ("a",)}, "expected none with a window"),
        ({"teachers": ("a", "-b")}, "expected names that do not start with a dash: write ./-NAME"),
    ],
)
def test_impossible_settings_of_teachers_are_refused(changes, sentence):
    with pytest.raises(ValueError, match=sentence):
        replace(TINY, **changes).check()
