import pytest
import torch
from torch import nn
from torch.nn import functional as F

from streamseg import count_macs, load_imagenet
from streamseg.models.baselines import BASELINES
from streamseg.models.baselines.fcn import bilinear_upsampling
from streamseg.models.baselines.swiftnet import PyramidPooling, sums_before_relu
from streamseg.models.encoder import resnet18
from streamseg.models.layers import unpool

# name, classes, height and width, parameters, GMACs; only of the layers that inference uses
GOLDEN = [
    ("segnet", 19, (360, 640), 29_453_971, 142.779),
    ("segnet", 11, (720, 960), 29_449_355, 426.000),
    ("enet", 19, (512, 1024), 364_311, 3.922),
    ("enet", 11, (720, 960), 363_791, 5.082),
    ("icnet", 19, (1025, 2049), 6_699_987, 29.812),
    ("icnet", 19, (1024, 2048), 6_699_987, 29.029),
    ("icnet", 11, (720, 960), 6_698_955, 9.613),
    ("icnet", 182, (640, 640), 6_721_014, 6.204),
    ("erfnet", 19, (512, 1024), 2_064_191, 26.604),
    ("erfnet", 19, (1024, 2048), 2_064_191, 106.417),
    ("bisenet18", 19, (768, 1536), 13_242_240, 66.565),
    ("bisenet18", 11, (720, 960), 13_240_192, 39.116),
    ("bisenet18", 182, (640, 640), 13_283_968, 23.380),
    ("shelfnet18", 19, (1024, 2048), 14_320_256, 98.707),
    ("swiftnet18", 19, (1024, 2048), 11_797_071, 103.566),
    ("fcn16s", 182, (640, 640), 135_288_844, 269.539),
    ("fcn8s", 182, (640, 640), 135_198_754, 270.075),
    ("fcn8s", 19, (1024, 2048), 134_358_489, 1098.769),
    ("deeplab", 182, (640, 640), 38_537_752, 318.201),
]

# without those of VGG16, which are slow on a CPU; the layers that only they have are tested below
QUICK = ["enet", "icnet", "erfnet", "bisenet18", "shelfnet18", "swiftnet18"]


# 135 million weights; FCN-8s has as many, and runs the same code and more
LARGE = pytest.param("fcn16s", marks=pytest.mark.slow)


@pytest.fixture(scope="module", params=[LARGE if name == "fcn16s" else name for name in BASELINES])
def network(request):
    """Each baseline with random weights, none of them zero, so that every layer shows in the output."""
    return build(request.param)


