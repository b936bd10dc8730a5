"""An owner's module, as --owner names one."""

from tests.privaudit.recording.small_federation import Linear

_linear = Linear()
labels = _linear.labels
query = _linear.query
local_update = _linear.local_update
