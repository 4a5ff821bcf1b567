"""Write the measured figures into the model cards: python docs/model_cards.py

Each card has a block between two comments, which is made from docs/measured/model-card-NAME.json, the output of
benchmarks/model_card.py. A test keeps both alike.
"""

import json
from pathlib import Path

DOCS = Path(__file__).parent
CARDS = ("street", "road")
BEGIN, END = "<!-- measured: python docs/model_cards.py -->", "<!-- end of measured -->"


def card_of(name: str) -> Path:
    """Return the page of a card."""
    return DOCS / f"model-card-{name}.md"


def fill(name: str) -> str:
    """Return the page of a card with the figures that were measured."""
    page, measured = card_of(name).read_text(encoding="utf-8"), DOCS / "measured" / f"model-card-{name}.json"
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    if not (rest and after):
        raise ValueError(f"{card_of(name)} has no block between {BEGIN} and {END}: add both.")
    text = "Not measured yet."
    if measured.exists():
        text = format_figures(json.loads(measured.read_text(encoding="utf-8")), f"model-card-{name}.jpg")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def format_figures(figures: dict, picture: str) -> str:
    """Return the tables of a card: IoU by data set and light, and the failure cases."""
    parts = [f"{figures['network']}, {figures['source']}. IoU in percent."]
    for name, found in figures["datasets"].items():
        lights = [light for light in ("all", "day", "night") if light in found]
        lights = ["all"] if len(lights) == 2 else lights  # all frames are of one light
        parts.append(f"### On {name} {found['split']}")
        head = [f"{light}, {found[light]['frames']} frames" for light in lights]
        rows = [
            ["", *head],
            ["---"] * (1 + len(lights)),
            ["**mean IoU**", *(f"**{show(found[x]['miou'])}**" for x in lights)],
        ]
        rows += [[label, *(show(found[x]["iou"][label]) for x in lights)] for label in found["all"]["iou"]]
        groups = found["all"].get("groups", {})
        rows += [
            [f"*{GROUP_NAMES.get(group, group)}*", *(show(found[x]["groups"][group]) for x in lights)]
            for group in groups
        ]
        parts.append("\n".join(f"| {' | '.join(row)} |" for row in rows))
        if sentence := describe(found["translated"], name):
            parts.append(sentence)
    if failures := figures.get("failures"):
        parts.append("### Failure cases")
        parts.append(f"![Frames, their true labels and the predicted ones]({picture})")
        listed = "; ".join(f"{case['label']} {case['iou']}" for case in failures)
        parts.append(
            "*Frames of comma10k (MIT licence, Copyright (c) 2020, Comma.ai, Inc.) with the lowest IoU, from the top: "
            f"{listed}. Left the frame, in the middle its labels, right the prediction.*"
        )
    return "\n\n".join(parts)


GROUP_NAMES = {
    "road": "road with lane marking, own car left out",
    "movable": "movable, own car left out",
    "rest": "the rest, own car left out",
}


def describe(translated: dict[str, str | None], dataset: str) -> str:
    """Return which classes count as another label."""
    merged: dict[str | None, list[str]] = {}
    for name, label in translated.items():
        merged.setdefault(label, []).append(name)
    parts = [
        f"{', '.join(names)} → {label or 'no label, which is wrong everywhere'}" for label, names in merged.items()
    ]
    return f"Counted on {dataset}: {'; '.join(parts)}." if parts else ""


def show(share: float | None) -> str:
    """Return a percentage with one digit; a dash if there is none."""
    return "–" if share is None else f"{share:.1f}"


if __name__ == "__main__":
    for card in CARDS:
        card_of(card).write_text(fill(card), encoding="utf-8")
        print(card_of(card))
