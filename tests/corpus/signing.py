"""Signs a run, or a baseline, again after a change, as its maker would."""

import hashlib
import json
from pathlib import Path
from typing import Any

SMALL = 2**22  # bytes: of larger files, and of what is no file, the old hash stays


def sign_again(path: Path) -> None:
    """Sign the run that a file belongs to, if there is one; its hashes are made anew.

    So a bad file of somebody who is trusted reaches the readers behind the signature.
    """
    from privaudit.core.signing import sign

    if path.name == "baseline.json":
        _sign_baseline(path)
        return
    run = next((p for p in path.parents if (p / "run.json").is_file()), None)
    if run is None or (run / "run.json").stat().st_size > SMALL:
        return
    try:
        header = json.loads((run / "run.json").read_text())
        del header["signature"]
        later = header.pop("added", None)
        _hash_again(run, header["files"])
        signed: dict[str, Any] = {**header, "signature": sign("run", header)}
        if later is not None:
            _hash_again(run, later["files"])
            about = {"run": signed["signature"]["value"], "files": later["files"]}
            later["signature"] = sign("files added to a run", about)
            signed["added"] = later
        text = json.dumps(signed)
    except (ValueError, KeyError, TypeError, RecursionError, OSError, AttributeError):
        return  # too damaged to be signed
    (run / "run.json").unlink()
    (run / "run.json").write_text(text)


def _sign_baseline(path: Path) -> None:
    from privaudit.core.signing import sign

    try:
        if not path.is_file() or path.stat().st_size > SMALL:
            return
        contents = json.loads(path.read_text())
        del contents["signature"]
        text = json.dumps({**contents, "signature": sign("baseline", contents)})
    except (ValueError, KeyError, TypeError, RecursionError, OSError, AttributeError):
        return  # too damaged to be signed
    path.unlink()
    path.write_text(text)


def _hash_again(run: Path, files: dict[str, str]) -> None:
    for name in files:
        path = run / name
        if path.is_file() and not path.is_symlink() and path.stat().st_size < SMALL:
            files[name] = hashlib.sha256(path.read_bytes()).hexdigest()
