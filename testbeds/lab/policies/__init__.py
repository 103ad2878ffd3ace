"""The components that come with Offstage, in the order in which they are listed.

One component is one class; what it promises stands in `offstage.testbeds.lab.policies.policy`.
"""

from offstage.testbeds.lab.policies.boundary import Boundary
from offstage.testbeds.lab.policies.carried import (
    EVICTION_ONLY,
    Ema,
    NextN,
    Nothing,
    PrevLayer,
    PrevStep,
    Shared,
    Window,
)
from offstage.testbeds.lab.policies.infinigen import InfinigenNextLayer
from offstage.testbeds.lab.policies.lookahead import (
    Lookahead,
    LookaheadDraft,
    LookaheadIndex,
    OasisDraft,
)
from offstage.testbeds.lab.policies.policy import Policy
from offstage.testbeds.lab.policies.prr import PrrEma
from offstage.testbeds.lab.policies.solidattention import SolidAttentionPrevStep
from offstage.testbeds.lab.policies.stability import Stability
from offstage.testbeds.lab.policies.switches import Coschedule, Granule
from offstage.testbeds.lab.policies.ucm import UcmStrided, UcmStrided3
from offstage.testbeds.lab.policies.warmup import Warmup

__all__ = ["BUILT_IN"]

BUILT_IN: tuple[type[Policy], ...] = (
    Nothing,
    Window,
    Ema,
    Shared,
    Lookahead,
    LookaheadIndex,
    LookaheadDraft,
    Stability,
    Boundary,
    Warmup,
    Coschedule,
    Granule,
    PrevStep,
    PrevLayer,
    NextN,
    *EVICTION_ONLY,
    PrrEma,
    UcmStrided,
    UcmStrided3,
    InfinigenNextLayer,
    SolidAttentionPrevStep,
    OasisDraft,
)
