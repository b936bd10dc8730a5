"""CLIPs that ``privaudit pretrain surrogate-clip`` wrote."""

from pathlib import Path

from privaudit.models.clip.promptable_clip import PromptableCLIP
from privaudit.models.registry import FOLDER, MODELS, ModelFamily, ModelRequest
from privaudit.models.surrogate_clip.storage import load_surrogate


def _load(asked: ModelRequest) -> PromptableCLIP:
    return load_surrogate(Path(asked.source), asked.device)


MODELS.register("surrogate")(ModelFamily("classification", _load, FOLDER, tuned=False))
