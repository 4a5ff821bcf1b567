"""The command line: a verb is a function, its options are its signature.

Heavy imports happen inside the verbs, so that help is instant.
"""

import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

import streamseg


def optional(metavar: str, default: str) -> Any:
    """How the help shows an option that may be left out."""
    return tyro.conf.arg(metavar=metavar, help_behavior_hint=f"(default: {default})")


def segment(
    image: Annotated[Path, tyro.conf.arg(metavar="IMAGE")],
    out: Annotated[Path | None, optional("[OUT]", "NAME-overlay.png in this folder")] = None,
    /,
    *,
    weights: Annotated[Path | None, optional("FILE", "the weights that ship with streamseg")] = None,
) -> None:
    """Label every pixel of a picture: writes it under the colours of its classes, and the labels beside it.

    Args:
        image: The picture: PNG, JPEG, WebP, TIFF, ...
        out: The overlay to write, or a folder for it. The labels, an indexed PNG, go beside it as NAME-labels.png.
        weights: A checkpoint.
    """
    import torch

    from streamseg import checkpoint, draw, images
    from streamseg.files import written_whole

    out = out or Path()
    if out.is_dir():
        out = out / f"{image.stem}-overlay.png"
    labels_out = out.with_name(f"{out.stem.removesuffix('-overlay')}-labels.png")
    images.check_suffix(out)
    for path in (out, labels_out):
        if path.exists() and image.exists() and path.samefile(image):
            raise ValueError(f"{path} is the picture itself: give another name to write to.")

    frame = images.read_image(image)
    model, classes = checkpoint.load(weights)
    with torch.inference_mode():
        labels = model(frame[None])[0].argmax(dim=0)
    with written_whole(out) as overlay_file, written_whole(labels_out) as labels_file:
        images.write_image(overlay_file, draw.overlay(frame, labels, classes))
        images.write_labels(labels_file, labels, classes)

    shares = labels.flatten().bincount(minlength=len(classes)) / labels.numel()
    largest = [f"{classes.names[i]} {shares[i]:.0%}" for i in shares.argsort(descending=True)[:5] if shares[i] > 0.005]
    print(f"{image}: {', '.join(largest)}")
    print(f"  {out}  {labels_out}")


def main() -> None:
    """Run the command line. Exit status: 0 done, 2 wrong input, 130 interrupted."""
    if sys.argv[1:] == ["--version"]:
        print(f"streamseg {streamseg.__version__}")
        return
    try:
        tyro.extras.subcommand_cli_from_dict(
            {"segment": segment},
            prog="streamseg",
            description="Real-time semantic segmentation of images and video. The version: streamseg --version",
        )
    except (ValueError, OSError) as error:
        print(f"streamseg: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
