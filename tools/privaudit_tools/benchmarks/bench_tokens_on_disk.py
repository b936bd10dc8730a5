"""Image tokens that do not fit into memory: encoded, trained on, and attacked.

``python -m privaudit_tools.benchmarks.bench_tokens_on_disk PICTURES`` prints what each stage took,
and the most memory that was held: a process of its own has a peak of its own. Memory of
its own (RssAnon) is what counts: pages of mapped files (RssFile) are dropped where memory
is short, and VmHWM has both.
"""

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from time import process_time
from typing import Any

import pytest
import torch
from torch import Tensor

from privaudit import Auditor, train
from privaudit.auditing.scenario import find_scenario
from privaudit.datasets.dataset import DATASETS, Dataset
from privaudit.datasets.records import Dialogue
from privaudit.models.hugging_face import import_transformers
from privaudit.models.registry import load_frozen
from privaudit_tools.benchmarks.measuring import machine
from tests.small_transformers import random_model
from tests.small_vlms import save_vlm

PICTURES, SIDE, PATCH, WIDTH = 20_000, 48, 2, 64  # 24 x 24 = 576 tokens
MODULE = "privaudit_tools.benchmarks.bench_tokens_on_disk"
TARGET = 3.0  # GiB of own memory
STATUS = Path("/proc/self/status")
ANSWERS = ("a red square", "yes", "a blue circle", "no")


class DrawnPictures:
    """Pictures of noise, each drawn when it is read."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        generator = torch.Generator().manual_seed(index)
        size = (3, SIDE, SIDE)
        return torch.randint(0, 256, size, generator=generator).to(torch.uint8)

    @property
    def contents(self) -> list[bytes]:
        return [sha256(str(n).encode()).digest() for n in range(self._count)]

    @property
    def digest(self) -> str:
        return sha256(b"".join(self.contents)).hexdigest()


def drawn_data(count: int) -> Dataset:
    asked = tuple(Dialogue("what is it?", (ANSWERS[n % 4],)) for n in range(count))
    labels = torch.arange(count) % 4
    return Dataset(DrawnPictures(count), labels, tuple("abcd"), dialogues=asked)


def save_llava(folder: Path) -> str:
    """Save a small LLaVA that makes 576 tokens of a picture."""
    transformers: Any = import_transformers()
    name = save_vlm(folder, "llava")
    config = transformers.LlavaConfig.from_pretrained(folder)
    one = {"num_hidden_layers": 1, "num_attention_heads": 1}
    config.vision_config.update({"image_size": SIDE, "patch_size": PATCH, **one})
    config.text_config.update(
        {
            "hidden_size": WIDTH,
            "head_dim": WIDTH,
            "max_position_embeddings": 1024,
            **one,
        }
    )
    config.text_config.layer_types = None
    config.vision_feature_layer = -1
    config.image_seq_length = (SIDE // PATCH) ** 2
    for file in folder.glob("*.safetensors*"):
        file.unlink()
    kind = transformers.LlavaForConditionalGeneration
    random_model(lambda: kind(config)).save_pretrained(folder)
    square = {"height": SIDE, "width": SIDE}
    _change(
        folder / "preprocessor_config.json",
        size={"shortest_edge": SIDE},
        crop_size=square,
    )
    _change(folder / "processor_config.json", patch_size=PATCH)
    return name


def _change(file: Path, **settings: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **settings}))


def memory() -> dict[str, float]:
    """Return what is held, in GiB: in all, and of that its own and that of files."""
    lines = (line.split() for line in STATUS.read_text().splitlines())
    names = ("VmHWM:", "RssAnon:", "RssFile:")
    return {one[0][:-1]: int(one[1]) / 2**20 for one in lines if one[0] in names}


@contextmanager
def watched(peaks: dict[str, float]) -> Iterator[None]:
    """Take down the most that is held meanwhile."""
    ended = Event()

    def watch() -> None:
        while not ended.wait(0.02):
            for name, value in memory().items():
                peaks[name] = max(peaks.get(name, 0.0), value)

    watcher = Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


def stage(name: str, work: Callable[[], Any]) -> Any:
    """Do it, and print what it took and held."""
    peaks, began = dict[str, float](), process_time()
    with watched(peaks):
        result = work()
    held = ", ".join(f"{name} {value:.2f}" for name, value in peaks.items())
    print(json.dumps({"stage": name, **peaks}), file=sys.stderr)
    print(
        f"{name}: {process_time() - began:.1f} s of processor time; peak in GiB: {held}",
        flush=True,
    )
    return result


def main(count: int) -> None:
    """Encode, train and attack, one after the other."""
    data = drawn_data(count)
    DATASETS.names()
    DATASETS.register("drawn-pictures")(lambda: data)
    tokens = count * (SIDE // PATCH) ** 2 * WIDTH * 4
    print(f"{count:,} pictures x {(SIDE // PATCH) ** 2} tokens x {WIDTH} numbers: ")
    print(f"{tokens / 2**30:.2f} GiB on the disk; {machine()}")
    with TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setenv("PRIVAUDIT_CACHE", f"{folder}/cache")
        model = save_llava(Path(folder) / "model")
        targets = "q_proj,v_proj"
        stage("encode", lambda: load_frozen(model, targets=targets).read(data))
        run = stage(
            "train, fedrand, one round",
            lambda: train(
                "fedrand",
                folder=folder,
                model=model,
                dataset="drawn-pictures",
                targets=targets,
                clients=4,
                rounds=1,
                participation=1.0,
                measured_rounds=1,
                tested=100,
                test_share=0.1,
                public_share=0.1,
                settings={"rank": 2, "batch_size": 16},
                seed=0,
            ),
        )
        whole = find_scenario("server-reconstruct", 0)
        attacks = {name: whole.attacks[name] for name in ("token-loss", "max-renyi")}
        short = replace(whole, attacks=attacks, dominates=())
        audit = stage("attack, all clients", lambda: Auditor(run).attack(short))
        for name, found in audit.results.items():
            print(f"{name}: AUROC {found.auroc.value:.3f} of {found.auroc.n}")


@pytest.mark.skipif(not STATUS.exists(), reason="Linux counts the memory")
def test_tokens_of_many_pictures_never_stand_in_memory() -> None:
    command = [sys.executable, "-m", MODULE, str(PICTURES)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    print(f"\n{done.stdout}", end="")
    stages = [json.loads(one) for one in done.stderr.splitlines() if one[:1] == "{"]
    most = max(found["RssAnon"] for found in stages)
    print(f"own memory {most:.2f} GiB at most; target below {TARGET:g}")
    assert len(stages) == 3
    assert most < TARGET


if __name__ == "__main__":
    main(int(sys.argv[1]))
