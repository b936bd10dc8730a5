from collections.abc import Iterator

import pytest

from privaudit.models.hugging_face import import_transformers


@pytest.fixture(scope="session", autouse=True)
def without_videos() -> Iterator[None]:
    """Let SmolVLM's processor do without the package that it names frames with."""
    import_transformers()
    from transformers.models.smolvlm import processing_smolvlm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(processing_smolvlm, "num2words", str)
        yield