@pytest.fixture
def picture():
    return torch.randint(0, 256, (1, 3, 33, 47), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def build(name):
    torch.manual_seed(0)
    network = BASELINES[name](4)
    for parameter in network.parameters():
        if not parameter.any():
            nn.init.normal_(parameter, std=0.1)
    return network.eval()


def unbuilt(name, classes=19):
    """A baseline on the meta device: enough for shapes and costs."""
    with torch.device("meta"):
        return BASELINES[name](classes).eval()


@pytest.mark.parametrize(("name", "classes", "size", "parameters", "gmacs"), GOLDEN)
def test_parameters_and_cost_are_those_of_the_published_layers(name, classes, size, parameters, gmacs):
    network = unbuilt(name, classes)
    assert sum(parameter.numel() for parameter in network.parameters()) == parameters
    assert count_macs(network, (1, 3, *size)) / 1e9 == pytest.approx(gmacs, abs=0.0006)


def test_every_baseline_has_golden_numbers_and_19_classes_by_default():
    assert {name for name, *_ in GOLDEN} == set(BASELINES)
    with torch.device("meta"):
        assert all(factory().classes == 19 for factory in BASELINES.values())


@pytest.mark.parametrize("name", BASELINES)
@pytest.mark.parametrize("size", [(32, 32), (39, 64), (101, 75), (360, 481)])
def test_logits_have_the_image_s_size_and_heads_their_maps(name, size):
    network = unbuilt(name)
    image = torch.empty(2, 3, *size, device="meta")
    assert network(image).shape == (2, 19, *size)
    logits, maps = network.outputs(image)
    assert logits.shape[:2] == (2, 19)
    assert tuple(deep.shape[1] for deep in maps) == network.deep_channels


@pytest.mark.slow
def test_bytes_and_floats_give_the_same_logits_every_time(network, picture):
    with torch.inference_mode():
        logits = network(picture)
        assert logits.shape == (1, 4, 33, 47)
        assert logits.isfinite().all()
        assert network(picture.float()).equal(logits)


@pytest.mark.slow
def test_the_gradient_reaches_every_weight_and_a_small_step_lowers_the_loss(network):
    generator = torch.Generator().manual_seed(0)
    images = 255 * torch.rand(2, 3, 40, 40, generator=generator)
    labels = torch.randint(0, 4, (2, 40, 40), generator=generator)

    def loss():
        torch.manual_seed(0)  # for the same dropout
        return F.cross_entropy(network.train()(images), labels)

    before = loss()
    before.backward()
    trained = {name: parameter for name, parameter in network.named_parameters() if parameter.requires_grad}
    for name, parameter in trained.items():
        # batch norm cancels a bias in front of it
        assert parameter.grad.any() or name.endswith("bias"), name
    squared_norm = sum(parameter.grad.square().sum() for parameter in trained.values())
    with torch.no_grad():
        for parameter in trained.values():  # to first order the loss falls by 0.2 %
            parameter.sub_(parameter.grad, alpha=(0.002 * before / squared_norm).item())
        assert 0.99 * before < loss() < before


@pytest.mark.parametrize("name", QUICK)
def test_channels_last_is_the_same_network(name, picture):
    network = build(name)
    with torch.inference_mode():
        logits = network(picture)
        network.to(memory_format=torch.channels_last)
        again = network(picture.to(memory_format=torch.channels_last))
    torch.testing.assert_close(again, logits, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_nearly_the_same_network(name, dtype, picture):
    network = build(name)
    with torch.inference_mode():
        expected = network(picture)
        logits = network.to(dtype)(picture)
    assert logits.dtype == dtype
    assert (logits.float() - expected).norm() < 0.1 * expected.norm()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["enet", "swiftnet18"])
def test_the_whole_network_is_one_graph(name, picture):
    network = build(name)
    with torch.inference_mode():
        compiled = torch.compile(network, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(picture), network(picture))


@pytest.mark.parametrize("name", ["bisenet18", "shelfnet18", "swiftnet18"])
def test_imagenet_weights_fit_the_encoder(name, tmp_path):
    weights = resnet18("None").state_dict()
    torch.save(weights, tmp_path / "resnet18.pth")
    network = BASELINES[name]()
    load_imagenet(network.encoder, tmp_path / "resnet18.pth")
    assert all(tensor.equal(weights[key]) for key, tensor in network.encoder.state_dict().items())


@pytest.mark.parametrize("name", BASELINES)
def test_a_wrong_image_is_refused_in_a_sentence(name):
    network = unbuilt(name)
    with pytest.raises(ValueError, match="31 x 64 pixels; the least is 32 x 32"):
        network(torch.zeros(1, 3, 31, 64))
    with pytest.raises(ValueError, match="The image is a tensor of torch.int64; expected"):
        network(torch.zeros(1, 3, 32, 32, dtype=torch.int64))


@pytest.mark.parametrize("name", BASELINES)
def test_no_classes_are_refused(name):
    with pytest.raises(ValueError, match="classes is 0; expected a whole number, 1 or more"):
        BASELINES[name](0)


@pytest.mark.parametrize("size", [(8, 6), (9, 7)])
def test_unpooling_puts_each_maximum_back_at_its_index(size):
    x = torch.rand(2, 3, *size)
    pooled, indices = F.max_pool2d(x, 2, return_indices=True)
    whole = unpool(pooled, indices, x.shape)
    assert whole.equal(F.max_unpool2d(pooled, indices, 2, output_size=x.shape))
    assert whole[whole > 0].equal(x[whole > 0])


@pytest.mark.parametrize("factor", [2, 8, 16])
def test_fcn_upsamples_bilinearly(factor):
    x = torch.rand(1, 3, 5, 6)
    expected = F.interpolate(x, scale_factor=factor, mode="bilinear")
    whole = bilinear_upsampling(3, factor)(x)
    margin = factor // 2
    inside = whole[..., margin:-margin, margin:-margin]
    # at the border the transposed convolution fades to zero
    torch.testing.assert_close(
        inside[..., margin:-margin, margin:-margin], expected[..., margin:-margin, margin:-margin]
    )


def test_swiftnet_takes_the_encoder_s_maps_before_their_last_relu():
    encoder = resnet18("None").eval()
    image = torch.randn(1, 3, 64, 96)
    maps = sums_before_relu(encoder, image)
    assert all((total < 0).any() for total in maps)
    assert all(total.relu().equal(x) for total, x in zip(maps, encoder(image), strict=True))


@pytest.mark.parametrize(("size", "grids"), [((16, 32), [(8, 16), (4, 8), (2, 4)]), ((9, 6), [(8, 5), (4, 3), (2, 1)])])
def test_swiftnet_pools_over_grids_of_8_4_and_2_rows(size, grids):
    pool = PyramidPooling(12, 6).eval()
    x = torch.randn(1, 12, *size, generator=torch.Generator().manual_seed(0))
    narrow = pool.narrow(x)
    levels = [
        F.interpolate(level(F.adaptive_avg_pool2d(narrow, grid)), size, mode="bilinear")
        for level, grid in zip(pool.levels, grids, strict=True)
    ]
    torch.testing.assert_close(pool(x), pool.fuse(torch.cat([narrow, *levels], dim=1)))
