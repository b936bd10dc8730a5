"""Executors by name: ``--on``."""

import re

from privaudit.core.errors import ConfigError, shown
from privaudit.execution.jobs import Executor
from privaudit.execution.local import Local
from privaudit.execution.on_ray import SHARE, OnRay

PLACES = "local, local:N, ray or ray://HOST:10001; behind ray perhaps ,gpus=0.5"
_NAMED = re.compile(
    r"local(?::(?P<processes>[1-9][0-9]{0,3}))?"
    r"|(?P<ray>ray(?:://[\w.\-\[\]:]+)?)(?:,gpus=(?P<gpus>[0-9.]{1,6}))?"
)


def find_executor(name: str = "local") -> Executor:
    """Return who runs jobs where a name says.

    Args:
        name: "local": in as many processes of this machine as pay off; "local:4": in
            four; "ray": on the cluster that RAY_ADDRESS names, or all of this machine;
            "ray://HOST:10001": on that cluster; "ray,gpus=0.5": two jobs to a GPU.

    Example:
        >>> find_executor("local:2")
        Local(processes=2)
    """
    found = _NAMED.fullmatch(name)
    processes, share = (found["processes"], found["gpus"]) if found else (None, None)
    try:
        gpus = float(share or SHARE)
    except ValueError:
        gpus = 0.0
    if found is None or not 0 < gpus <= 1:
        raise ConfigError(
            f"--on {shown(name)} names no place to run jobs. Use {PLACES}."
        )
    if found["ray"]:
        return OnRay(found["ray"] if "//" in found["ray"] else None, gpus)
    return Local(int(processes) if processes else None)
