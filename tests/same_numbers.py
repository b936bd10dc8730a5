"""Print what ten runs sent and what three scenarios found: equal before and after a change.

It knows the command line and the files of a run, no module: so it runs in any checkout.

    PYTHONPATH=BEFORE python tests/same_numbers.py > before.json
    PYTHONPATH=AFTER python tests/same_numbers.py > after.json
    diff before.json after.json
"""

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

WRITER = ("--dataset", "scenes", "--model", "tiny-llava")
RUNS: dict[str, tuple[str, ...]] = {  # every family of trainers
    "zero-shot": (),
    "promptfl": (),
    "promptfl:secure_aggregation": ("--secure-aggregation", "masked"),
    "dp-fpl": ("--epsilon", "8"),
    "pfedmoap": (),
    "fedotp": (),
    "prompt-fedamp": (),
    "fedpt": (),
    "dp-fedpt": ("--epsilon", "8"),
    "fedrand": ("--set", "epochs=1", "--shots", "4"),
}
SCENARIOS = ("server-reconstruct", "prompt-release", "server-aggregate")
FEW = ("--clients", "3", "--rounds", "2", "--participation", "1", "--seed", "3")


def call(*args: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "privaudit", *args]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def said(done: subprocess.CompletedProcess[str]) -> str:
    return f"exit {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"


def numbers(content: Any) -> Any:
    """Drop what differs between two equal runs: times, versions, places."""
    unlike = ("seconds", "versions", "created", "path", "signature", "key", "peak")
    if isinstance(content, dict):
        kept = {k: v for k, v in content.items() if not any(u in k for u in unlike)}
        return {k: numbers(v) for k, v in kept.items()}
    if isinstance(content, list):
        return [numbers(one) for one in content]
    return content


def of_run(run: Path) -> dict[str, Any]:
    manifest = (run / "transcript" / "manifest.jsonl").read_bytes()
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return {
        "transcript": hashlib.sha256(manifest).hexdigest(),
        "privacy": numbers(json.loads((run / "privacy.json").read_text())),
        "metrics": [numbers(json.loads(line)) for line in lines],
        "audits": {
            path.parent.name: numbers(json.loads(path.read_text()))
            for path in sorted(run.glob("audits/*/audit.json"))
        },
    }


def main() -> None:
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, options) in enumerate(RUNS.items()):
            run = f"run-{number}"
            trainer = name.partition(":")[0]
            where = ("--runs", folder, "--name", run)
            done = call("train", "--trainer", trainer, *FEW, *options, *where)
            if done.returncode:
                found[name] = said(done)
                continue
            place = Path(folder) / run
            refused = {}
            for scenario in SCENARIOS:
                shadows = "0" if trainer == "fedrand" else "6"
                asked = ("--scenario", scenario, "--shadows", shadows, "--seed", "5")
                done = call("attack", str(place), *asked)
                if done.returncode:
                    refused[scenario] = said(done)
            found[name] = {**of_run(place), "refused": refused}
    print(json.dumps(found, indent=1, sort_keys=True))


if __name__ == "__main__":
    main()
