"""The verb push: weights on the Hugging Face Hub."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from streamseg.cli.messages import check_figures, loading, open_messages, write_figures
from streamseg.cli.options import Json, Quiet, check_weights, option
from streamseg.io.files import check_new_folder, folder_written_whole
from streamseg.io.hub import PREFIX, check_hub_address, is_hub_address


def push(
    weights: Annotated[Path, option("WEIGHTS")],
    name: Annotated[str, option("hf:USER/NAME")],
    /,
    *,
    licence: Annotated[str, option("TEXT", "none")] = "",
    metrics: Annotated[Path | None, option("FILE", "none")] = None,
    private: Annotated[bool, Parameter(negative=())] = False,
    message: Annotated[str, option("TEXT", "the network and its classes")] = "",
    folder: Annotated[Path | None, option("DIR", "upload")] = None,
    json: Json = None,
    quiet: Quiet = False,
) -> int:
    """Publish weights on the Hugging Face Hub, with a model card.

    Args:
        weights: A checkpoint, or a name that streamseg weights lists.
        name: The repository, which is created if needed; hf:USER/NAME@BRANCH for a branch of it.
        licence: What the weights may be used for: a name that the Hub knows, such as apache-2.0, or a sentence.
        metrics: A file of evaluate --json, whose figures go into the model card.
        private: Create a repository that only you see; one that exists stays as it is.
        message: What the commit says.
        folder: Write the files to this folder, to look at, and upload nothing.
        json: A file for the address and the names of the files; - for standard output.
        quiet: Print only warnings and errors.

    Examples:
        streamseg push run/weights.safetensors hf:me/streets
        streamseg push run/weights.safetensors hf:me/streets --metrics a.json
        streamseg push road hf:me/road --folder look
    """
    check_weights(weights)
    check_figures(json)
    if folder is None:
        check_hub_address(name if is_hub_address(name) else f"{PREFIX}{name}")
    else:
        check_new_folder(folder)
    with loading(quiet):
        from streamseg.deploy import hub

        address = hub.parse_target(name)
        files = hub.make_files(weights, address, licence, metrics)
    messages = open_messages(quiet, json)
    if folder is None:
        place = hub.push_to_hub(
            weights, str(address), licence=licence, metrics=metrics, private=private, message=message
        )
        print(f"{place}  use it with: --weights {address}", file=messages)
    else:
        place = str(folder)
        with folder_written_whole(folder) as temporary:
            for file, content in files.items():
                data = content if isinstance(content, bytes) else content.read_bytes()
                (temporary / file).write_bytes(data)
        print("  ".join(str(folder / file) for file in files), file=messages)
    write_figures(json, {"address": place, "name": str(address), "files": [*files]}, messages)
    return 0
