"""Let this environment's torchvision be imported where it was built for another torch.

The package index has torchvision for CUDA only. Beside a torch for processors its
compiled operators do not load, and its import ends with "operator torchvision::nms does
not exist", and so does that of open_clip, which imports it. The installed package then
declares its two operators itself, whatever is imported first.
"""

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

DECLARED = """

if not _has_ops():  # put here by .ci/mend_torchvision.py
    _declared = torch.library.Library("torchvision", "DEF")
    for _name in ("nms", "qnms"):
        _declared.define(
            f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor"
        )
"""

asked = [sys.executable, "-c", "import torchvision"]
done = subprocess.run(asked, capture_output=True, text=True, check=False)
spec = find_spec("torchvision")
if "operator torchvision::nms does not exist" in done.stderr and spec and spec.origin:
    place = Path(spec.origin).with_name("extension.py")
    place.write_text(place.read_text() + DECLARED)
    subprocess.run(asked, check=True)
