"""Families of the models that ``privaudit pretrain`` writes into folders.

A family's module is imported as one of its models is loaded.
"""

from privaudit.models.frozen_model import FrozenModel
from privaudit.models.registry import FOLDER, ModelFamily, ModelRequest


def _load_surrogate(request: ModelRequest) -> FrozenModel:
    from privaudit_tools.surrogate_clip.storage import load_surrogate

    return load_surrogate(request)


def _load_aligned(request: ModelRequest) -> FrozenModel:
    from privaudit_tools.aligned_clip.storage import load_aligned

    return load_aligned(request)


def _load_captioner(request: ModelRequest) -> FrozenModel:
    from privaudit_tools.projector.projector_folder import load_captioner

    return load_captioner(request)


ALIGNED = ModelFamily("classification", _load_aligned, FOLDER, tuned=False)
"""Text encoders joined to embeddings, which ``privaudit pretrain aligned-clip`` wrote."""
SURROGATE = ModelFamily("classification", _load_surrogate, FOLDER, tuned=False)
"""CLIPs that ``privaudit pretrain surrogate-clip`` wrote."""
LANGUAGE = ModelFamily("generation", _load_captioner, FOLDER, takes_template=True)
"""Language models with a projector, which ``privaudit pretrain projector`` wrote."""
