"""What is not as in the log when a core decides again. Pure."""

from dataclasses import dataclass, replace

import numpy as np

from offstage.asic_model.trace import SESSION
from offstage.bindings.core import SessionConfig

__all__ = ["AS_LOGGED", "Elsewhere"]


@dataclass(frozen=True)
class Elsewhere:
    """Factors: slots of the arena, the host's own time in a step."""

    arena: float = 1.0
    host: float = 1.0

    def session(self, data: bytes) -> SessionConfig:
        """A logged session with the pace of this host."""
        found = np.frombuffer(data, SESSION, 1)[0]
        config = SessionConfig(**{name: int(found[name]) for name in SESSION.names or ()})
        return replace(config, step_ns=round(config.step_ns * self.host))


AS_LOGGED = Elsewhere()
