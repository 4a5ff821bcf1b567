"""The tables and the plot of the speed from file to file."""

from streamseg.evaluate.bare_video import VideoInfo
from streamseg.evaluate.pipeline_benchmark import PipelineFigures, Speed, StageTimes
from streamseg.evaluate.pipeline_report import format_figures, plot_figures

MACHINE = {"device": "A GPU", "torch": "2.11", "cores": "16"}
FIGURES = PipelineFigures(
    VideoInfo("drive.mp4", "h264", "yuv420p", 720, 1280, 30.0),
    600,
    4,
    2,
    1.5,
    0.1,
    (
        Speed("decode", 900.0, (890.0, 910.0), 8.0),
        Speed("decode, encode", 300.0, (290.0, 310.0), 15.2),
        Speed("overlay", 240.0, (230.0, 250.0), 12.0, "decode, encode", 0.8, 0.12),
        Speed("overlay, 4 streams", 280.0, (280.0, 280.0), 14.0, "4 x decode, encode", 0.9, 0.14),
    ),
    (
        StageTimes(
            "overlay",
            {"decode": 1.25, "upload": 0.5, "network": 0.4, "encode": 4.0},
            {"decode": 0.3, "upload": 0.12, "network": 0.1, "encode": 0.96},
            {"draw, encode": 0.97},
            ("draw waits for encode (queue 97 % full)",),
            4.17,
            "encode",
            0.96,
            "Bottleneck: encode, busy 96 % of the time; use smaller frames.",
            {"mean": 0.123, "p95": 1.5},
            {"device": 0.5, "enqueue": 0.75, "wait": 0.25, "frames": 3.5, "waits": 172.0},
        ),
        StageTimes(
            "overlay, 4 streams", {"decode": 2.0}, {"decode": 1.0}, {}, (), 2.0, "decode", 1.0, "Bottleneck: decode."
        ),
    ),
)


def test_the_table_has_each_way_with_its_ratio_and_each_stage():
    lines = [" ".join(line.split()) for line in format_figures(FIGURES, MACHINE).splitlines()]
    for expected in (
        "A GPU: 600 frames of drive.mp4 (h264, 720 x 1280), 2 rounds in turn",
        "(torch 2.11, cores 16)",
        "decode 900.0 8.0",
        "overlay 240.0 12.0 0.12 0.80 of decode, encode",
        "overlay, 4 streams 280.0 14.0 0.14 0.90 of 4 x decode, encode",
        "decode 1.25 30 % 2.00 100 %",
        "upload 0.50 12 % -",
        "sum of stages 6.15 2.00",
        "the whole 4.17 2.00",
        "of the slowest 0.960 1.000",
        "overlay, 4 streams: Bottleneck: decode.",
        "First labels 1.50 s after the start of the first run, 0.10 s in later ones.",
    ):
        assert expected in lines
    lock = "A further thread waits 0.12 ms for Python's lock, p95 1.50."
    host = "A batch of 3.5 frames: 0.50 ms on the GPU, 0.75 in Python"
    assert f"{lock} {host} to start it, then 0.25 waiting for it; 172 waits in all." in " ".join(lines)
    assert not any(line.startswith("download") for line in lines)  # no way has it
    assert "overlay: draw waits for encode (queue 97 % full). Bottleneck: encode" in " ".join(lines)


def test_the_columns_of_the_stages_are_aligned():
    lines = format_figures(FIGURES, MACHINE).splitlines()
    head = next(line for line in lines if line.startswith("ms a frame"))
    decode = next(line for line in lines if line.startswith("  decode") and "%" in line)
    assert len(head) == len(decode)


def test_the_plot_is_a_picture(tmp_path):
    plot_figures(tmp_path / "a.png", FIGURES, MACHINE)
    assert (tmp_path / "a.png").read_bytes()[:4] == b"\x89PNG"
