"""The example of the Trainer: a run of one party, attacked token by token."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import pytest
import torch
from safetensors.torch import load_file

from privaudit import Audit, Auditor
from privaudit.auditing.stored_audit import save_audit
from privaudit.models.hugging_face import declare_missing_operators
from privaudit.recording.owner import use_owner
from privaudit.report.page import render_report
from privaudit.runs.run import Run
from tests.docs.examples.owners import import_example, toss

pytestmark = [
    pytest.mark.slow,
    # peft asks transformers by an old name
    pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning"),
]


@dataclass(frozen=True)
class Tuned:
    """The example's run, what the Trainer saved itself, and the example's module."""

    run: Run
    checkpoints: Path
    owner: ModuleType

    def audit(self, scenario: str) -> Audit:
        with use_owner(self.owner):
            return Auditor(self.run).attack(scenario)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    declare_missing_operators()  # before transformers looks for torchvision
    folder = tmp_path_factory.mktemp("trainer") / "run"
    with pytest.MonkeyPatch.context() as patch, torch.random.fork_rng():
        names = ("finetune", "owner")
        training, owner = import_example("hugging_face", *names, monkeypatch=patch)
        ledger = toss(300, clients=1, each=60, public=20, tests=20)
        run = training.train(ledger, str(folder))
        yield Tuned(run, folder.with_name("run-checkpoints"), owner)


def test_each_save_is_an_upload_and_the_last_is_given_away(tuned: Tuned) -> None:
    kinds = [message.kind for message in tuned.run.transcript]
    assert kinds == [*["broadcast", "update"] * 4, "broadcast", "release"]
    sent = [m.tensors for m in tuned.run.transcript if m.is_update]
    for number, tensors in enumerate(sent, start=1):
        place = tuned.checkpoints / f"checkpoint-{30 * number}"
        saved = load_file(place / "adapter_model.safetensors")
        assert saved.keys() == tensors.keys() - {"weight"}
        assert all(torch.equal(saved[name], tensors[name]) for name in saved)
    released = [m.tensors for m in tuned.run.transcript if m.kind == "release"]
    assert all(torch.equal(one, sent[-1][name]) for name, one in released[0].items())


def test_memorised_answers_are_found_and_reported(tuned: Tuned) -> None:
    audit = tuned.audit("prompt-release")
    assert audit.auroc.value > 0.95
    assert audit.results["min-k-plus-plus"].auroc.value > 0.75
    assert "perplexity-zlib" not in audit.results
    assert not any("image" in name for name in audit.results)
    assert audit.utility is not None
    assert audit.utility.metric == "utility"
    assert audit.utility.local.value < 0.5  # nobody can foresee other codes
    save_audit(audit)
    page = render_report([audit])
    assert "token-loss" in page
    assert "min-k-plus-plus" in page


def test_the_last_checkpoint_leaks_what_the_release_does(tuned: Tuned) -> None:
    seen = tuned.audit("server-reconstruct").auroc
    assert seen.value == tuned.audit("black-box").auroc.value
