"""--template: whose text is part of a run's configuration."""

from pathlib import Path

import pytest

from privaudit import load_run, train
from privaudit.core.errors import ConfigError
from privaudit.datasets.dataset import DATASETS
from privaudit.datasets.records import INSTRUCTION
from privaudit.runs.config import make_config
from tests.conftest import Cli
from tests.small_records import text_data
from tests.small_transformers import save

CHAT = "{% for m in messages %}who {{ m['content'] }}{% endfor %} is"


def test_the_digest_changes_with_the_templates_text_only_where_one_is_set(
    tmp_path: Path,
) -> None:
    (tmp_path / "chat.jinja").write_text(CHAT)
    plain, text = make_config("fedpt"), make_config("fedpt", template=CHAT)
    file = make_config("fedpt", template=str(tmp_path / "chat.jinja"))
    assert plain.template is None
    assert "template" not in plain.model_dump(exclude_defaults=True)
    assert file.template == text.template == CHAT
    assert file.short_hash == text.short_hash != plain.short_hash


def test_what_is_no_template_is_refused(tmp_path: Path, cli: Cli) -> None:
    (tmp_path / "chat.txt").write_text("USER: ")
    (tmp_path / "chat.bin").write_bytes(b"\xff\xfe{{")
    for name in ("chat.txt", "chat.bin"):
        with pytest.raises(ConfigError, match="is no Jinja template"):
            make_config("fedpt", template=str(tmp_path / name))
    said = cli.refused("train", "--seed", 0, "--template", tmp_path / "nowhere.jinja")
    assert "nowhere.jinja" in said
    said = cli.refused("train", "--seed", 0, "--template", CHAT)
    assert "tiny-clip has no place for one" in said


def test_a_run_is_trained_with_it_and_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DATASETS.names()
    monkeypatch.setitem(DATASETS._entries, "some-texts", text_data)
    model = save(tmp_path / "model", "decoder-gpt2")
    run = train(
        "fedpt",
        folder=tmp_path,
        model=model,
        dataset="some-texts",
        template=CHAT,
        clients=2,
        rounds=1,
        tested=2,
        test_share=0.3,
        public_share=0.3,
        settings={"peft_method": "soft-prompt", "virtual_tokens": 2, "epochs": 1},
        seed=0,
    )
    again = load_run(str(run.path))
    assert again.config.template == CHAT
    words = again.population.records.words
    assert words is not None
    first = text_data().dialogues[0].question.split()
    assert (
        int((words.kinds[0] == INSTRUCTION).sum()) == len(first) + 2
    )  # "who" and "is"
