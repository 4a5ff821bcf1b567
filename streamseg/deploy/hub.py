"""Publish weights on the Hugging Face Hub: the checkpoint, a model card made from its metadata, and its classes."""

import json
import logging
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from streamseg import __version__
from streamseg.io.hub import (
    PREFIX,
    WEIGHTS_FILE,
    HubAddress,
    check_hub_address,
    is_hub_address,
    parse_hub_address,
    read_card,
    upload_files,
)
from streamseg.models.attention import ATTENTIONS
from streamseg.models.bundled import BUNDLED_WEIGHTS, BundledWeights, find_weights
from streamseg.models.checkpoint import Description, describe

GENERATED = "<!-- Written by streamseg push, which replaces it each time. Remove this line to keep your own text. -->"
"""The line of a model card that may be replaced."""
LOG = logging.getLogger("streamseg")


@dataclass(frozen=True)
class Figures:
    """How accurate a network is, in percent: the output of streamseg evaluate --json."""

    miou: float
    iou: dict[str, float | None] = field(default_factory=dict)
    """By class; None for one that does not occur."""
    images: int = 0
    dataset: str = ""
    split: str = ""

    @property
    def place(self) -> str:
        """What they were measured on, in words."""
        data = f"{self.dataset} {self.split}".strip()
        frames = f"{self.images:,} frame{'s' * (self.images != 1)}" if self.images else ""
        return ", ".join(part for part in (data, frames) if part)


def push_to_hub(
    weights: str | Path,
    name: str,
    *,
    licence: str = "",
    metrics: str | Path | None = None,
    private: bool = False,
    message: str = "",
) -> str:
    """Publish a checkpoint on the Hugging Face Hub, in one commit, and return the address of its page.

    The repository, which is created if needed, gets model.safetensors, config.json with the classes, and a model card,
    README.md. A card that a person has changed is kept. Log in before with: hf auth login

    Args:
        weights: The checkpoint, or the name of bundled weights.
        name: hf:USER/NAME, or hf:USER/NAME@BRANCH.
        licence: What the weights may be used for: a name that the Hub knows, such as apache-2.0, or a sentence.
        metrics: A file of streamseg evaluate --json, for the card.
        private: Create a repository that only you see; one that exists stays as it is.
        message: What the commit says; by default the network and its classes.
    """
    address = parse_target(name)
    check_hub_address(str(address))
    files = make_files(weights, address, licence, metrics)
    present = read_card(address)
    if present is not None and GENERATED not in present:
        LOG.warning("The model card of %s is not from streamseg, and is kept.", address)
        del files["README.md"]
    described = describe(weights)
    message = message or f"{described.network}, {len(described.classes)} classes, by streamseg {__version__}"
    return upload_files(address, files, message, private=private)


def parse_target(name: str) -> HubAddress:
    """Return the repository to write to: hf:USER/NAME, with or without hf: in front."""
    address = parse_hub_address(name if is_hub_address(name) else f"{PREFIX}{name}")
    if address.file:
        raise ValueError(
            f"{address} names a file, and a repository gets its weights as {WEIGHTS_FILE}: give "
            f"{HubAddress(address.repository, revision=address.revision)}."
        )
    return address


def make_files(
    weights: str | Path, address: HubAddress, licence: str = "", metrics: str | Path | None = None
) -> dict[str, Path | bytes]:
    """Return what a repository gets, by name: files, or their content. The arguments are those of push_to_hub."""
    if not licence.isprintable():
        raise ValueError(f"The licence is {licence!r:.80}; expected printable text in one line.")
    path, figures = find_weights(weights), read_figures(Path(metrics)) if metrics is not None else None
    description = describe(path)
    bundled = next((entry for entry in BUNDLED_WEIGHTS.values() if entry.file == path), None)
    card = make_card(description, address, path.stat().st_size, licence, figures, bundled)
    return {
        WEIGHTS_FILE: path,
        "config.json": (json.dumps(make_config(description), indent=2, ensure_ascii=False) + "\n").encode(),
        "README.md": card.encode(),
    }


def make_config(description: Description) -> dict[str, Any]:
    """Return the metadata of a checkpoint for programs that do not read it; the Hub counts downloads by this file."""
    entry = asdict(description)
    return {
        "library": "streamseg",
        **entry,
        "classes": entry["classes"]["names"],
        "colours": description.classes.colours,
    }


def read_figures(path: Path) -> Figures:
    """Return the figures in a file of streamseg evaluate --json."""
    expected = "expected the file that streamseg evaluate --json FILE writes"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        figures = Figures(
            float(found["miou"]),
            {str(name): None if share is None else float(share) for name, share in found["iou"].items()},
            int(found.get("images", 0)),
            str(found.get("dataset", "")),
            str(found.get("split", "")),
        )
        shares = [figures.miou, *(share for share in figures.iou.values() if share is not None)]
        if not all(0 <= share <= 100 for share in shares):
            raise ValueError("a share outside of 0 to 100")
    except OSError as error:
        raise type(error)(f"No figures at {path} ({error.strerror}): {expected}.") from None
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, OverflowError):
        raise ValueError(f"{path} holds no figures of a network: {expected}.") from None
    return figures


def make_card(
    description: Description,
    address: HubAddress,
    size: int,
    licence: str = "",
    figures: Figures | None = None,
    bundled: BundledWeights | None = None,
) -> str:
    """Return the model card of a checkpoint, as Markdown with the Hub's metadata in front.

    Args:
        size: The bytes of its file.
    """
    title = address.repository.partition("/")[2]
    licence = licence or (bundled.licence if bundled else "")
    about = bundled.about if bundled else "Semantic segmentation: the class of every pixel, of images and video."
    data = bundled.data if bundled else ""
    frames = "images" if description.window in (0, 1) else f"clips of {description.window} frames"
    rows = {
        "network": f"{description.network}, {size / 1e6:.0f} MB, trained on {frames}",
        "classes": str(len(description.classes)),
        "data": data,
        "origin": description.source,
        "licence": licence or "none was given: ask the author",
    }
    parts = [
        make_metadata(title, licence, figures),
        GENERATED,
        f"# {plain(title)}",
        plain(about),
        make_usage(description, address),
        "## The network",
        table([("", ""), *((name, plain(text)) for name, text in rows.items() if text)]),
        "## Classes",
        table([("label", "class", "colour"), *class_rows(description)]),
    ]
    if figures:
        parts += ["## Accuracy", *accuracy_parts(figures)]
    return "\n\n".join(parts) + "\n"


def make_metadata(title: str, licence: str, figures: Figures | None) -> str:
    """Return the block of metadata that the Hub reads: YAML, whose values are written as JSON, which it contains."""
    entries: dict[str, Any] = {
        "library_name": "streamseg",
        "pipeline_tag": "image-segmentation",
        "tags": ["streamseg", "semantic-segmentation", "real-time", "video"],
    }
    if re.fullmatch(r"[a-z0-9][a-z0-9.-]*", licence):
        entries["license"] = licence
    elif licence:
        entries |= {"license": "other", "license_name": "see-below"}
    if figures:
        name = figures.dataset or "unnamed"
        result = {
            "task": {"type": "image-segmentation"},
            "dataset": {"type": name, "name": f"{name} {figures.split}".strip()},
            "metrics": [{"type": "mean_iou", "name": "mean IoU, %", "value": round(figures.miou, 2)}],
        }
        entries["model-index"] = [{"name": title, "results": [result]}]
    return "\n".join(["---", *(f"{key}: {json.dumps(value)}" for key, value in entries.items()), "---"])


def make_usage(description: Description, address: HubAddress) -> str:
    """Return how to use the weights: commands and Python."""
    variant = description.variant
    own = f", attention={variant.attention}" if variant and variant.attention not in ATTENTIONS else ""
    python = (
        f'```python\nimport streamseg\n\nmodel, classes = streamseg.load("{address}"{own})\n'
        'labels = streamseg.segment("photo.jpg", model)\n'
        'streamseg.show("photo.jpg", labels, classes)\n```'
    )
    command = f"```sh\npip install 'streamseg[hub]'\nstreamseg segment photo.jpg --weights {address}\n```"
    return python if own else f"{command}\n\n{python}"  # the command line does not know the class of such a network


def class_rows(description: Description) -> list[tuple[str, ...]]:
    """Return label, name and colour of each class."""
    classes = description.classes
    return [
        (str(label), plain(name), f"`#{bytes(colour).hex()}`")
        for label, (name, colour) in enumerate(zip(classes.names, classes.colours, strict=True))
    ]


def accuracy_parts(figures: Figures) -> list[str]:
    """Return the section on accuracy: a sentence, and the IoU of each class."""
    place = f" on {plain(figures.place)}" if figures.place else ""
    shares = [(plain(name), "–" if share is None else f"{share:.1f}") for name, share in figures.iou.items()]
    return [
        f"Mean IoU {figures.miou:.1f} %{place}, measured by `streamseg evaluate`.",
        table([("class", "IoU, %"), *shares]),
    ]


def table(rows: list[tuple[str, ...]]) -> str:
    """Return rows as a table; the first is its head."""
    rows = [rows[0], ("---",) * len(rows[0]), *rows[1:]]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def plain(text: str) -> str:
    """Return a text whose characters have no meaning in Markdown."""
    return re.sub(r"([\\`*_{}\[\]<>#|~])", r"\\\1", text)
